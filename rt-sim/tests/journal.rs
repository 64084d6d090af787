//! The journal on simulated disks: whatever happens to its node, what was durable is there, in order,
//! in whole batches, and nothing was invented.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use journal::{Batch, Class, Journal, Options, Position, Refused};
use rt_abstract::{Notify, Runtime, Shutdown};
use rt_sim::{Config, Control, Coverage, Crash, Fault, NodeId, Op, Sim, World};

const NODE: NodeId = NodeId(1);
/// Histories of the short run.
const HISTORIES: u64 = 60;
/// Starts per history.
const STARTS: usize = 12;

type Record = (Position, Vec<u8>);

/// What must be there.
#[derive(Default)]
struct Model {
    batches: Vec<Vec<Record>>,
    /// So many batches are durable.
    durable: usize,
    /// Segments before it may have gone.
    released: u64,
    /// All starts together.
    checked: usize,
}

type Shared = Arc<Mutex<Model>>;

fn with<T>(model: &Shared, f: impl FnOnce(&mut Model) -> T) -> T {
    f(&mut model.lock().unwrap_or_else(PoisonError::into_inner))
}

fn draw(below: u64) -> u64 {
    let mut bytes = [0; 8];
    Sim::fill_random(&mut bytes);
    u64::from_le_bytes(bytes) % below
}

fn options() -> Options {
    Options {
        segment_bytes: 64 << 10,
        max_batch_bytes: 8 << 10,
        max_waiting_bytes: 40 << 10,
        retry: Duration::from_millis(5),
        ..Options::new("/data/journal")
    }
}

/// One start of the program: looks at what is there, then appends until it cannot or is ended.
async fn program(model: Shared, opened: Arc<Notify>) {
    let mut found = Vec::new();
    let visit = |position, record: &[u8]| {
        found.push((position, record.to_vec()));
        Ok(())
    };
    let (journal, writer) = journal::open::<Sim>(options(), None, visit).await.expect("opens");
    with(&model, |model| model.check(&journal, &found));
    let changed = Arc::new(Notify::new());
    journal.watch(changed.clone());
    let _writer = Sim::spawn(writer.run(Shutdown::new()));
    opened.notify();
    while journal.state().is_running() {
        match draw(10) {
            0 | 1 => Sim::sleep(Duration::from_micros(draw(20_000))).await,
            2 => release(&journal, &model),
            3 | 4 => wait(&journal, &model, &changed).await,
            _ => {
                if !append(&journal, &model) {
                    changed.notified().await;
                }
            }
        }
    }
}

/// `false` when there is no room now.
fn append(journal: &Journal, model: &Shared) -> bool {
    let records: Vec<Vec<u8>> = (0..1 + draw(4))
        .map(|_| {
            let len = if draw(8) == 0 { draw(9_000) } else { draw(300) };
            let seed = draw(256);
            (0..len).map(|at| (seed ^ at.wrapping_mul(7)) as u8).collect()
        })
        .collect();
    let mut batch = Batch::new();
    let places: Vec<_> =
        records.iter().map(|record| batch.push(|out| out.extend_from_slice(record))).collect();
    let class = if draw(4) == 0 { Class::Always } else { Class::New };
    match journal.append(&mut batch, class) {
        Ok(appended) => {
            let placed = places.into_iter().map(|place| appended.at(place)).zip(records);
            with(model, |model| model.batches.push(placed.collect()));
            true
        }
        Err(Refused::Busy) => false,
        Err(_) => !journal.state().is_running(),
    }
}

async fn wait(journal: &Journal, model: &Shared, changed: &Notify) {
    let (last, batches) = (journal.last(), with(model, |model| model.batches.len()));
    while journal.durable() < last {
        if !journal.state().is_running() {
            return;
        }
        changed.notified().await;
    }
    with(model, |model| model.durable = model.durable.max(batches));
}

fn release(journal: &Journal, model: &Shared) {
    with(model, |model| {
        if model.batches.len() > 20 {
            let index = draw(model.batches.len() as u64 - 10) as usize;
            let position = model.batches[index][0].0;
            journal.release_before(position);
            model.released = model.released.max(journal.segment_of(position));
        }
    });
}

impl Model {
    /// Compares with what was found, and goes on from it.
    fn check(&mut self, journal: &Journal, found: &[Record]) {
        let segment = |batch: &[Record]| journal.segment_of(batch[0].0);
        let gone = match found.first() {
            Some((first, _)) => self.batches.iter().take_while(|it| it[0].0 < *first).count(),
            None => self.batches.iter().take_while(|it| segment(it) < self.released).count(),
        };
        assert!(
            self.batches[..gone].iter().all(|batch| segment(batch) < self.released),
            "a segment is gone that nobody released"
        );
        let (mut rest, mut whole) = (found, gone);
        while !rest.is_empty() {
            let batch = self.batches.get(whole).expect("nothing is invented");
            assert!(rest.starts_with(batch), "batch {whole} is not as it was");
            rest = &rest[batch.len()..];
            whole += 1;
        }
        assert!(whole >= self.durable, "{whole} batches, but {} were durable", self.durable);
        self.batches.truncate(whole);
        self.batches.drain(..gone);
        // The journal takes for durable what it has found.
        self.durable = self.batches.len();
        self.checked += 1;
    }
}

/// Starts the program again and again and lets something happen to it.
async fn history(control: Control) -> usize {
    let model = Shared::default();
    for _ in 0..STARTS {
        let opened = Arc::new(Notify::new());
        let (of_program, told) = (model.clone(), opened.clone());
        let cores = control.start_node(NODE, 1, move |_| program(of_program.clone(), told.clone()));
        let running = Sim::spawn(cores.join());
        // Starting may be interrupted, too.
        if draw(5) > 0 {
            opened.notified().await;
            disturb(control).await;
        }
        Sim::sleep(Duration::from_micros(draw(300_000))).await;
        control.crash(NODE, if draw(3) == 0 { Crash::Process } else { Crash::Power });
        control.set_disk_capacity(NODE, None);
        if let Err(panic) = running.await.expect("no panic outside") {
            assert!(panic.0.contains("dropped together with"), "{panic}");
        }
    }
    with(&model, |model| model.checked)
}

async fn disturb(control: Control) {
    let op = [Op::Write, Op::Sync, Op::Allocate, Op::Rename, Op::SyncDir, Op::Remove];
    match draw(6) {
        0 => {
            let op = op[draw(6) as usize];
            control.fail_disk(NODE, op, "", draw(20), ErrorKind::Other);
        }
        1 => {
            let used: u64 = control.files(NODE).iter().map(|(_, len)| len).sum();
            control.set_disk_capacity(NODE, Some(used + draw(64 << 10)));
            Sim::sleep(Duration::from_micros(draw(300_000))).await;
            control.set_disk_capacity(NODE, None);
        }
        2 => control.slow_disk(NODE, Duration::from_micros(draw(100_000))),
        _ => {}
    }
}

/// What came out of one seed: its digest, what happened, and how many starts looked at the journal.
fn run(seed: u64) -> (u64, Coverage, usize) {
    let world = World::new(seed, Config::default());
    let control = world.control();
    let checked = world.block_on(history(control)).expect("the world comes to its end");
    (control.digest(), control.coverage(), checked)
}

#[test]
fn what_was_durable_is_there_whatever_happens() {
    let (mut coverage, mut checked) = (Coverage::default(), 0);
    for seed in 0..HISTORIES {
        let (_, happened, starts) = run(seed);
        coverage.merge(&happened);
        checked += starts;
    }
    assert!(checked as u64 > HISTORIES * STARTS as u64 / 2, "{checked} starts");
    let wanted = [
        Fault::PowerCut,
        Fault::ProcessKilled,
        Fault::TornWrite,
        Fault::UnsyncedLost,
        Fault::NameLost,
        Fault::DiskError,
        Fault::DiskFull,
        Fault::ShortDiskWrite,
    ];
    for fault in wanted {
        assert!(coverage.count(fault) > 0, "{fault:?} never happened: {coverage}");
    }
}

#[test]
fn a_seed_has_one_history() {
    for seed in [5, 77] {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}

/// More histories: `JOURNAL_SEEDS=10000 cargo test -p rt-sim --release --test journal -- --ignored`.
#[test]
#[ignore = "as long as it is told to"]
fn many_histories() {
    let seeds = std::env::var("JOURNAL_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    for seed in 0..seeds.unwrap_or(1_000) {
        let result = std::panic::catch_unwind(|| run(seed));
        assert!(result.is_ok(), "seed {seed}");
    }
}
