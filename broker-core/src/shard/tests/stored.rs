//! A shard with a state that commands are applied to, and no raft: the test says when each is
//! committed, and whether anybody hears of it.

use std::sync::Arc;

use meta::command::{Command, Reply};
use meta::record::{SessionRecord, StoredSubscription};
use meta::state::{Effect, Tx, apply};
use meta::store::{MemoryStore, Store, View};
use meta::{Answer, Handle, ProposeError};
use mqtt::wire::{ReasonCode, Will};

use super::durable::{WALL_MS, answer, open, owe};
use super::*;
use crate::shard::stored::client_key;
use crate::shard::{Commit, Elsewhere};

pub(super) struct Stored {
    pub(super) bench: Bench,
    store: Arc<MemoryStore>,
    index: u64,
}

/// A will that is published on `will`.
pub(super) fn will(delay_s: u32, properties: &mut PropertyBuf) -> Will<'_> {
    if delay_s > 0 {
        properties.will_delay_interval_s(delay_s);
    }
    Will {
        topic: "will",
        payload: b"gone",
        qos: QoS::AtMostOnce,
        retain: false,
        properties: properties.as_properties(),
    }
}

impl Stored {
    pub(super) fn new() -> Self {
        let mut bench = Bench::new();
        let store = Arc::new(MemoryStore::new());
        bench.shards[0].set_durability(Handle::detached(1, store.clone()), bench.now_ms, WALL_MS);
        Self { bench, store, index: 0 }
    }

    pub(super) fn shard(&mut self) -> &mut Shard {
        &mut self.bench.shards[0]
    }

    /// Commits commands as one entry; the shard is told of the effects at its next tick.
    pub(super) fn commit(&mut self, commands: &[Command]) -> (Vec<Reply>, Vec<Elsewhere>) {
        self.index += 1;
        let (mut effects, mut told) = (Vec::new(), Vec::new());
        let mut tx = Tx::new(&*self.store);
        let replies = commands
            .iter()
            .map(|command| apply(&mut tx, self.index, command, &mut effects).expect("applied"))
            .collect();
        self.store.write(tx.into_changes()).expect("written");
        for effect in effects {
            if let Effect::SessionOpened { client, node: 1, epoch, .. } = effect {
                told.push(Elsewhere::Opened { client: client.client_id, epoch });
            }
        }
        (replies, told)
    }

    pub(super) fn tell(&mut self, told: &[Elsewhere]) {
        for event in told {
            let now_ms = self.bench.now_ms;
            self.shard().on_elsewhere(event, now_ms);
        }
        self.bench.run();
    }

    /// Commits all that is posted, and says so; what it was.
    pub(super) fn record(&mut self) -> Vec<Command> {
        let mut all = Vec::new();
        loop {
            let posted = self.shard().take_posted(100);
            if posted.is_empty() {
                return all;
            }
            self.answer_posted(&posted);
            all.extend(posted);
        }
    }

    pub(super) fn answer_posted(&mut self, posted: &[Command]) -> Vec<Reply> {
        let (replies, _) = self.commit(posted);
        let (answer, now_ms) = (Answer { index: self.index, replies }, self.bench.now_ms);
        self.shard().on_recorded(&answer, now_ms);
        self.bench.run();
        answer.replies
    }

    pub(super) fn posted_in_vain(&mut self, commands: &mut Vec<Command>, error: ProposeError) {
        let now_ms = self.bench.now_ms;
        self.shard().on_unrecorded(commands, error, now_ms);
        self.bench.run();
    }

    /// CONNECT of `c`, which is to be committed.
    pub(super) fn ask(
        &mut self,
        clean_start: bool,
        delay_s: Option<u32>,
    ) -> (Client, Box<Commit>, Vec<Command>) {
        let client = open(&mut self.bench, Version::V5);
        let (mut properties, mut of_will) = (PropertyBuf::new(), PropertyBuf::new());
        properties.session_expiry_interval_s(3600);
        let properties = properties.as_properties();
        let will = delay_s.map(|delay_s| will(delay_s, &mut of_will));
        let connect = Connect { properties, will, ..request(Version::V5, "c", clean_start) };
        let (commit, commands) = owe(&mut self.bench, client, &Packet::Connect(connect));
        (client, commit, commands)
    }

    /// A client that is let in, and whether its session was there.
    pub(super) fn connect(&mut self, clean_start: bool, delay_s: Option<u32>) -> (Client, bool) {
        let (client, commit, commands) = self.ask(clean_start, delay_s);
        let (replies, told) = self.commit(&commands);
        answer(&mut self.bench, client, *commit, Ok(replies));
        self.tell(&told);
        let Packet::ConnAck(connack) = self.bench.next(client) else { panic!("no CONNACK") };
        assert_eq!(connack.reason, ReasonCode::Success);
        (client, connack.session_present)
    }

    /// A client that reads `will` and keeps nothing.
    pub(super) fn heir(&mut self) -> Client {
        let heir = self.bench.connect(Version::V5, "heir", true);
        self.bench.subscribe(heir, "will", qos(QoS::AtMostOnce), 0);
        heir
    }

    /// What is stored of `c`.
    pub(super) fn record_of(&self) -> Option<SessionRecord> {
        self.read(|view| meta::state::session(view, &client_key("c")).expect("reads"))
    }

    /// The filters that are stored of `c`, with their options.
    pub(super) fn stored_filters(&self) -> Vec<(String, u8)> {
        let mut filters = Vec::new();
        self.read(|view| {
            meta::state::subscriptions(view, &client_key("c"), |found: StoredSubscription| {
                filters.push((found.filter, found.options));
                std::ops::ControlFlow::Continue(())
            })
            .expect("reads");
        });
        filters
    }

    /// The same of the shard.
    pub(super) fn held_filters(&mut self) -> Vec<(String, u8)> {
        let Some(key) = self.shard().find_session("c") else { return Vec::new() };
        let session = &self.shard().sessions[key.0 as usize].session;
        let mut filters: Vec<_> = session
            .subscriptions
            .iter()
            .map(|known| (known.filter.to_string(), known.options.to_u8()))
            .collect();
        filters.sort();
        filters
    }

    fn read<T>(&self, read: impl FnOnce(&dyn View) -> T) -> T {
        Handle::detached(1, self.store.clone()).read(read)
    }
}
