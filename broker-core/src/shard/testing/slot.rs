//! One connection as its client sees it, and as the tasks of `net` carry it.

use mqtt::wire::{Frame, Packet, Version, decode_from_server, peek};

use super::super::{ConnKey, Output, Shard, Write};
use super::MAX_TURNS;

pub struct Slot {
    pub shard: usize,
    pub key: ConnKey,
    /// What the grammar speaks on it.
    pub version: Version,
    /// What its reader does.
    pub reader: Reader,
    /// Bytes sent and not read by the broker, because its reader is stopped.
    pub unread: Vec<u8>,
    /// Bytes received and not decoded yet.
    received: Vec<u8>,
    /// The server's last message of an exchange.
    pub challenge: Option<String>,
    /// Its socket takes nothing.
    pub stuck: bool,
    /// What it did not take.
    pub waiting: Option<Output>,
    /// The next write fails.
    pub fails: bool,
    /// The broker ended its direction.
    finished: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    Reads,
    /// Goes on after the other tasks.
    Yields,
    /// Waits until it may go on.
    Waits,
    /// Waits for the result of a verification.
    Verifies,
    /// Told the shard that it ended.
    Ended,
}

impl Slot {
    pub fn new(shard: usize, key: ConnKey, version: Version) -> Self {
        Self {
            shard,
            key,
            version,
            reader: Reader::Reads,
            unread: Vec::new(),
            received: Vec::new(),
            challenge: None,
            stuck: false,
            waiting: None,
            fails: false,
            finished: false,
        }
    }

    /// Writes what the connection has, until it has no more or its socket takes nothing.
    pub fn drain(&mut self, shard: &mut Shard, now_ms: u64) {
        for _ in 0..MAX_TURNS {
            match shard.next_write(self.key, now_ms) {
                Write::Idle => return,
                Write::Finish => self.finished = true,
                Write::Output(output) if self.fails => {
                    shard.on_written(self.key, output, false, now_ms);
                }
                Write::Output(output) if self.stuck => {
                    self.waiting = Some(output);
                    return;
                }
                Write::Output(output) => {
                    assert!(!self.finished, "output behind the end");
                    self.take(&output);
                    shard.on_written(self.key, output, true, now_ms);
                }
            }
        }
        panic!("a writer without an end");
    }

    /// The socket is gone: the reader ends, and so does a write under way.
    pub fn end(&mut self, shard: &mut Shard, now_ms: u64) {
        if self.reader != Reader::Ended {
            self.reader = Reader::Ended;
            shard.on_end(self.key, now_ms);
        }
        // What the socket did not take so far, it never will.
        self.fails |= std::mem::take(&mut self.stuck);
        if let Some(output) = self.waiting.take() {
            shard.on_written(self.key, output, false, now_ms);
            self.drain(shard, now_ms);
        }
    }

    /// The client receives, and must understand.
    pub fn take(&mut self, output: &Output) {
        match output {
            Output::Block(block) => self.received.extend_from_slice(block),
            Output::Pieces(pieces) => {
                for piece in pieces {
                    self.received.extend_from_slice(rt_abstract::IoBuf::as_slice(piece));
                }
            }
        }
        let mut at = 0;
        while let Ok(Frame::Complete { total_bytes, .. }) = peek(&self.received[at..], u32::MAX) {
            let frame = &self.received[at..at + total_bytes];
            // Raw bytes may have said CONNECT in another version than the grammar knows.
            let understood = [self.version, Version::V5, Version::V3_1_1, Version::V3_1]
                .into_iter()
                .find_map(|version| decode_from_server(frame, version).ok());
            match understood {
                Some(Packet::Auth(auth)) => {
                    let data = auth.properties.auth_data().unwrap_or_default();
                    self.challenge = str::from_utf8(data).ok().map(String::from);
                }
                Some(_) => {}
                None => panic!("{:?} cannot read {frame:02x?}", self.version),
            }
            at += total_bytes;
        }
        self.received.drain(..at);
        assert!(self.received.is_empty(), "an output ends inside a packet");
    }
}
