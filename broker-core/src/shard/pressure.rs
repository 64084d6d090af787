//! Back-pressure: when a connection's reader stops, and when it goes on.
//!
//! A reader stops for five reasons: it published to a shard whose mailbox is full; what it published
//! has to be recorded, and the journal is behind; its client does not read the answers it asks for;
//! what it asked for waits for its commit; or it has had its turn and others wait. Stopping never loses
//! bytes: they stay in the connection's unfinished packet, or in the socket. While it is stopped the
//! client's silence is not its own, so its keep-alive does not run.

use super::conn::{Conn, Phase};
use super::{ConnKey, Lane, Mail, Next, Shard};

/// Packets handled before the other connections get a turn.
pub(super) const PACKETS_PER_TURN: usize = 512;
/// Bytes read from one connection before the others get a turn.
const BYTES_PER_TURN: u32 = 64 << 10;
/// How far answers may go beyond `max_outbox_bytes`, which bounds deliveries.
const ANSWER_BYTES: usize = 64 << 10;

/// Why a reader is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Mail of this shard waits for room in another shard's mailbox.
    Mail,
    /// The journal is behind.
    Journal,
    /// The client does not read its answers.
    Output,
    /// What it asked for waits for its commit.
    Commit,
}

/// What a turn of a connection made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Made {
    /// Mail for other shards.
    pub(super) mail: bool,
    /// Records that take space.
    pub(super) records: bool,
    /// Acknowledgements that wait.
    pub(super) owed: bool,
}

impl Shard {
    /// Sends mail to another shard: posted when the work at hand is done.
    pub(super) fn send_mail(&mut self, shard: u8, mail: Mail) {
        self.mail_sent += 1;
        self.mail[usize::from(shard)].push_back(mail);
    }

    /// Moves waiting mail to its mailboxes; the first destination that is full.
    pub fn post_mail(&mut self) -> Option<u8> {
        let mut full = None;
        for (shard, mail) in self.mail.iter_mut().enumerate() {
            if mail.is_empty() {
                continue;
            }
            self.stats.mail_batches.add(1);
            self.fabric.post(shard, Lane::Data, mail);
            if !mail.is_empty() && full.is_none() {
                full = Some(shard as u8);
            }
        }
        full
    }

    /// Whether mail waits that did not find room. Somebody must then wait for it and post again.
    pub fn is_congested(&self) -> bool {
        self.mail.iter().any(|mail| !mail.is_empty())
    }

    /// Whether no further packet may be handled now: the rest waits. One packet always may, or a
    /// CONNECT would wait for others' mail.
    pub(super) fn turn_is_over(&self, handled: usize) -> bool {
        let mail_is_full =
            || self.mail.iter().any(|mail| mail.len() >= self.limits.max_mailbox_messages);
        handled >= PACKETS_PER_TURN || (handled > 0 && (self.is_backed_up() || mail_is_full()))
    }

    /// What the reader does after a turn that made something or not.
    pub(super) fn after_turn(&mut self, key: ConnKey, read: usize, made: Made) -> Next {
        let congested = made.mail && self.is_congested();
        let backed_up =
            (made.records && self.is_backed_up()) || (made.owed && self.owes_too_much());
        let max_output = self.limits.max_outbox_bytes.saturating_add(ANSWER_BYTES);
        let Some(conn) = self.conns.get_mut(key.0 as usize) else { return Next::Drain };
        conn.turn_bytes = conn.turn_bytes.saturating_add(read as u32);
        if conn.phase == Phase::Closing {
            return Next::Drain;
        }
        if congested {
            self.stats.publisher_pauses.add(1);
            conn.pause = Some(Pause::Mail);
            return Next::Wait;
        }
        if backed_up {
            self.stats.journal_pauses.add(1);
            conn.pause = Some(Pause::Journal);
            return Next::Wait;
        }
        if conn.outbox.len_bytes() > max_output {
            conn.pause = Some(Pause::Output);
            return Next::Wait;
        }
        if conn.turn_bytes >= BYTES_PER_TURN {
            conn.turn_bytes = 0;
            return Next::Again;
        }
        Next::Read
    }

    /// Whether a stopped reader may go on; it then does so at once.
    pub fn may_read(&mut self, key: ConnKey, now_ms: u64) -> bool {
        let (congested, backed_up) = (self.is_congested(), self.is_backed_up());
        let max_output = self.limits.max_outbox_bytes;
        let Some(conn) = self.conns.get_mut(key.0 as usize) else { return true };
        let stopped = match conn.pause {
            _ if conn.phase == Phase::Closing || conn.broken => false,
            None | Some(Pause::Commit) => false, // that reader is not stopped here
            Some(Pause::Mail) => congested,
            Some(Pause::Journal) => backed_up,
            Some(Pause::Output) => conn.outbox.len_bytes() > max_output,
        };
        if !stopped && conn.pause.take().is_some() {
            conn.sign_of_life(now_ms);
        }
        !stopped
    }

    /// Handles what was left over when a turn ended.
    pub fn resume(&mut self, key: ConnKey, now_ms: u64) -> Next {
        let rest = self.conns.get_mut(key.0 as usize).and_then(|conn| conn.partial.take());
        match rest {
            Some(rest) => self.on_bytes(key, 0, rest, now_ms).next,
            None => Next::Read,
        }
    }
}

impl Conn {
    /// When its silence is too long, if anything is; not while its own reader is stopped.
    pub(super) fn silence_ends_ms(&self, now_ms: u64) -> u64 {
        let since_ms = if self.pause.is_some() { now_ms } else { self.last_read_ms };
        since_ms + u64::from(self.keep_alive_ms)
    }
}
