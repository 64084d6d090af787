//! Random histories against a model: what was durable is there, in order, in whole batches, and
//! nothing was invented.

use std::path::PathBuf;
use std::pin::pin;

use futures_util::future::select;
use journal::{Class, Refused};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};
use rt_abstract::faults::{Disk, Faulty, Keep};
use rt_abstract::{RunOptions, Runtime};
use tempfile::TempDir;

use crate::column::{in_each_column, run};
use crate::tools::{Record, Running, append, in_fallback_too, record, small};

in_each_column!(random_histories_keep_what_was_durable);
in_fallback_too!(random_histories_keep_what_was_durable);

/// Histories per column.
const HISTORIES: u32 = 24;

#[derive(Clone, Debug)]
enum Step {
    /// A batch of records of these lengths.
    Append(Vec<usize>, Class),
    /// Waits until all is durable.
    Commit,
    /// Lets go of what lies before the record at this fraction of all.
    Release(f64),
    /// Whether writes come in parts.
    MaxWrite(Option<usize>),
    Restart,
    /// Syncs wait, something more is appended, the power goes; sectors survive by these bits.
    Crash(u64, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let lengths = prop::collection::vec(prop_oneof![0..200usize, 0..9_000usize], 1..5);
    let class = prop_oneof![Just(Class::New), Just(Class::Always)];
    let step = prop_oneof![
        10 => (lengths, class).prop_map(|(lengths, class)| Step::Append(lengths, class)),
        4 => Just(Step::Commit),
        3 => (0.0..1.0).prop_map(Step::Release),
        1 => prop::option::of(100..5_000usize).prop_map(Step::MaxWrite),
        1 => Just(Step::Restart),
        2 => (any::<u64>(), 0..6_000usize).prop_map(|(bits, len)| Step::Crash(bits, len)),
    ];
    prop::collection::vec(step, 1..60)
}

fn random_histories_keep_what_was_durable<R: Runtime>(options: &RunOptions) {
    let config = Config { cases: HISTORIES, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&steps(), |steps| {
        let dir = TempDir::new().expect("a directory");
        let path = dir.path().to_owned();
        run::<R, _, _>(options, move || history::<R>(path.clone(), steps.clone()));
        Ok(())
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(reason, steps)) => panic!("{reason}\nafter {steps:#?}"),
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
}

/// What must be there.
#[derive(Default)]
struct Model {
    batches: Vec<Vec<Record>>,
    /// So many batches are durable.
    durable: usize,
    /// Segments before it may have gone.
    released: u64,
}

async fn history<R: Runtime>(dir: PathBuf, steps: Vec<Step>) {
    let dir = dir.as_path();
    let disk = Disk::new(dir);
    let mut model = Model::default();
    let mut running = Running::<Faulty<R>>::open(small(dir)).await;
    for (seed, step) in steps.iter().enumerate() {
        match step {
            Step::Append(lengths, class) => {
                let records: Vec<_> = lengths.iter().map(|&len| record(seed, len)).collect();
                model.batches.push(running.append(&records, *class).await);
            }
            Step::Commit => {
                let last = append(&running.journal, &[], Class::New).expect("is taken").0.ticket;
                running.durable(last).await;
                model.durable = model.batches.len();
            }
            Step::Release(fraction) => {
                let index = (model.batches.len() as f64 * fraction) as usize;
                if let Some(batch) = model.batches.get(index) {
                    running.journal.release_before(batch[0].0);
                    model.released = model.released.max(running.journal.segment_of(batch[0].0));
                }
            }
            Step::MaxWrite(bytes) => disk.set_max_write_bytes(*bytes),
            Step::Restart => {
                running.stop().await.expect("ends well");
                model.durable = model.batches.len();
                running = Running::open(small(dir)).await;
                model.check(&running);
            }
            Step::Crash(bits, len) => {
                disk.hold_syncs(".log");
                match append(&running.journal, &[record(seed, *len)], Class::Always) {
                    Ok((_, placed)) => model.batches.push(placed),
                    Err(refused) => assert_eq!(refused, Refused::Busy),
                }
                // One that was refused may leave nothing to be synced.
                let idle = running.until(|journal| journal.usage().waiting_bytes == 0);
                select(pin!(disk.sync_waits()), pin!(idle)).await;
                let mut bits = *bits;
                let mut keep = || {
                    bits = bits.rotate_left(1);
                    bits & 1 == 1
                };
                disk.cut_power(Keep::Sectors(&mut keep)).await;
                let _ = running.stop().await; // an error, when its disk was in use
                running = Running::open(small(dir)).await;
                model.check(&running);
            }
        }
    }
    running.stop().await.expect("ends well");
    model.durable = model.batches.len();
    let running = Running::<Faulty<R>>::open(small(dir)).await;
    model.check(&running);
    running.stop().await.expect("ends well");
}

impl Model {
    /// Compares with what was found, and goes on from it.
    fn check<R: Runtime>(&mut self, running: &Running<R>) {
        let found = &running.found;
        let segment = |batch: &[Record]| running.journal.segment_of(batch[0].0);
        let first = found.first().map(|(position, _)| *position);
        // Whole segments are gone at the begin, and only released ones.
        let gone = match first {
            Some(first) => self.batches.iter().take_while(|batch| batch[0].0 < first).count(),
            None => self.batches.iter().take_while(|batch| segment(batch) < self.released).count(),
        };
        assert!(self.batches[..gone].iter().all(|batch| segment(batch) < self.released));
        let there = &self.batches[gone..];
        let mut rest = found.as_slice();
        let mut whole = 0;
        while !rest.is_empty() {
            let batch = there.get(whole).expect("nothing is invented");
            assert!(rest.starts_with(batch), "batch {} is not as it was", gone + whole);
            rest = &rest[batch.len()..];
            whole += 1;
        }
        assert!(gone + whole >= self.durable, "{} of {} durable", gone + whole, self.durable);
        self.batches.truncate(gone + whole);
        self.batches.drain(..gone);
        self.durable = self.batches.len();
    }
}
