//! The ceiling: one thread that writes batches and syncs them, one or a group at a time, into a file
//! that was prepared like a segment.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use crate::{BATCH_BYTES, Figures};

/// As large as a segment.
const FILE_BYTES: u64 = 64 << 20;

/// `group` batches are one write and one sync.
pub fn run(dir: &Path, batches: usize, group: usize) -> Figures {
    let file = File::options().create_new(true).write(true).open(dir.join("plain"));
    let file = file.expect("creates");
    let flags = rustix::fs::FallocateFlags::empty();
    rustix::fs::fallocate(&file, flags, 0, FILE_BYTES).expect("reserves");
    let bytes = vec![b'x'; group * BATCH_BYTES];
    for at in (0..FILE_BYTES).step_by(BATCH_BYTES) {
        file.write_all_at(&vec![0; BATCH_BYTES], at).expect("writes");
    }
    file.sync_all().expect("syncs");
    let mut figures = Figures::default();
    let start = Instant::now();
    for index in 0..(batches / group) as u64 {
        let begin = Instant::now();
        file.write_all_at(&bytes, index * bytes.len() as u64 % FILE_BYTES).expect("writes");
        file.sync_data().expect("syncs");
        let took = begin.elapsed();
        (0..group).for_each(|_| figures.add(took));
        figures.syncs += 1;
    }
    figures.took = start.elapsed();
    figures
}
