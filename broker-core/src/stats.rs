//! Counters per shard, written by the shard alone and read by anyone.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident: $kind:ident, $help:literal;)*) => {
        /// The live counters of one shard, on cache lines of their own.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct ShardStats {
            $($(#[$doc])* pub $name: Counter,)*
        }

        /// The counters of one shard, read one after another while the shard goes on.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Snapshot {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl ShardStats {
            /// Reads all counters.
            pub fn snapshot(&self) -> Snapshot {
                Snapshot { $($name: self.$name.get(),)* }
            }
        }

        impl Snapshot {
            /// The sum of all counters, of all shards for instance.
            pub fn sum<'a>(snapshots: impl IntoIterator<Item = &'a Self>) -> Self {
                let mut sum = Self::default();
                for one in snapshots {
                    $(sum.$name = sum.$name.wrapping_add(one.$name);)*
                }
                sum
            }

            /// Every counter as (metric name, kind, help text, value).
            pub fn metrics(&self) -> impl Iterator<Item = Metric> + use<> {
                [$(Metric {
                    name: stringify!($name), kind: Kind::$kind, help: $help, value: self.$name,
                },)*].into_iter()
            }
        }
    };
}

counters! {
    /// Open MQTT connections.
    connections: Gauge, "Open MQTT connections";
    /// Connections accepted since the start.
    connections_accepted: Counter, "Connections accepted since the start";
    /// Connections refused because the node was full.
    connections_refused: Counter, "Connections refused because of max_connections";
    /// Connections whose CONNECT was accepted and that hold their session.
    clients_connected: Gauge, "Clients connected";
    /// CONNECTs accepted since the start.
    connects_accepted: Counter, "CONNECT packets accepted";
    /// CONNECTs refused because too many came at once.
    connects_rate_limited: Counter, "CONNECT packets refused because of max_connect_rate_per_s";
    /// Sessions, connected or not.
    sessions: Gauge, "Sessions, connected or not";
    /// Sessions that ended because their expiry interval was over.
    sessions_expired: Counter, "Sessions of absent clients that expired";
    /// Subscriptions of all sessions.
    subscriptions: Gauge, "Subscriptions of all sessions";
    /// Those of them that are shared.
    shared_subscriptions: Gauge, "Shared subscriptions of all sessions";
    /// Retained messages held, without the broker's own below `$SYS/`.
    retained_messages: Gauge, "Retained messages";
    /// Bytes of retained messages: topic, properties and payload.
    retained_bytes: Gauge, "Bytes of retained messages: topic, properties and payload";
    /// Messages waiting in session queues.
    queued_messages: Gauge, "Messages waiting in session queues";
    /// Bytes waiting in session queues.
    queued_bytes: Gauge, "Bytes waiting in session queues: topic, properties and payload";
    /// Those of the bytes that are in memory: the others lie in the journal alone.
    queued_memory_bytes: Gauge, "Bytes waiting in session queues that are in memory";
    /// QoS 1 and 2 messages sent and not acknowledged yet.
    inflight_messages: Gauge, "QoS 1 and 2 messages sent and not acknowledged";
    /// Sessions whose queue is more than half full, by messages or by bytes.
    slow_queues: Gauge, "Sessions whose queue is more than half full";
    /// Connections whose outbox is more than half full.
    slow_outboxes: Gauge, "Connections whose outbox is more than half full";
    /// PUBLISH packets received.
    messages_received: Counter, "PUBLISH packets received";
    /// PUBLISH packets sent.
    messages_sent: Counter, "PUBLISH packets sent";
    /// Packets of all other types received.
    other_packets_received: Counter, "Packets received that are not PUBLISH";
    /// Packets of all other types sent.
    other_packets_sent: Counter, "Packets sent that are not PUBLISH";
    /// Bytes read from sockets.
    bytes_received: Counter, "Bytes read from client sockets";
    /// Bytes written to sockets.
    bytes_sent: Counter, "Bytes written to client sockets";
    /// QoS 0 messages dropped because a connection's outbox was full.
    dropped_outbox: Counter, "QoS 0 messages dropped because a connection's outbox was full";
    /// Messages dropped because a session's queue was full.
    dropped_queue: Counter, "Messages dropped because a session queue was full";
    /// Messages dropped because they expired first.
    dropped_expired: Counter, "Messages dropped because they expired before delivery";
    /// Messages larger than the receiver's maximum packet size.
    dropped_too_large: Counter, "Messages dropped because the receiver accepts only smaller packets";
    /// Messages not retained because the store was full.
    dropped_retained: Counter, "Messages not retained because the retained store was full";
    /// Changes of durable sessions and retained messages dropped because too many waited for the
    /// metadata.
    dropped_posted: Counter, "Changes dropped because too many waited for the metadata";
    /// Wills of sessions from other nodes dropped because too many waited.
    dropped_wills: Counter, "Wills of sessions from other nodes dropped because too many waited";
    /// Clients disconnected because their session's queue was full, under that policy.
    disconnected_queue_full: Counter, "Clients disconnected because their session queue was full";
    /// Connections closed because of a protocol violation.
    protocol_errors: Counter, "Connections closed because of a protocol violation";
    /// CONNECTs refused because of their credentials, or for the lack of them.
    authentication_failures: Counter, "CONNECT packets refused because of their credentials";
    /// CONNECTs refused because their address failed to log in too often.
    logins_rate_limited: Counter, "CONNECT packets refused because of max_failed_logins_per_min";
    /// Connections closed because their keep-alive ran out.
    keep_alive_timeouts: Counter, "Connections closed because their keep-alive ran out";
    /// Connections replaced by a newer one of the same client.
    takeovers: Counter, "Connections replaced by a newer one of the same client";
    /// Connections handed to their owner shard.
    handoffs: Counter, "Connections handed to the shard that owns their session";
    /// Batches sent to other shards.
    mail_batches: Counter, "Batches sent to other shards";
    /// Messages queued to durable sessions that are in memory alone.
    queued_level_none: Counter, "QoS 1 and 2 messages to durable sessions, at level none";
    /// Messages queued to durable sessions that survive the end of the process.
    queued_level_os: Counter, "QoS 1 and 2 messages to durable sessions, at level os";
    /// Messages queued to durable sessions that survive a loss of power.
    queued_level_disk: Counter, "QoS 1 and 2 messages to durable sessions, at level disk";
    /// Messages read back from the journal.
    messages_read_back: Counter, "Messages read back from the journal to be sent";
    /// Messages dropped because their records could not be read back.
    dropped_damaged: Counter, "Messages dropped because their records were damaged";
    /// Publishes refused because the disk was nearly full.
    refused_journal: Counter, "Publishes refused because the disk of the journal was nearly full";
    /// Times a publisher paused because the journal was behind.
    journal_pauses: Counter, "Times that a publisher paused because the journal was behind";
    /// Times a publisher paused because another shard's mailbox was full.
    publisher_pauses: Counter, "Times that a publisher paused because a mailbox was full";
}

/// A number that one shard writes and others read. Adding is a load and a store, not an atomic
/// read-modify-write: a shard never runs on two threads at once.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

/// One metric's value with what a reader needs to know about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Name without prefix or suffix, in snake case.
    pub name: &'static str,
    /// Whether it only grows.
    pub kind: Kind,
    /// One line of help.
    pub help: &'static str,
    /// The value.
    pub value: u64,
}

/// Whether a metric only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Grows from the start of the process.
    Counter,
    /// Goes up and down.
    Gauge,
}

impl Counter {
    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Subtracts `n`.
    #[inline]
    pub fn sub(&self, n: u64) {
        debug_assert!(self.0.load(Relaxed) >= n, "a gauge went below zero");
        self.0.store(self.0.load(Relaxed).wrapping_sub(n), Relaxed);
    }

    /// Moves a gauge by what one part of it changed.
    #[inline]
    pub fn change(&self, before: u64, after: u64) {
        if before != after {
            debug_assert!(self.get() + after >= before, "a gauge went below zero");
            self.set(self.get().wrapping_add(after).wrapping_sub(before));
        }
    }

    /// Sets the value.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    /// The value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_add_up_and_gauges_follow_their_parts() {
        let one = Snapshot { connections: 1, messages_sent: 5, ..Snapshot::default() };
        let two = Snapshot { connections: 2, ..Snapshot::default() };
        let sum = Snapshot { connections: 3, messages_sent: 5, ..Snapshot::default() };
        assert_eq!(Snapshot::sum([&one, &two]), sum);
        assert_eq!(Snapshot::sum([]), Snapshot::default());
        let gauge = Counter::default();
        gauge.change(0, 7);
        gauge.change(7, 3);
        gauge.change(3, 3);
        assert_eq!(gauge.get(), 3);
    }
}
