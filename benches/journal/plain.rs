//! The ceiling: one thread that writes a batch and syncs it, into a file that was prepared like a
//! segment.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use crate::{BATCH_BYTES, Figures};

/// As large as a segment.
const FILE_BYTES: u64 = 64 << 20;

pub fn run(dir: &Path, batches: usize) -> Figures {
    let file = File::options().create_new(true).write(true).open(dir.join("plain"));
    let file = file.expect("creates");
    let flags = rustix::fs::FallocateFlags::empty();
    rustix::fs::fallocate(&file, flags, 0, FILE_BYTES).expect("reserves");
    let batch = vec![b'x'; BATCH_BYTES];
    for at in (0..FILE_BYTES).step_by(BATCH_BYTES) {
        file.write_all_at(&vec![0; BATCH_BYTES], at).expect("writes");
    }
    file.sync_all().expect("syncs");
    let mut figures = Figures::default();
    let start = Instant::now();
    for index in 0..batches as u64 {
        let begin = Instant::now();
        file.write_all_at(&batch, index * BATCH_BYTES as u64 % FILE_BYTES).expect("writes");
        file.sync_data().expect("syncs");
        figures.add(begin.elapsed());
        figures.syncs += 1;
    }
    figures.took = start.elapsed();
    figures
}
