//! What the cases share: a journal with its writer running, and what was found in it.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use journal::{
    Appended, Batch, Class, Journal, JournalError, Mark, OpenError, Options, Position, Refused,
    Ticket,
};
use rt_abstract::{Notify, Runtime, Shutdown};

pub const SEGMENT_BYTES: u64 = 64 << 10;

/// A record and where it lies.
pub type Record = (Position, Body);

/// The bytes of a record, which are not shown when a comparison fails.
#[derive(Clone, PartialEq, Eq)]
pub struct Body(pub Vec<u8>);

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// As `in_each_column`, for the readiness drivers of the completion backends.
macro_rules! in_fallback_too {
    ($($case:ident),+ $(,)?) => {
        #[cfg(feature = "rt-monoio")]
        mod monoio_fallback {
            $(#[test]
            fn $case() {
                super::$case::<rt_monoio::Monoio>(&rt_abstract::RunOptions {
                    force_fallback: true,
                    ..rt_abstract::RunOptions::default()
                });
            })+
        }
        #[cfg(feature = "rt-compio")]
        mod compio_fallback {
            $(#[test]
            fn $case() {
                super::$case::<rt_compio::Compio>(&rt_abstract::RunOptions {
                    force_fallback: true,
                    ..rt_abstract::RunOptions::default()
                });
            })+
        }
    };
}
pub(crate) use in_fallback_too;

/// Small segments, so that a case meets several.
pub fn small(dir: &Path) -> Options {
    Options {
        segment_bytes: SEGMENT_BYTES,
        max_batch_bytes: 8 << 10,
        max_waiting_bytes: 40 << 10,
        retry: Duration::from_millis(5),
        ..Options::new(dir)
    }
}

/// A journal whose writer runs.
pub struct Running<R: Runtime> {
    pub journal: Journal,
    /// What was in it.
    pub found: Vec<Record>,
    changed: Arc<Notify>,
    stop: Shutdown,
    /// The handle alone could not be shared between threads.
    writer: Mutex<R::JoinHandle<Result<(), JournalError>>>,
}

impl<R: Runtime> Running<R> {
    pub async fn open(options: Options) -> Self {
        let mut found = Vec::new();
        let (journal, writer) = journal::open::<R>(options, None, |position, record| {
            found.push((position, Body(record.to_vec())));
            Ok(())
        })
        .await
        .expect("opens");
        let (changed, stop) = (Arc::new(Notify::new()), Shutdown::new());
        journal.watch(changed.clone());
        let writer = Mutex::new(R::spawn(writer.run(stop.clone())));
        Self { journal, found, changed, stop, writer }
    }

    /// Waits until `ready` says so; the watchdog bounds it.
    pub async fn until(&self, mut ready: impl FnMut(&Journal) -> bool) {
        while !ready(&self.journal) {
            self.changed.notified().await;
        }
    }

    pub async fn durable(&self, ticket: Ticket) {
        self.until(|journal| journal.durable() >= ticket).await;
    }

    /// Appends when there is room.
    pub async fn append(&self, records: &[Vec<u8>], class: Class) -> Vec<Record> {
        loop {
            match append(&self.journal, records, class) {
                Ok((_, placed)) => return placed,
                Err(Refused::Busy) => self.changed.notified().await,
                Err(refused) => panic!("{refused}"),
            }
        }
    }

    /// Appends and waits until it is durable.
    pub async fn commit(&self, records: &[Vec<u8>]) -> Vec<Record> {
        let placed = self.append(records, Class::New).await;
        let last = append(&self.journal, &[], Class::New).expect("is taken").0.ticket;
        self.durable(last).await;
        placed
    }

    pub async fn stop(self) -> Result<(), JournalError> {
        self.stop.trigger();
        self.end().await
    }

    /// Waits for the end of the writer.
    pub async fn end(self) -> Result<(), JournalError> {
        let Self { writer, .. } = self;
        writer.into_inner().expect("no panic").await.expect("no panic")
    }
}

/// Appends one batch; says where its records lie.
pub fn append(
    journal: &Journal,
    records: &[Vec<u8>],
    class: Class,
) -> Result<(Appended, Vec<Record>), Refused> {
    let mut batch = Batch::new();
    let places: Vec<_> =
        records.iter().map(|record| batch.push(|out| out.extend_from_slice(record))).collect();
    let bytes = batch.bytes();
    match journal.append(&mut batch, class) {
        Ok(appended) => {
            assert!(batch.is_empty() && batch.bytes() == 0);
            let placed = places.into_iter().map(|place| appended.at(place));
            Ok((appended, placed.zip(records.iter().cloned().map(Body)).collect()))
        }
        Err(refused) => {
            assert_eq!((batch.len(), batch.bytes()), (records.len(), bytes), "it is unchanged");
            Err(refused)
        }
    }
}

/// Opens and reads everything, without a writer.
pub async fn found<R: Runtime>(dir: &Path) -> Result<Vec<Record>, OpenError> {
    found_after::<R>(dir, None).await
}

pub async fn found_after<R: Runtime>(
    dir: &Path,
    after: Option<Mark>,
) -> Result<Vec<Record>, OpenError> {
    let mut found = Vec::new();
    let opened = journal::open::<R>(small(dir), after, |position, record| {
        found.push((position, Body(record.to_vec())));
        Ok(())
    });
    opened.await?;
    Ok(found)
}

/// Reads on from `after` what is durable: each frame with its records.
pub async fn swept<R: Runtime>(
    journal: &Journal,
    after: Option<Mark>,
) -> Result<Vec<(Mark, Vec<Record>)>, OpenError> {
    let mut sweep = journal.sweep::<R>(after);
    let mut all = Vec::new();
    loop {
        let mut found = Vec::new();
        let next = sweep.next(|position, record| {
            found.push((position, Body(record.to_vec())));
            Ok(())
        });
        match next.await? {
            Some(swept) => all.push((swept.mark, found)),
            None => break,
        }
    }
    assert!(sweep.is_over());
    Ok(all)
}

/// A record that differs from others.
pub fn record(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (seed.wrapping_mul(31) ^ at.wrapping_mul(7)) as u8).collect()
}

/// The file of a position, and the offset in it.
pub fn place(dir: &Path, position: Position) -> (std::path::PathBuf, u64) {
    let (segment, offset) = (position.get() / SEGMENT_BYTES, position.get() % SEGMENT_BYTES);
    (dir.join(format!("{segment:016x}.log")), offset)
}
