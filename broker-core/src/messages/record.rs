//! The records: how they look, and what makes bytes none.
//!
//! A byte for version and kind, then varints (seven bits a byte, low ones first) and strings with
//! their length before them. Nothing follows the end.

use mqtt::session::Delivery;
use mqtt::wire::{PacketId, QoS};
use smallvec::SmallVec;

/// The upper half of a record's first byte.
const VERSION: u8 = 0x10;
const PUBLISH: u8 = VERSION | 1;
const DONE: u8 = VERSION | 2;
const RECEIVED: u8 = VERSION | 3;
const SENT: u8 = VERSION | 4;
const TAKEN: u8 = VERSION | 5;
const RELEASED: u8 = VERSION | 6;
const ENDED: u8 = VERSION | 7;
const MOVED: u8 = VERSION | 8;
const UNTAKEN: u8 = VERSION | 9;

/// The exchange by which a message came in: a QoS 2 publish of a durable session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Origin {
    /// The publishing session.
    pub generation: u64,
    /// Its packet identifier.
    pub id: PacketId,
}

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record<'a> {
    /// A message is owed to sessions.
    Publish(PublishHead<'a>, Vec<Target<'a>>),
    /// Nothing is owed for messages any more.
    Done(Vec<Done>),
    /// PUBREC came: only PUBREL is owed.
    Received(Done),
    /// Messages up to this number have been sent.
    Sent(Done),
    /// A QoS 2 publish was taken: all records of its message stand before this one.
    Taken(Origin),
    /// PUBREL came for it.
    Released(Origin),
    /// All records of this session that stand before mean nothing.
    Ended(u64),
    /// A message that stood before already, with those that are still owed it; each with the number
    /// up to which its session had been sent messages. It never says by which exchange it came in:
    /// the record of its being taken may stand before.
    Moved(PublishHead<'a>, Vec<(Target<'a>, u64)>),
    /// This session has the message of an exchange that was not taken so far, as an earlier record
    /// said, too.
    Untaken(Origin, u64),
}

/// A message of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    /// The session.
    pub generation: u64,
    /// The message's number in it.
    pub seq: u64,
}

/// The message of a [`Record::Publish`] or [`Record::Moved`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PublishHead<'a> {
    pub qos: QoS,
    pub retain: bool,
    /// When it expires, in wall-clock milliseconds.
    pub expires_at_ms: Option<u64>,
    pub origin: Option<Origin>,
    pub topic: &'a str,
    /// The raw properties that are forwarded unchanged.
    pub properties: &'a [u8],
    pub payload: &'a [u8],
}

/// One session that a message is owed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target<'a> {
    pub to: Done,
    /// 1 or 2.
    pub qos: QoS,
    pub retain: bool,
    pub subscription_ids: SmallVec<[u32; 2]>,
    pub share: Option<&'a str>,
}

/// Bytes that are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    /// Written by a newer program.
    #[error("a record of kind {0:#x}, which this program does not know: a newer one wrote it")]
    Newer(u8),
    /// A record of something else was found where a message should be.
    #[error("a record of kind {0:#x} instead of a message")]
    NoMessage(u8),
    /// Cut short, too long, or not what a field can be.
    #[error("a record whose {0} makes no sense")]
    Invalid(&'static str),
}

const RETAIN: u8 = 0x04;
const EXPIRES: u8 = 0x08;
const ORIGIN: u8 = 0x10;
const SHARE: u8 = 0x08;
const IDS: u8 = 0x10;

/// Appends a [`Record::Publish`] with `count` targets, each encoded by [`encode_target`].
pub(crate) fn encode_publish(
    head: &PublishHead<'_>,
    count: usize,
    targets: &[u8],
    out: &mut Vec<u8>,
) {
    encode_message(PUBLISH, head, count, targets, out);
}

/// Appends a [`Record::Moved`] with `count` targets, each encoded by [`encode_target`] and
/// [`encode_sent`].
pub(crate) fn encode_moved(
    head: &PublishHead<'_>,
    count: usize,
    targets: &[u8],
    out: &mut Vec<u8>,
) {
    debug_assert!(head.origin.is_none(), "nobody can read it");
    encode_message(MOVED, head, count, targets, out);
}

fn encode_message(
    kind: u8,
    head: &PublishHead<'_>,
    count: usize,
    targets: &[u8],
    out: &mut Vec<u8>,
) {
    let flags = head.qos as u8
        | if head.retain { RETAIN } else { 0 }
        | if head.expires_at_ms.is_some() { EXPIRES } else { 0 }
        | if head.origin.is_some() { ORIGIN } else { 0 };
    out.extend_from_slice(&[kind, flags]);
    if let Some(at_ms) = head.expires_at_ms {
        varint(at_ms, out);
    }
    if let Some(origin) = head.origin {
        put_origin(origin, out);
    }
    put_bytes(head.topic.as_bytes(), out);
    put_bytes(head.properties, out);
    put_bytes(head.payload, out);
    varint(count as u64, out);
    out.extend_from_slice(targets);
}

/// Appends one target of a [`Record::Publish`], or of a [`Record::Moved`] its first part.
#[inline]
pub(crate) fn encode_target(to: Done, delivery: &Delivery, out: &mut Vec<u8>) {
    let ids = &delivery.subscription_ids;
    let flags = delivery.qos as u8
        | if delivery.retain { RETAIN } else { 0 }
        | if delivery.share.is_some() { SHARE } else { 0 }
        | if ids.is_empty() { 0 } else { IDS };
    out.push(flags);
    put_done(to, out);
    if !ids.is_empty() {
        varint(ids.len() as u64, out);
        ids.iter().for_each(|&id| varint(id.into(), out));
    }
    if let Some(share) = &delivery.share {
        put_bytes(share.as_bytes(), out);
    }
}

/// Appends the rest of a target of a [`Record::Moved`]: its session was sent messages up to this
/// number.
pub(crate) fn encode_sent(sent_seq: u64, out: &mut Vec<u8>) {
    varint(sent_seq, out);
}

impl<'a> Record<'a> {
    /// Appends any record but a message, which [`encode_publish`] and [`encode_moved`] write.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Publish(..) | Self::Moved(..) => {
                debug_assert!(false, "written by encode_publish and encode_moved");
            }
            Self::Done(all) => encode_done(all, out),
            Self::Received(done) => {
                out.push(RECEIVED);
                put_done(*done, out);
            }
            Self::Sent(done) => {
                out.push(SENT);
                put_done(*done, out);
            }
            Self::Taken(origin) => {
                out.push(TAKEN);
                put_origin(*origin, out);
            }
            Self::Released(origin) => {
                out.push(RELEASED);
                put_origin(*origin, out);
            }
            Self::Ended(generation) => {
                out.push(ENDED);
                varint(*generation, out);
            }
            Self::Untaken(origin, generation) => {
                out.push(UNTAKEN);
                put_origin(*origin, out);
                varint(*generation, out);
            }
        }
    }

    /// Reads a record.
    ///
    /// # Errors
    /// Whatever the bytes are, they are a record or this says what is wrong.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, RecordError> {
        let Some((&kind, rest)) = bytes.split_first() else {
            return Err(RecordError::Invalid("length"));
        };
        let mut reader = Reader::new(rest);
        let record = match kind {
            PUBLISH => reader.publish()?,
            DONE => {
                let count = reader.count("count", 2)?;
                let all: Result<_, _> = (0..count).map(|_| reader.done()).collect();
                Self::Done(all?)
            }
            RECEIVED => Self::Received(reader.done()?),
            SENT => Self::Sent(reader.done()?),
            TAKEN => Self::Taken(reader.origin()?),
            RELEASED => Self::Released(reader.origin()?),
            ENDED => Self::Ended(reader.generation()?),
            MOVED => reader.moved()?,
            UNTAKEN => Self::Untaken(reader.origin()?, reader.generation()?),
            _ => return Err(RecordError::Newer(kind)),
        };
        if reader.rest.is_empty() { Ok(record) } else { Err(RecordError::Invalid("length")) }
    }

    /// Reads the message of a [`Record::Publish`] or [`Record::Moved`], and not whom it is owed to.
    ///
    /// # Errors
    /// As [`Record::decode`], and when it is another record.
    pub fn decode_message(bytes: &'a [u8]) -> Result<PublishHead<'a>, RecordError> {
        match bytes.split_first() {
            Some((&(PUBLISH | MOVED), rest)) => Reader::new(rest).publish_head(),
            Some((&kind @ (DONE..=ENDED | UNTAKEN), _)) => Err(RecordError::NoMessage(kind)),
            Some((&kind, _)) => Err(RecordError::Newer(kind)),
            None => Err(RecordError::Invalid("length")),
        }
    }
}

/// Appends a [`Record::Done`].
pub(crate) fn encode_done(all: &[Done], out: &mut Vec<u8>) {
    out.push(DONE);
    varint(all.len() as u64, out);
    all.iter().for_each(|&done| put_done(done, out));
}

#[inline]
pub(super) fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

#[inline]
fn put_done(done: Done, out: &mut Vec<u8>) {
    debug_assert!(done.generation > 0 && done.seq > 0, "nobody can read {done:?}");
    varint(done.generation, out);
    varint(done.seq, out);
}

pub(super) fn put_origin(origin: Origin, out: &mut Vec<u8>) {
    debug_assert!(origin.generation > 0, "nobody can read {origin:?}");
    varint(origin.generation, out);
    varint(origin.id.get().into(), out);
}

/// Takes fields from the front; each says what it is called when it is none.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn publish(&mut self) -> Result<Record<'a>, RecordError> {
        let head = self.publish_head()?;
        let count = self.count("number of sessions", 3)?;
        let targets: Result<_, _> = (0..count).map(|_| self.target()).collect();
        Ok(Record::Publish(head, targets?))
    }

    fn moved(&mut self) -> Result<Record<'a>, RecordError> {
        let head = self.publish_head()?;
        if head.origin.is_some() {
            return Err(RecordError::Invalid("flags"));
        }
        let count = self.count("number of sessions", 4)?;
        let targets: Result<_, _> =
            (0..count).map(|_| Ok((self.target()?, self.sent()?))).collect();
        Ok(Record::Moved(head, targets?))
    }

    fn publish_head(&mut self) -> Result<PublishHead<'a>, RecordError> {
        let flags = self.byte("flags")?;
        let qos = QoS::from_u8(flags & 3);
        let known = flags & !(3 | RETAIN | EXPIRES | ORIGIN) == 0;
        let (Some(qos), true) = (qos, known) else { return Err(RecordError::Invalid("flags")) };
        let expires_at_ms = match flags & EXPIRES {
            0 => None,
            _ => Some(self.varint("expiry")?),
        };
        let origin = match flags & ORIGIN {
            0 => None,
            _ => Some(self.origin()?),
        };
        let retain = flags & RETAIN != 0;
        let topic = self.text("topic")?;
        let properties = self.bytes("properties")?;
        let payload = self.bytes("payload")?;
        Ok(PublishHead { qos, retain, expires_at_ms, origin, topic, properties, payload })
    }

    fn target(&mut self) -> Result<Target<'a>, RecordError> {
        let flags = self.byte("delivery")?;
        let qos = QoS::from_u8(flags & 3).filter(|qos| *qos > QoS::AtMostOnce);
        let known = flags & !(3 | RETAIN | SHARE | IDS) == 0;
        let (Some(qos), true) = (qos, known) else { return Err(RecordError::Invalid("delivery")) };
        let to = self.done()?;
        let mut subscription_ids = SmallVec::new();
        if flags & IDS != 0 {
            for _ in 0..self.count("identifiers", 1)? {
                let id = u32::try_from(self.varint("identifier")?);
                subscription_ids.push(id.map_err(|_| RecordError::Invalid("identifier"))?);
            }
        }
        let share = match flags & SHARE {
            0 => None,
            _ => Some(self.text("share")?),
        };
        Ok(Target { to, qos, retain: flags & RETAIN != 0, subscription_ids, share })
    }

    fn done(&mut self) -> Result<Done, RecordError> {
        let generation = self.generation()?;
        match self.sent()? {
            0 => Err(RecordError::Invalid("number")),
            seq => Ok(Done { generation, seq }),
        }
    }

    /// The number of a message; 0 before the first one. There is room for more behind it.
    fn sent(&mut self) -> Result<u64, RecordError> {
        let seq = self.varint("number")?;
        if seq > u64::MAX >> 1 { Err(RecordError::Invalid("number")) } else { Ok(seq) }
    }

    pub fn generation(&mut self) -> Result<u64, RecordError> {
        match self.varint("session")? {
            0 => Err(RecordError::Invalid("session")),
            generation => Ok(generation),
        }
    }

    pub fn origin(&mut self) -> Result<Origin, RecordError> {
        Ok(Origin { generation: self.generation()?, id: self.packet_id()? })
    }

    pub fn packet_id(&mut self) -> Result<PacketId, RecordError> {
        let id = u16::try_from(self.varint("packet identifier")?).ok().and_then(PacketId::new);
        id.ok_or(RecordError::Invalid("packet identifier"))
    }

    /// A number of items that take at least `each` bytes, so that no length is trusted.
    pub fn count(&mut self, what: &'static str, each: usize) -> Result<usize, RecordError> {
        let count = usize::try_from(self.varint(what)?).ok();
        count.filter(|count| *count <= self.rest.len() / each).ok_or(RecordError::Invalid(what))
    }

    pub fn text(&mut self, what: &'static str) -> Result<&'a str, RecordError> {
        std::str::from_utf8(self.bytes(what)?).map_err(|_| RecordError::Invalid(what))
    }

    fn bytes(&mut self, what: &'static str) -> Result<&'a [u8], RecordError> {
        let len = self.count(what, 1)?;
        let (bytes, rest) = self.rest.split_at(len);
        self.rest = rest;
        Ok(bytes)
    }

    pub fn byte(&mut self, what: &'static str) -> Result<u8, RecordError> {
        let (&byte, rest) = self.rest.split_first().ok_or(RecordError::Invalid(what))?;
        self.rest = rest;
        Ok(byte)
    }

    pub fn varint(&mut self, what: &'static str) -> Result<u64, RecordError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte(what)?;
            let bits = u64::from(byte & 0x7F);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(RecordError::Invalid(what))
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
