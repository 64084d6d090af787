//! One journal, written and read by one runtime after the other.

use std::path::Path;

use rt_abstract::{RunOptions, Runtime};
use tempfile::TempDir;

use crate::column::run;
use crate::tools::{Record, Running, record, small};

/// Opens what the others wrote, checks it, and adds to it.
fn turn<R: Runtime>(dir: &Path, all: &mut Vec<Record>, run_options: &RunOptions) {
    let (dir, seen) = (dir.to_owned(), all.clone());
    let (told, added) = std::sync::mpsc::channel();
    run::<R, _, _>(run_options, move || {
        let (dir, seen, told) = (dir.clone(), seen.clone(), told.clone());
        async move {
            let running = Running::<R>::open(small(&dir)).await;
            assert_eq!(running.found, seen);
            for index in 0..15 {
                let records = [record(seen.len() + index, 6_000), record(index, 1)];
                told.send(running.commit(&records).await).expect("is listening");
            }
            running.stop().await.expect("ends well");
        }
    });
    all.extend(added.into_iter().flatten());
}

#[test]
fn a_journal_goes_from_runtime_to_runtime() {
    let dir = TempDir::new().expect("a directory");
    let mut all = Vec::new();
    let fallback = RunOptions { force_fallback: true, ..RunOptions::default() };
    for _ in 0..2 {
        #[cfg(feature = "rt-tokio")]
        turn::<rt_tokio::Tokio>(dir.path(), &mut all, &RunOptions::default());
        #[cfg(feature = "rt-monoio")]
        for options in [&RunOptions::default(), &fallback] {
            turn::<rt_monoio::Monoio>(dir.path(), &mut all, options);
        }
        #[cfg(feature = "rt-compio")]
        for options in [&RunOptions::default(), &fallback] {
            turn::<rt_compio::Compio>(dir.path(), &mut all, options);
        }
    }
    drop(fallback);
    assert!(all.len() >= 60);
}
