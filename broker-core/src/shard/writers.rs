//! What the writers of connections ask and report: who has something to write, what, and how it went.

use super::conn::Phase;
use super::{ConnKey, Output, Shard, Write};

impl Shard {
    /// The next connection that wants to write and has no writer.
    pub fn take_dirty(&mut self) -> Option<ConnKey> {
        let key = self.dirty.pop_front()?;
        if let Some(conn) = self.conns.get_mut(key.0 as usize) {
            conn.dirty = false;
            conn.writing = true;
        }
        Some(key)
    }

    /// Whether any connection wants to write.
    pub fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// The writer cannot start yet: the socket has not been split. Whoever splits it calls
    /// [`Shard::wake_writer`].
    pub fn defer_writer(&mut self, key: ConnKey) {
        if let Some(conn) = self.conns.get_mut(key.0 as usize) {
            conn.writing = false;
        }
    }

    /// Lists the connection as having something to write.
    pub fn wake_writer(&mut self, key: ConnKey) {
        self.mark_dirty(key);
    }

    /// What the connection's writer does next.
    pub fn next_write(&mut self, key: ConnKey, now_ms: u64) -> Write {
        let Some(conn) = self.conns.get_mut(key.0 as usize) else { return Write::Idle };
        if let Some(output) = conn.outbox.take() {
            conn.not_slow(&self.stats);
            if conn.times.is_some() {
                self.end_connect(key);
            }
            return Write::Output(output);
        }
        if conn.phase == Phase::Closing && !conn.finished && !conn.broken {
            conn.finished = true;
            return Write::Finish;
        }
        conn.writing = false;
        if conn.phase == Phase::Open {
            let session = conn.session;
            if self.sessions.get(session.0 as usize).is_some_and(|entry| !entry.scans.is_empty()) {
                self.pump(session, now_ms);
            }
        }
        self.free_if_done(key);
        Write::Idle
    }

    /// A write ended. After an error nothing more is written.
    pub fn on_written(&mut self, key: ConnKey, output: Output, ok: bool, now_ms: u64) {
        self.stats.bytes_sent.add(output.len_bytes() as u64);
        match output {
            Output::Block(block) => self.blocks.put(block),
            Output::Pieces(pieces) => {
                for piece in pieces {
                    if let rt_abstract::Piece::Owned(block) = piece {
                        self.blocks.put(block);
                    }
                }
            }
        }
        let Some(conn) = self.conns.get_mut(key.0 as usize) else { return };
        if !ok {
            conn.outbox.clear();
            conn.not_slow(&self.stats);
            conn.broken = true;
            self.kills.push(key);
        } else if conn.phase == Phase::Open {
            let session = conn.session;
            self.pump(session, now_ms);
        }
    }
}
