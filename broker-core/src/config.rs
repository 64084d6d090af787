//! What an operator may set, as plain checked values. Reading files and flags is the program's job.

use meta::steps::StepOptions;
use mqtt::access::Users;
use rt_abstract::Address;

/// Everything the broker needs to know to start.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where MQTT clients connect; at least one.
    pub listeners: Vec<ListenerConfig>,
    /// Bounds.
    pub limits: Limits,
    /// Who may connect.
    pub auth: AuthConfig,
    /// Seconds between two looks at what changed below `$SYS/`; 0 publishes nothing there.
    pub sys_interval_s: u32,
    /// What an acknowledgement of a message promises.
    pub durability: DurabilityConfig,
    /// Where messages of durable sessions are kept; without it they are in memory alone.
    pub journal: Option<journal::Options>,
    /// What is still owed in old segments of the journal is moved to its end, so that they can go: at
    /// most so many bytes for a hundred that are recorded otherwise, and a little all the time. 0: none
    /// is moved.
    pub moved_percent: u8,
    /// Whether the steps of a CONNECT are measured.
    pub steps: StepOptions,
}

/// What the acknowledgement of a QoS 1 or 2 message promises that is queued to durable sessions.
/// Without a journal it is [`Level::None`] whatever is set here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DurabilityConfig {
    /// Where neither a listener nor a topic says another.
    pub level: Level,
    /// For topics that a filter matches, whatever the listener says: the first filter decides.
    pub topics: Vec<(String, Level)>,
}

/// See [`DurabilityConfig`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing: the message is in memory.
    None,
    /// It was given to the operating system, and is there when the process is killed.
    Os,
    /// It is on the disk, and is there after a loss of power.
    #[default]
    Disk,
}

/// One MQTT listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerConfig {
    /// Address to listen on.
    pub address: Address,
    /// Length of the kernel's accept queue; a storm of connects beyond it waits for a SYN
    /// retransmission of one second.
    pub backlog: i32,
    /// What is promised to its clients; `None` for what [`DurabilityConfig::level`] says.
    pub level: Option<Level>,
}

/// Who may connect.
#[derive(Clone, Debug)]
pub struct AuthConfig {
    /// Clients that give no credentials are served.
    pub allow_anonymous: bool,
    /// Users to verify against, by password or SCRAM-SHA-256. `None`: nobody is verified, and any
    /// name and password are taken if anonymous clients are.
    pub users: Option<Users>,
    /// Passwords that one shard may have under verification, waiting ones included; further
    /// CONNECTs with a password are refused (0x89, 3.x: 3).
    pub max_pending_verifications: usize,
}

/// Bounds on everything that grows. Each says what happens when it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Open connections on this node; further ones are closed at accept.
    pub max_connections: usize,
    /// CONNECTs per second on this node, with bursts of a second's worth; further ones are refused
    /// (0x9F, 3.x: 3). 0 for no limit.
    pub max_connect_rate_per_s: u32,
    /// Failed logins per minute and address (for IPv6, per /64 network), with bursts of a minute's
    /// worth; further CONNECTs with credentials are refused (0x9F, 3.x: 3) without a look at them.
    /// 0 for no limit. Clients over Unix-domain sockets are not limited.
    pub max_failed_logins_per_min: u32,
    /// Milliseconds from accept to a complete CONNECT; later the connection is closed.
    pub connect_timeout_ms: u32,
    /// Milliseconds that a connection being closed may take to receive what it is owed.
    pub close_timeout_ms: u32,
    /// Largest packet accepted, in bytes with its header; larger ones end the connection (0x95).
    pub max_packet_size_bytes: u32,
    /// Largest CONNECT accepted, in bytes, before anything is known about the client.
    pub max_connect_size_bytes: u32,
    /// Longest keep-alive granted, in seconds; 0 leaves the client's wish alone. Version 5 clients
    /// are told (server keep alive), 3.x clients that ask for more are judged by their own wish.
    pub max_keep_alive_s: u16,
    /// QoS 1 and 2 publishes that a client may have unacknowledged; more end the connection (0x93).
    pub receive_maximum: u16,
    /// Topic aliases that a client may define, 0 to 65535.
    pub topic_alias_maximum: u16,
    /// QoS 1 and 2 messages sent to a client and not acknowledged; a version 5 client may ask for
    /// fewer. Further messages wait in the session's queue.
    pub max_inflight: u16,
    /// Longest session expiry granted, in seconds; 0xFFFF_FFFF is "never expires".
    pub max_session_expiry_s: u32,
    /// Messages queued in one session; further QoS 0 are dropped, further QoS 1 and 2 as
    /// `queue_full` says.
    pub max_queued_messages: usize,
    /// Bytes queued in one session, counted as topic + properties + payload.
    pub max_queued_bytes: usize,
    /// Messages of a queue that lies in the journal which are in memory while the client is there;
    /// of a client that is away there are none.
    pub read_ahead_messages: usize,
    /// Bytes of queues in memory, per shard, beyond which only one message of each is read ahead.
    pub max_read_ahead_bytes: usize,
    /// Bytes waiting for one connection's socket; further QoS 0 messages are dropped, QoS 1 and 2
    /// wait in the session's queue.
    pub max_outbox_bytes: usize,
    /// Subscriptions of one session; further ones are refused (0x97).
    pub max_subscriptions: usize,
    /// What the subscriptions of one session may take, in bytes by an estimate from their filters'
    /// lengths and levels; further ones are refused (0x97).
    pub max_subscription_bytes: usize,
    /// Longest topic name or filter, in bytes.
    pub max_topic_bytes: usize,
    /// Most levels of a topic name or filter.
    pub max_topic_levels: usize,
    /// Retained messages on this node; further new topics are not retained, counted as drops.
    pub max_retained_messages: usize,
    /// Bytes of retained messages on this node, counted as topic + properties + payload.
    pub max_retained_bytes: usize,
    /// Messages waiting between two shards; when full, publishers of the sending shard pause.
    pub max_mailbox_messages: usize,
    /// Whether a payload that is announced as UTF-8 must be it; if not, the message is refused
    /// (0x99) and goes nowhere.
    pub check_payload_format: bool,
    /// What happens to a QoS 1 or 2 message for a full session queue.
    pub queue_full: QueueFull,
    /// Which member of a shared subscription gets a message.
    pub shared_strategy: SharedStrategy,
}

/// What happens to a QoS 1 or 2 message for a full session queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueFull {
    /// The new message is dropped and counted.
    #[default]
    DropNew,
    /// The oldest message that was not sent yet is dropped and counted.
    DropOld,
    /// A connected client is disconnected (0x97); its session stays, the message is dropped and
    /// counted. An absent client loses the new message.
    Disconnect,
}

/// Which member of a shared subscription gets a message; connected ones always first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharedStrategy {
    /// One after another.
    #[default]
    RoundRobin,
    /// The one with the fewest messages sent, not acknowledged, and queued. Over several shards
    /// the shards take turns.
    LeastInflight,
    /// One member, until it is gone.
    Sticky,
    /// By the publishing session: its messages stay in order.
    HashClient,
    /// By the topic name: its messages stay in order.
    HashTopic,
}

impl Default for ListenerConfig {
    fn default() -> Self {
        Self { address: Address::Tcp(([127, 0, 0, 1], 1883).into()), backlog: 4096, level: None }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listeners: vec![ListenerConfig::default()],
            limits: Limits::default(),
            auth: AuthConfig::default(),
            sys_interval_s: 10,
            durability: DurabilityConfig::default(),
            journal: None,
            moved_percent: 25,
            steps: StepOptions::default(),
        }
    }
}

impl Default for AuthConfig {
    fn default() -> Self {
        Self { allow_anonymous: true, users: None, max_pending_verifications: 1024 }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 1_000_000,
            max_connect_rate_per_s: 0,
            max_failed_logins_per_min: 120,
            connect_timeout_ms: 10_000,
            close_timeout_ms: 5_000,
            max_packet_size_bytes: 16 << 20,
            max_connect_size_bytes: 256 << 10,
            max_keep_alive_s: 0,
            receive_maximum: 1024,
            topic_alias_maximum: 64,
            max_inflight: 1024,
            max_session_expiry_s: u32::MAX,
            max_queued_messages: 100_000,
            max_queued_bytes: 64 << 20,
            read_ahead_messages: 2_048,
            max_read_ahead_bytes: 64 << 20,
            max_outbox_bytes: 4 << 20,
            max_subscriptions: 10_000,
            max_subscription_bytes: 16 << 20,
            max_topic_bytes: 65_535,
            max_topic_levels: 128,
            max_retained_messages: 10_000_000,
            max_retained_bytes: 4 << 30,
            max_mailbox_messages: 8_192,
            check_payload_format: true,
            queue_full: QueueFull::DropNew,
            shared_strategy: SharedStrategy::RoundRobin,
        }
    }
}
