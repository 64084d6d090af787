//! One connection's state, which dies with it.

use bytes::BytesMut;
use mqtt::protocol::{IncomingAliases, OutgoingAliases};
use mqtt::wire::Version;

use super::SessionKey;
use super::auth::ConnAccess;
use super::guesses::Origin;
use super::outbox::Outbox;
use super::pressure::Pause;
use super::steps::ConnectTimes;
use crate::config::Level;
use crate::stats::ShardStats;

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No CONNECT yet.
    Handshake,
    /// CONNECT came; no CONNACK yet, because the client has to prove who it is.
    Authenticating,
    /// Connected.
    Open,
    /// No longer served: what is owed is written, then it ends.
    Closing,
}

/// Bytes of an unfinished packet that count as a sign of life.
pub const PROGRESS_BYTES: u32 = 128;

/// See the module's head.
#[derive(Debug)]
pub struct Conn {
    pub number: u64,
    /// Valid while `phase` is `Open`.
    pub session: SessionKey,
    pub phase: Phase,
    pub version: Version,
    pub origin: Origin,
    /// In the shard's dirty list.
    pub dirty: bool,
    /// A writer holds it.
    pub writing: bool,
    /// The reader has ended.
    pub reader_done: bool,
    /// The writing direction was ended.
    pub finished: bool,
    /// A write failed.
    pub broken: bool,
    /// Its outbox was seen more than half full and counted.
    pub slow: bool,
    /// Reason strings are welcome.
    pub problem_information: bool,
    /// Unacknowledged messages that may be sent to it.
    pub window: u16,
    pub max_packet_size_bytes: u32,
    /// Silence that ends it; 0 for none.
    pub keep_alive_ms: u32,
    /// Bytes read since it began to close.
    pub drained_bytes: u32,
    /// When its last packet ended, or a packet under way last made progress.
    pub last_read_ms: u64,
    /// Why its reader is stopped, if it is.
    pub pause: Option<Pause>,
    /// Acknowledgements that it waits for.
    pub owed: u32,
    /// What is promised about the messages that it publishes.
    pub level: Level,
    /// Bytes read since its last turn ended.
    pub turn_bytes: u32,
    /// QoS 2 identifiers taken on this connection and not released.
    pub open_qos2: u16,
    /// Bytes of an unfinished packet since then.
    pub progress_bytes: u32,
    /// When it must be gone, once closing.
    pub close_by_ms: u64,
    /// The earliest timer entry that is armed for it.
    pub timer_at_ms: u64,
    pub outbox: Outbox,
    /// An unfinished packet, or all that follows a CONNECT whose password is being verified.
    pub partial: Option<BytesMut>,
    pub access: Option<Box<ConnAccess>>,
    /// Until CONNACK is written, where steps are measured.
    pub times: Option<Box<ConnectTimes>>,
    /// Topic aliases that the client defined.
    pub aliases: Option<Box<IncomingAliases>>,
    /// Topic aliases that this server defined, for a client that takes them.
    pub own_aliases: Option<Box<OutgoingAliases>>,
}

impl Conn {
    pub fn new(number: u64, now_ms: u64) -> Self {
        Self {
            number,
            session: SessionKey(u32::MAX),
            phase: Phase::Handshake,
            version: Version::V3_1_1,
            origin: Origin::LOCAL,
            dirty: false,
            writing: false,
            reader_done: false,
            finished: false,
            broken: false,
            slow: false,
            problem_information: false,
            window: 0,
            max_packet_size_bytes: u32::MAX,
            keep_alive_ms: 0,
            drained_bytes: 0,
            last_read_ms: now_ms,
            pause: None,
            owed: 0,
            level: Level::default(),
            turn_bytes: 0,
            open_qos2: 0,
            progress_bytes: 0,
            close_by_ms: 0,
            timer_at_ms: u64::MAX,
            outbox: Outbox::default(),
            partial: None,
            access: None,
            times: None,
            aliases: None,
            own_aliases: None,
        }
    }

    /// Something was put into the outbox, which has a bound of `max_outbox_bytes`.
    #[inline]
    pub fn note_slow(&mut self, max_outbox_bytes: usize, stats: &ShardStats) {
        if !self.slow && self.outbox.len_bytes() > max_outbox_bytes / 2 {
            self.slow = true;
            stats.slow_outboxes.add(1);
        }
    }

    /// The outbox was emptied.
    #[inline]
    pub fn not_slow(&mut self, stats: &ShardStats) {
        if std::mem::take(&mut self.slow) {
            stats.slow_outboxes.sub(1);
        }
    }

    /// A whole packet arrived.
    #[inline]
    pub fn sign_of_life(&mut self, now_ms: u64) {
        self.last_read_ms = now_ms;
        self.progress_bytes = 0;
    }

    /// Bytes of an unfinished packet arrived. Keep-alive counts packets [MQTT-3.1.2-22], but a
    /// long PUBLISH on a slow link is not silence; a few bytes now and then are.
    pub fn progress(&mut self, bytes: usize, now_ms: u64) {
        self.progress_bytes = self.progress_bytes.saturating_add(bytes as u32);
        if self.progress_bytes >= PROGRESS_BYTES {
            self.sign_of_life(now_ms);
        }
    }
}
