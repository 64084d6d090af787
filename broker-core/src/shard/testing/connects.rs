//! One shard's part in a CONNECT, from accept to the end of the connection, for measuring it.

use std::sync::Arc;

use meta::steps::{StepOptions, Steps};
use mqtt::routing::SharedRoutes;
use mqtt::wire::{Connect, Packet, Properties, Version, encode};
use rt_abstract::{Instant, mailbox};

use crate::config::Limits;
use crate::retained::Retained;
use crate::shard::{CONNECT_STEPS, Fabric, Shard, Write};

/// A shard to which clients come and go.
#[derive(Debug)]
pub struct Connects {
    shard: Shard,
    connect: Vec<u8>,
    steps: Arc<Steps>,
}

impl Connects {
    /// With the step clock `now`, or with none.
    pub fn new(now: Option<fn() -> Instant>) -> Self {
        let limits = Limits::default();
        let (sender, _) = mailbox([1, 1]);
        let retained = Retained::new(0, 0);
        let fabric = Arc::new(Fabric::new(vec![sender], retained, SharedRoutes::new(1), [7, 8]));
        let mut shard = Shard::new(0, limits, fabric, Arc::default(), 1, 0);
        let steps = Arc::new(Steps::new(&CONNECT_STEPS, 1, StepOptions::default()));
        if let Some(now) = now {
            shard.measure_steps(now, steps.clone());
        }
        let mut connect = Vec::new();
        let request = Connect {
            version: Version::V3_1_1,
            clean_start: true,
            keep_alive_s: 0,
            client_id: "a-client-of-the-plant",
            will: None,
            username: None,
            password: None,
            properties: Properties::EMPTY,
        };
        encode(&Packet::Connect(request), Version::V3_1_1, &mut connect);
        Self { shard, connect, steps }
    }

    /// A client connects, gets its CONNACK, and is gone.
    pub fn connect(&mut self) {
        let times = self.shard.accepted();
        let times = self.shard.begin_building(times);
        let Some(key) = self.shard.open(0) else { return };
        self.shard.set_times(key, times);
        let mut buffer = self.shard.read_buffer(key);
        buffer.extend_from_slice(&self.connect);
        self.shard.on_bytes(key, self.connect.len(), buffer, 0);
        while let Some(key) = self.shard.take_dirty() {
            while let Write::Output(output) = self.shard.next_write(key, 0) {
                self.shard.on_written(key, output, true, 0);
            }
        }
        self.shard.on_end(key, 0);
        while let Some(key) = self.shard.take_dirty() {
            while !matches!(self.shard.next_write(key, 0), Write::Idle) {}
        }
        self.shard.take_freed();
    }

    /// CONNECTs that were measured.
    pub fn measured(&self) -> u64 {
        self.steps.summaries()[0].count
    }
}
