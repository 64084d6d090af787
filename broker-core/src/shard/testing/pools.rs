//! A shard's pools of buffers alone, for measuring them.

use std::sync::Arc;

use mqtt::routing::SharedRoutes;
use rt_abstract::mailbox;

use crate::config::Limits;
use crate::retained::Retained;
use crate::shard::outbox::Outbox;
use crate::shard::{ConnKey, Fabric, Shard};

/// A shard with one connection, whose buffers go round.
#[derive(Debug)]
pub struct Pools {
    shard: Shard,
    key: ConnKey,
    outbox: Outbox,
}

impl Pools {
    /// Pools that are empty.
    pub fn new() -> Self {
        let limits = Limits::default();
        let (sender, _) = mailbox([1, 1]);
        let retained = Retained::new(0, 0);
        let fabric = Arc::new(Fabric::new(vec![sender], retained, SharedRoutes::new(1), [7, 8]));
        let mut shard = Shard::new(0, limits, fabric, Arc::default(), 1, 0);
        let key = shard.open(0).expect("it is the first connection");
        Self { shard, key, outbox: Outbox::default() }
    }

    /// A read of `bytes`, of which `used` are complete packets: the connection keeps the rest.
    pub fn read(&mut self, bytes: &[u8], used: usize) {
        let mut buffer = self.shard.read_buffer(self.key);
        buffer.extend_from_slice(bytes);
        self.shard.keep_rest(self.key, buffer, used);
    }

    /// A read that brings the end of what the connection keeps, if it keeps anything.
    pub fn finish_packet(&mut self) {
        let buffer = self.shard.read_buffer(self.key);
        let used = buffer.len();
        self.shard.keep_rest(self.key, buffer, used);
    }

    /// Encodes `bytes` into a block, and writes it; how many were written.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        self.outbox.block(&mut self.shard.blocks).extend_from_slice(bytes);
        let Some(output) = self.outbox.take() else { return 0 };
        let written = output.len_bytes();
        self.shard.on_written(self.key, output, true, 0);
        written
    }
}

impl Default for Pools {
    fn default() -> Self {
        Self::new()
    }
}
