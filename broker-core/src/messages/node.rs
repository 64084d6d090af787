//! What the shards of a node share about recorded messages.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use journal::{Batch, Class, Journal, Position, State, Usage};
use mqtt::topic;
use rt_abstract::Notify;

use super::live::Live;
use super::record::{Origin, Record};
use super::unsettled::Unsettled;
use crate::config::{DurabilityConfig, Level};
use crate::stats::{Kind, Metric};

/// A unit of records is appended when it has grown to this, also in the middle of a turn; to a
/// fourth of a segment where that is less.
const MAX_UNIT_BYTES: usize = 1 << 20;

/// Ended sessions per unit: some kilobytes, which fit into any segment.
const ENDED_PER_UNIT: usize = 256;

/// How mail is counted between two shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum MailKind {
    /// A publish, as its publisher's shard routed it.
    First = 0,
    /// One that the shard it was sent to sends on. Counted apart, so that of two shards that send
    /// on each other's mail neither waits for the other.
    Forwarded = 1,
}

const KINDS: usize = 2;

/// What a start has read of the journal.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadAtStart {
    /// Records.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Checkpoints made since the start.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints {
    made: AtomicU64,
    bytes: AtomicU64,
    read_bytes: AtomicU64,
}

impl Checkpoints {
    /// One more, of so many bytes, for which so many of the journal were read.
    pub fn made(&self, bytes: u64, read_bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.read_bytes.fetch_add(read_bytes, Ordering::Relaxed);
        self.made.fetch_add(1, Ordering::Relaxed);
    }
}

/// The journal with what shards tell each other about it.
pub struct Messages {
    journal: Journal,
    read_at_start: ReadAtStart,
    checkpoints: Checkpoints,
    live: Live,
    unsettled: Unsettled,
    levels: DurabilityConfig,
    shards: usize,
    /// Mail of one shard that another has appended what it had to, by `cell`. Each has one writer.
    confirmed: Vec<AtomicU64>,
    /// Sessions that outlive the process, per shard.
    sessions: Vec<AtomicUsize>,
    /// The same, of all shards.
    all_sessions: AtomicUsize,
    /// Wakes the task of a shard that looks at what has become durable or was confirmed.
    wakes: Vec<Arc<Notify>>,
    /// Per shard, a position: of its publishers' QoS 2 messages that lie before, each has its record of
    /// being taken, or was found at start. Each has one writer.
    settled: Vec<AtomicU64>,
    /// Of what is recorded, how much more may be moved.
    moved_percent: u8,
    moved_records: AtomicU64,
    moved_bytes: AtomicU64,
}

impl Messages {
    /// Over a journal that was just opened, for `shards` shards. `moved_percent` is
    /// [`Config::moved_percent`](crate::Config::moved_percent).
    pub fn new(
        journal: Journal,
        shards: usize,
        levels: DurabilityConfig,
        moved_percent: u8,
    ) -> Self {
        let wakes: Vec<Arc<Notify>> = (0..shards).map(|_| Arc::new(Notify::new())).collect();
        wakes.iter().for_each(|wake| journal.watch(wake.clone()));
        let oldest = journal.segment_of(journal.usage().oldest);
        Self {
            live: Live::new(oldest, shards),
            unsettled: Unsettled::default(),
            levels,
            shards,
            confirmed: (0..shards * shards * KINDS).map(|_| AtomicU64::new(0)).collect(),
            sessions: (0..shards).map(|_| AtomicUsize::new(0)).collect(),
            all_sessions: AtomicUsize::new(0),
            wakes,
            settled: (0..shards).map(|_| AtomicU64::new(0)).collect(),
            moved_percent,
            moved_records: AtomicU64::new(0),
            moved_bytes: AtomicU64::new(0),
            journal,
            read_at_start: ReadAtStart::default(),
            checkpoints: Checkpoints::default(),
        }
    }

    /// What was read at start.
    pub(crate) fn set_read_at_start(&mut self, read: ReadAtStart) {
        self.read_at_start = read;
    }

    pub(crate) fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    /// The journal's figures.
    pub fn usage(&self) -> Usage {
        self.journal.usage()
    }

    /// Records that are still owed to somebody.
    pub fn live_records(&self) -> u64 {
        self.live.records()
    }

    /// What there is to be known about the journal.
    pub fn metrics(&self) -> impl Iterator<Item = Metric> + use<> {
        let usage = self.usage();
        let metric = |kind, name, help, value| Metric { name, kind, help, value };
        let gauge = |name, help, value| metric(Kind::Gauge, name, help, value);
        let counter = |name, help, value| metric(Kind::Counter, name, help, value);
        let Checkpoints { made, bytes, read_bytes } = &self.checkpoints;
        let [made, bytes, read_bytes] =
            [made, bytes, read_bytes].map(|it| it.load(Ordering::Relaxed));
        [
            gauge("journal_segments", "Segments of the journal in use", usage.segments),
            gauge(
                "journal_disk_bytes",
                "Size of the journal, spare segments included",
                usage.disk_bytes,
            ),
            gauge(
                "journal_waiting_bytes",
                "Bytes recorded and not on the disk",
                usage.waiting_bytes,
            ),
            gauge("journal_live_records", "Records that somebody is owed", self.live_records()),
            counter("journal_batches", "Batches of records", usage.batches),
            counter("journal_records", "Records", usage.records),
            counter("journal_syncs", "Syncs of the journal", usage.syncs),
            counter("journal_synced_bytes", "Bytes synced, padding included", usage.synced_bytes),
            counter(
                "journal_moved_records",
                "Records moved out of old segments",
                self.moved_records.load(Ordering::Relaxed),
            ),
            counter("journal_moved_bytes", "Bytes of the records moved", self.moved_bytes()),
            counter("journal_refused", "Batches that had to wait for room", usage.refused),
            gauge(
                "journal_start_read_records",
                "Records of the journal that the start has read",
                self.read_at_start.records,
            ),
            gauge(
                "journal_start_read_bytes",
                "Bytes of the records that the start has read",
                self.read_at_start.bytes,
            ),
            counter("journal_checkpoints", "Checkpoints of the journal's index", made),
            counter("journal_checkpoint_bytes", "Bytes written for checkpoints", bytes),
            counter(
                "journal_checkpoint_read_bytes",
                "Bytes of the journal read for checkpoints",
                read_bytes,
            ),
        ]
        .into_iter()
    }

    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The ticket of the last unit in the journal, whoever appended it.
    pub(crate) fn last_ticket(&self) -> u64 {
        self.journal.last().get()
    }

    pub(crate) fn unsettled(&self) -> &Unsettled {
        &self.unsettled
    }

    /// Wakes one shard's task for what is stored.
    pub(crate) fn wake(&self, shard: usize) -> &Arc<Notify> {
        &self.wakes[shard]
    }

    /// The level of a topic on a listener of level `of_listener`: the first filter that matches
    /// decides.
    #[inline]
    pub(crate) fn level(&self, of_listener: Level, topic: &str) -> Level {
        if self.levels.topics.is_empty() {
            return of_listener;
        }
        let found = self.levels.topics.iter().find(|(filter, _)| topic::matches(filter, topic));
        found.map_or(of_listener, |(_, level)| *level)
    }

    /// The level where no listener says another.
    pub(crate) fn default_level(&self) -> Level {
        self.levels.level
    }

    /// A unit is complete with this many bytes.
    pub(crate) fn unit_bytes(&self) -> usize {
        MAX_UNIT_BYTES.min(self.journal.segment_bytes() as usize / 4)
    }

    /// The largest message that is recorded.
    pub(crate) fn max_message_bytes(&self) -> usize {
        self.journal.segment_bytes() as usize / 2
    }

    /// `by` has appended all that it had to for the first `count` pieces of mail of `from`.
    pub(crate) fn confirm(&self, from: u8, by: u8, kind: MailKind, count: u64) {
        self.confirmed[self.cell(from, by, kind)].store(count, Ordering::Release);
        self.wakes[usize::from(from)].notify();
    }

    /// The other side of [`Messages::confirm`].
    pub(crate) fn confirmed(&self, from: u8, by: u8, kind: MailKind) -> u64 {
        self.confirmed[self.cell(from, by, kind)].load(Ordering::Acquire)
    }

    /// Counts a session that outlives the process in or out. In before it can be subscribed: who
    /// finds its subscription finds it counted.
    pub(crate) fn count_session(&self, shard: u8, more: bool) {
        for sessions in [&self.sessions[usize::from(shard)], &self.all_sessions] {
            match more {
                true => sessions.fetch_add(1, Ordering::SeqCst),
                false => sessions.fetch_sub(1, Ordering::SeqCst),
            };
        }
    }

    /// Whether there is one at all: without, nothing is recorded and nobody waits.
    #[inline]
    pub(crate) fn has_any_session(&self) -> bool {
        self.all_sessions.load(Ordering::SeqCst) > 0
    }

    /// Whether a shard has any.
    #[inline]
    pub(crate) fn has_sessions(&self, shard: u8) -> bool {
        self.sessions[usize::from(shard)].load(Ordering::SeqCst) > 0
    }

    /// A shard is about to append: no segment that it may get goes before it has counted what it
    /// has there.
    pub(crate) fn begin_append(&self, shard: u8) {
        self.live.begin(shard, self.journal.segment_of(self.journal.usage().end));
    }

    /// Changes what is live, `at` being the position of the latest record, and lets segments go
    /// that nobody needs. All that the shard `appended` is counted with it.
    pub(crate) fn change_live(&self, changes: &[(u64, i64)], at: Position, appended: Option<u8>) {
        if let Some(segment) = self.live.change(changes, self.journal.segment_of(at), appended) {
            self.journal.release_before(self.journal.segment_start(segment));
        }
    }

    /// Live records that were found at start take so much of a segment.
    pub(crate) fn found(&self, segment: u64, bytes: u64) {
        self.live.found(segment, bytes);
    }

    /// Of the QoS 2 messages of a shard's publishers that lie before `position`, each has its record
    /// of being taken, or was found at start.
    pub(crate) fn set_settled(&self, shard: u8, position: u64) {
        self.settled[usize::from(shard)].store(position, Ordering::Release);
    }

    /// The position before which all that is live is to be moved to the end of the log; at the begin
    /// of the oldest segment, or before it, when nothing is.
    ///
    /// What is moved does not tell by which exchange it came in, so none lies there whose message may
    /// be sent again and would not be known, but for those that [`Messages::say_again`] is for.
    pub(crate) fn sparse_before(&self) -> Position {
        let journal = &self.journal;
        let end = journal.segment_of(self.settled_before());
        let current = journal.segment_of(journal.usage().end);
        let nearly_full = journal.state() == State::NearlyFull;
        let segment = self.live.sparse(end, current, journal.segment_bytes(), nearly_full);
        journal.segment_start(segment)
    }

    /// The begin of the segment before which all exchanges are settled, or were found at start.
    pub(crate) fn settled_before(&self) -> Position {
        let settled = self.settled.iter().map(|shard| shard.load(Ordering::Acquire)).min();
        let segment = self.journal.segment_of(Position::new(settled.unwrap_or(0)));
        self.journal.segment_start(segment)
    }

    /// Says again, at the end, what is known of exchanges found at start and not taken since, where it
    /// is said before `before`. The shard that calls it has nothing else to append.
    pub(crate) fn say_again(&self, shard: u8, before: Position) {
        if self.unsettled.is_empty() {
            return;
        }
        self.begin_append(shard);
        let mut last = self.journal.usage().oldest;
        let append = |said: &[(Origin, u64)]| {
            let mut batch = Batch::new();
            for &(origin, holder) in said {
                batch.push(|out| Record::Untaken(origin, holder).encode(out));
            }
            let (records, bytes) = (batch.len(), batch.bytes());
            last = self.journal.append(&mut batch, Class::Always).ok()?.base();
            self.count_moved(records, bytes);
            Some(self.journal.segment_of(last))
        };
        let changes = self.unsettled.say_again(self.journal.segment_of(before), append);
        self.change_live(&changes, last, Some(shard));
    }

    /// How much may be moved, in percent of what else is recorded.
    pub(crate) fn moved_percent(&self) -> u8 {
        self.moved_percent
    }

    /// Records are moved.
    pub(crate) fn count_moved(&self, records: usize, bytes: usize) {
        self.moved_records.fetch_add(records as u64, Ordering::Relaxed);
        self.moved_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// How much was moved so far.
    pub(crate) fn moved_bytes(&self) -> u64 {
        self.moved_bytes.load(Ordering::Relaxed)
    }

    /// Sessions that are not here any more, of those found at start: units that record it, to be
    /// appended in order. All shards have counted: what nobody needs makes room for them.
    pub(crate) fn end_sessions(&self, generations: &[u64]) -> impl Iterator<Item = Batch> {
        let ended = generations.iter().flat_map(|&it| self.unsettled.end_publisher(it));
        self.change_live(&ended.collect::<Vec<_>>(), self.journal.usage().end, None);
        generations.chunks(ENDED_PER_UNIT).map(|generations| {
            let mut batch = Batch::new();
            for &generation in generations {
                batch.push(|out| Record::Ended(generation).encode(out));
            }
            batch
        })
    }

    /// A shard has counted what it found at start.
    pub(crate) fn counted(&self) {
        self.live.counted();
    }

    fn cell(&self, from: u8, by: u8, kind: MailKind) -> usize {
        (usize::from(from) * self.shards + usize::from(by)) * KINDS + kind as usize
    }
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages").field("usage", &self.usage()).finish_non_exhaustive()
    }
}
