//! One connection's state, which dies with it.

use bytes::BytesMut;
use mqtt::protocol::IncomingAliases;
use mqtt::wire::Version;

use super::SessionKey;
use super::outbox::Outbox;

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No CONNECT yet.
    Handshake,
    /// Connected.
    Open,
    /// No longer served: what is owed is written, then it ends.
    Closing,
}

/// See the module's head.
#[derive(Debug)]
pub struct Conn {
    pub number: u64,
    /// Valid while `phase` is `Open`.
    pub session: SessionKey,
    pub phase: Phase,
    pub version: Version,
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
    /// Reason strings are welcome.
    pub problem_information: bool,
    /// Unacknowledged messages that may be sent to it.
    pub window: u16,
    pub max_packet_size_bytes: u32,
    /// Silence that ends it; 0 for none.
    pub keep_alive_ms: u32,
    /// Bytes read since it began to close.
    pub drained_bytes: u32,
    pub last_read_ms: u64,
    /// When it must be gone, once closing.
    pub close_by_ms: u64,
    /// The earliest timer entry that is armed for it.
    pub timer_at_ms: u64,
    pub outbox: Outbox,
    /// An unfinished packet.
    pub partial: Option<BytesMut>,
    pub aliases: Option<Box<IncomingAliases>>,
}

impl Conn {
    pub fn new(number: u64, now_ms: u64) -> Self {
        Self {
            number,
            session: SessionKey(u32::MAX),
            phase: Phase::Handshake,
            version: Version::V3_1_1,
            dirty: false,
            writing: false,
            reader_done: false,
            finished: false,
            broken: false,
            problem_information: false,
            window: 0,
            max_packet_size_bytes: u32::MAX,
            keep_alive_ms: 0,
            drained_bytes: 0,
            last_read_ms: now_ms,
            close_by_ms: 0,
            timer_at_ms: u64::MAX,
            outbox: Outbox::default(),
            partial: None,
            aliases: None,
        }
    }
}
