//! What clients and the world saw, in the order in which it happened.

use std::fmt;

use mqtt::wire::QoS;

/// A simulated client, by its place in the plan.
pub type ClientNumber = usize;
/// A connection of one client: 1 for its first, and upwards.
pub type ConnNumber = u32;

/// Something that was seen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// True time since the world began, in microseconds; never goes back from event to event.
    pub at_us: u64,
    /// What it was.
    pub what: What,
}

/// A message by its publisher. Its text is the front of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    /// The client's publish with this number; a client's numbers grow.
    Publish(ClientNumber, u32),
    /// The will of a client's connection.
    Will(ClientNumber, ConnNumber),
}

/// Why a connection was over, as its client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The broker ended the stream in order.
    ByBroker,
    /// The client cut it.
    ByClient,
    /// It broke.
    Broken,
    /// There was no answer in time, and the client cut it.
    Unanswered,
}

/// What ends a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stop {
    /// It is told to end, and does.
    Asked,
    /// It is killed; the system keeps what it was given.
    Killed,
    /// The machine loses power: what was not synced is lost.
    PowerLost,
}

/// What a message is, besides its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Content {
    /// Topic name.
    pub topic: String,
    /// QoS that it is published with.
    pub qos: QoS,
    /// Whether it is to be retained.
    pub retain: bool,
    /// Whether the payload is empty, which removes what is retained.
    pub empty: bool,
    /// Seconds that it lives.
    pub expiry_s: Option<u32>,
}

/// The terms of a CONNECT.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// Whether the session begins anew.
    pub clean: bool,
    /// Seconds that the session outlives the connection; `u32::MAX` for ever.
    pub expiry_s: u32,
    /// Seconds of keep-alive, 0 for none.
    pub keep_alive_s: u16,
    /// QoS 1 and 2 messages that the client takes at once.
    pub receive_maximum: u16,
    /// The will with its delay in seconds, if there is one.
    pub will: Option<(Content, u32)>,
}

/// See [`Event`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// A client's CONNECT is on its way.
    Connecting(ClientNumber, ConnNumber, Terms),
    /// The CONNACK came: whether it resumes a session.
    Connected(ClientNumber, ConnNumber, bool),
    /// The CONNACK refused, with this reason code.
    Refused(ClientNumber, ConnNumber, u8),
    /// The connection is over.
    Ended(ClientNumber, ConnNumber, End),
    /// A DISCONNECT is on its way, that takes the will back or not.
    Leaving(ClientNumber, ConnNumber, bool),
    /// The broker's DISCONNECT came, with this reason code.
    ToldToLeave(ClientNumber, ConnNumber, u8),
    /// A SUBSCRIBE is on its way.
    Subscribing(ClientNumber, ConnNumber, String, QoS),
    /// Its SUBACK came: what was granted, or nothing.
    Subscribed(ClientNumber, ConnNumber, String, Option<QoS>),
    /// An UNSUBSCRIBE is on its way.
    Unsubscribing(ClientNumber, ConnNumber, String),
    /// Its UNSUBACK came.
    Unsubscribed(ClientNumber, ConnNumber, String),
    /// A PUBLISH is on its way.
    Publishing(ClientNumber, ConnNumber, Message, Content),
    /// A PUBLISH is on its way again.
    PublishingAgain(ClientNumber, ConnNumber, Message),
    /// PUBACK or PUBREC came: whether the message was accepted.
    Acknowledged(ClientNumber, ConnNumber, Message, bool),
    /// PUBCOMP came.
    Completed(ClientNumber, ConnNumber, Message),
    /// A PUBLISH reached a client.
    Delivered(ClientNumber, ConnNumber, Delivery),
    /// The client answered a PUBLISH for good (PUBACK or PUBCOMP), with this identifier.
    Answered(ClientNumber, ConnNumber, u16),
    /// The answer to a ping that was sent at this time, in microseconds.
    Pong(ClientNumber, ConnNumber, u64),
    /// A client saw what no client may see.
    Wrong(ClientNumber, ConnNumber, String),
    /// A node's process ended.
    Stopped(usize, Stop),
    /// A node's process began.
    Started(usize),
    /// A node accepts clients.
    Ready(usize),
    /// A node's process ended by itself, with this result.
    Exited(usize, String),
    /// Something does not happen that should have by now.
    Stuck(String),
    /// A fault of the network, the disk or a clock begins: its kind.
    Fault(&'static str),
    /// No fault is active any more, and none will come.
    Healed,
    /// Counters of a node.
    Counted(usize, Counts),
    /// All clients are back, and have had the time to get what they are owed.
    Settled,
    /// This client, which subscribed to everything, has had the time to get all retained messages.
    Swept(ClientNumber),
    /// All clients have left and all sessions and retained messages were removed.
    Emptied,
}

/// A PUBLISH as a client got it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Delivery {
    /// Which message; `None` for one that nobody of the plan published.
    pub message: Option<Message>,
    /// Its topic.
    pub topic: String,
    /// QoS of this delivery.
    pub qos: QoS,
    /// Its identifier, 0 at QoS 0.
    pub id: u16,
    /// Marked as sent before.
    pub dup: bool,
    /// Marked as retained.
    pub retain: bool,
    /// At QoS 2: the client holds this identifier already.
    pub held: bool,
    /// Without a payload, which tells of no message.
    pub empty: bool,
}

/// What a node counts, over all shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counts {
    /// Open connections.
    pub connections: u64,
    /// Sessions.
    pub sessions: u64,
    /// Subscriptions.
    pub subscriptions: u64,
    /// Messages in session queues.
    pub queued_messages: u64,
    /// Messages sent and not acknowledged.
    pub inflight_messages: u64,
    /// Retained messages.
    pub retained_messages: u64,
}

impl Message {
    /// The front of the payload, ends with a space.
    pub fn to_text(self) -> String {
        match self {
            Self::Publish(client, number) => format!("p{client}.{number} "),
            Self::Will(client, conn) => format!("w{client}.{conn} "),
        }
    }

    /// The message whose payload this is.
    pub fn from_payload(payload: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(payload).ok()?;
        let (name, _) = text.split_once(' ')?;
        let (client, number) = name.get(1..)?.split_once('.')?;
        let (client, number) = (client.parse().ok()?, number.parse().ok()?);
        match name.as_bytes().first()? {
            b'p' => Some(Self::Publish(client, number)),
            b'w' => Some(Self::Will(client, number)),
            _ => None,
        }
    }

    /// Who publishes it.
    pub fn client(self) -> ClientNumber {
        match self {
            Self::Publish(client, _) | Self::Will(client, _) => client,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>12.6} {:?}", self.at_us as f64 / 1e6, self.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_tells_its_message() {
        for message in [Message::Publish(3, 17), Message::Will(0, 2)] {
            let payload = format!("{}....", message.to_text());
            assert_eq!(Message::from_payload(payload.as_bytes()), Some(message));
        }
        for other in ["", "p1.2", "x1.2 ", "p1 ", "p.1 ", "é1.2 "] {
            assert_eq!(Message::from_payload(other.as_bytes()), None, "{other}");
        }
    }
}
