//! The journal: so many batches under way, each appended again when it is durable.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use journal::{Batch, Class, Journal, Options, Refused, Ticket};
use rt_abstract::{Notify, RunOptions, Runtime, Shutdown};

use crate::{BATCH_BYTES, Figures};

pub fn run<R: Runtime>(options: &RunOptions, dir: &Path, batches: usize, depth: usize) -> Figures {
    let dir = dir.join("journal");
    let outcome = Arc::new(Mutex::new(None));
    let told = outcome.clone();
    let done = R::run_cores(options, move |core| {
        let (dir, told) = (dir.clone(), told.clone());
        async move {
            if core.index == 0 {
                let figures = commit::<R>(dir, batches, depth).await;
                *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(figures);
            }
        }
    });
    done.expect("the cores run");
    let figures = outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
    figures.expect("the case ran")
}

async fn commit<R: Runtime>(dir: PathBuf, batches: usize, depth: usize) -> Figures {
    let opened = journal::open::<R>(Options::new(dir), None, |_, _| Ok(())).await;
    let (journal, writer) = opened.expect("opens");
    let (changed, stop) = (Arc::new(Notify::new()), Shutdown::new());
    journal.watch(changed.clone());
    let writer = R::spawn(writer.run(stop.clone()));
    while journal.usage().spares < 2 {
        changed.notified().await; // preparing them is not what is measured
    }
    let mut figures = Figures::default();
    let mut under_way: VecDeque<(Ticket, Instant)> = VecDeque::with_capacity(depth);
    let (mut batch, mut appended) = (Batch::new(), 0);
    let start = Instant::now();
    while figures.batches < batches {
        while under_way.len() < depth && appended < batches {
            if batch.is_empty() {
                batch.push(|out| out.resize(out.len() + BATCH_BYTES, b'x'));
            }
            let begin = Instant::now();
            match append(&journal, &mut batch) {
                Some(ticket) => under_way.push_back((ticket, begin)),
                None => break,
            }
            appended += 1;
        }
        changed.notified().await;
        let durable = journal.durable();
        while let Some(&(ticket, begin)) = under_way.front()
            && ticket <= durable
        {
            figures.add(begin.elapsed());
            under_way.pop_front();
        }
        // Nobody reads them.
        journal.release_before(journal.usage().end);
    }
    figures.took = start.elapsed();
    figures.syncs = journal.usage().syncs;
    stop.trigger();
    writer.await.expect("no panic").expect("the disk works");
    figures
}

fn append(journal: &Journal, batch: &mut Batch) -> Option<Ticket> {
    match journal.append(batch, Class::New) {
        Ok(appended) => Some(appended.ticket),
        Err(Refused::Busy) => None,
        Err(refused) => panic!("{refused}"),
    }
}
