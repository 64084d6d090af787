//! QoS 1 and 2 towards a client: the window of unacknowledged messages and the queue behind it.
//!
//! A session that outlives the process *numbers* its messages, in the order of the queue and for
//! ever upwards. The packet identifier follows from the number, so that a message is sent again under
//! the identifier that its client knows, also by the next process, without a record of each send.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use super::message::{Lifetime, Message};
use super::place::{Place, Progress};
use super::queue::Queue;
use super::reference::Owed;
use super::window::{Inflight, Window};
use crate::wire::{PacketId, QoS};

/// How a message is to be delivered to this session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The lower of the message's and the subscription's QoS; 1 or 2 here.
    pub qos: QoS,
    /// Retain flag of the delivery.
    pub retain: bool,
    /// Identifiers of all subscriptions that matched.
    pub subscription_ids: SmallVec<[u32; 2]>,
    /// The shared subscription that chose this session, as `$share/NAME/FILTER`.
    pub share: Option<Arc<str>>,
}

/// A message with how to deliver it.
#[derive(Clone, Debug)]
pub struct Queued {
    /// The message.
    pub message: Arc<Message>,
    /// How.
    pub delivery: Delivery,
    /// Its number in a session that numbers; 0 in others.
    pub seq: u64,
    /// Its record.
    pub place: Place,
}

impl Queued {
    /// Whether it must not be sent yet, when all records before `stored` are on disk.
    #[inline]
    fn waits_for(&self, stored: Place) -> bool {
        self.place >= stored && self.delivery.qos == QoS::ExactlyOnce
    }

    /// A message without a number and without a record.
    pub fn new(message: Arc<Message>, delivery: Delivery) -> Self {
        Self { message, delivery, seq: 0, place: Place::NONE }
    }

    /// The message and what delivering it takes, the size that the bounds count.
    pub fn size_bytes(&self) -> usize {
        Self::size_of(self.delivery.subscription_ids.len(), self.message.size_bytes())
    }

    #[inline]
    pub(super) fn size_of(ids: usize, message_bytes: usize) -> usize {
        size_of::<Self>() + ids * size_of::<u32>() + message_bytes
    }
}

/// Bounds of one session's queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueBounds {
    /// Messages.
    pub max_messages: usize,
    /// Bytes, by [`Queued::size_bytes`]: of the queue, and again of what was sent and is not
    /// acknowledged.
    pub max_bytes: usize,
    /// What to do beyond.
    pub when_full: QueueFull,
}

/// What happens to a message for a full queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueFull {
    /// The new message is refused.
    #[default]
    DropNew,
    /// The oldest queued messages make room.
    DropOld,
}

/// The queue was full: how many messages were lost, the new one or older ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// Messages dropped.
    pub dropped: usize,
}

/// The next packet owed to the client.
#[derive(Debug)]
pub enum Step<'a> {
    /// Send this PUBLISH.
    Publish {
        /// Its identifier.
        id: PacketId,
        /// Whether it was sent before, on an earlier connection [MQTT-3.3.1-1].
        dup: bool,
        /// The message.
        queued: &'a Queued,
    },
    /// Send PUBREL again, after a resume.
    Release(PacketId),
}

/// What a PUBREC asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PubRecOutcome {
    /// Answer with PUBREL.
    Release,
    /// The client refused the message: the exchange is over [MQTT-4.4.0-2].
    Over,
    /// No such exchange: answer PUBREL with 0x92.
    Unknown,
}

/// The sending side of a session.
#[derive(Debug, Default)]
pub struct Outgoing {
    pub(super) inflight: Window,
    /// Identifiers to send again on this connection, oldest first.
    pub(super) resend: VecDeque<PacketId>,
    pub(super) queue: Queue,
    pub(super) inflight_bytes: usize,
    /// How many of those sent are references.
    pub(super) inflight_stored: usize,
    /// The number of the next message; 0 when they are not numbered.
    pub(super) next_seq: u64,
}

/// The packet identifier of a numbered message.
pub(super) fn id_of(seq: u64) -> PacketId {
    PacketId::new((seq % u64::from(u16::MAX)) as u16 + 1).unwrap_or(PacketId::MIN)
}

impl Outgoing {
    /// Puts a message at the end of the queue, with the next number where messages are numbered.
    /// What has a record and makes room is told to `progress`.
    ///
    /// # Errors
    /// [`Rejected`] when the bounds are reached, after applying their policy.
    pub fn enqueue(
        &mut self,
        mut queued: Queued,
        bounds: &QueueBounds,
        progress: &mut Vec<Progress>,
    ) -> Result<(), Rejected> {
        let size = queued.size_bytes();
        let mut dropped = 0;
        // One message always fits an empty queue: a bound below its size would stop it for ever.
        while !self.queue.is_empty()
            && (self.queue.len() >= bounds.max_messages
                || self.queue.bytes() + size > bounds.max_bytes)
        {
            dropped += 1;
            if bounds.when_full == QueueFull::DropNew {
                return Err(Rejected { dropped });
            }
            if let Some(old) = self.queue.pop() {
                Progress::done(old.seq(), old.place(), progress);
            }
        }
        self.number(&mut queued);
        self.queue.push(queued);
        if dropped > 0 { Err(Rejected { dropped }) } else { Ok(()) }
    }

    /// The next packet to send, or `None` when nothing is owed, or the window of `window`
    /// unacknowledged messages [MQTT-3.3.4-9] or of `bounds.max_bytes` is full. Messages that
    /// expired in the queue are dropped, counted in `expired`, and told to `progress`; one that was
    /// sent before is sent again all the same.
    ///
    /// QoS 2 waits for its record, and all behind it for their turn: what is not before `stored`
    /// could be lost and published again, and reach the client twice. A PUBREL waits for the record
    /// of its PUBREC: the client forgets the identifier when it comes, and a PUBLISH that is sent
    /// again would be a new message. And a numbered message waits while its identifier is under way,
    /// which only a client that leaves 65,535 others behind an unacknowledged one gets to see. What is
    /// a reference waits until it is [loaded](Self::load), and what is behind it for its turn.
    pub fn next_step(
        &mut self,
        window: u16,
        bounds: &QueueBounds,
        stored: Place,
        now_ms: u64,
        expired: &mut u64,
        progress: &mut Vec<Progress>,
    ) -> Option<Step<'_>> {
        let unsent = self.resend.len();
        if self.inflight.len().saturating_sub(unsent) >= usize::from(window) {
            return None;
        }
        if let Some(&id) = self.resend.front() {
            let waits = |entry: &Inflight| match &entry.publish {
                Some(owed) => owed.is_stored(),
                None => entry.place >= stored,
            };
            if self.inflight.get(id).is_some_and(waits) {
                return None;
            }
            self.resend.pop_front();
            return Some(match self.inflight.get(id)?.publish.as_ref() {
                Some(owed) => Step::Publish { id, dup: true, queued: owed.here()? },
                None => Step::Release(id),
            });
        }
        if self.inflight_bytes >= bounds.max_bytes && self.inflight.len() > 0 {
            return None;
        }
        loop {
            let first = self.queue.first_here()?;
            if first.message.lifetime(now_ms) != Lifetime::Expired {
                if first.waits_for(stored) || !self.may_begin(first.seq) {
                    return None;
                }
                let first = self.queue.pop_here()?;
                return self.begin(first);
            }
            if let Some(late) = self.queue.pop_here() {
                *expired += 1;
                Progress::done(late.seq, late.place, progress);
            }
        }
    }

    /// Sends a message at once, past an empty queue: what [`enqueue`](Self::enqueue) and
    /// [`next_step`](Self::next_step) would lead to. Gives it back when it has to go that way.
    ///
    /// # Errors
    /// The message, when others are owed before it, the window is full, it has expired, or it waits
    /// for its record.
    #[inline]
    pub fn send_at_once(
        &mut self,
        mut queued: Queued,
        window: u16,
        bounds: &QueueBounds,
        stored: Place,
        now_ms: u64,
    ) -> Result<Option<Step<'_>>, Queued> {
        let open = self.queue.is_empty()
            && self.resend.is_empty()
            && self.inflight.len() < usize::from(window)
            && (self.inflight_bytes < bounds.max_bytes || self.inflight.len() == 0)
            && queued.message.lifetime(now_ms) != Lifetime::Expired
            && !queued.waits_for(stored)
            && self.may_begin(self.next_seq);
        if !open {
            return Err(queued);
        }
        self.number(&mut queued);
        Ok(self.begin(queued))
    }

    /// Whether anything waits to be sent.
    #[inline]
    pub fn owes(&self) -> bool {
        !self.queue.is_empty() || !self.resend.is_empty()
    }

    /// Forgets the message that `next_step` just gave: the client cannot take it (too large), and
    /// the server acts as if it had been delivered [MQTT-3.1.2-25].
    pub fn abandon(&mut self, id: PacketId, progress: &mut Vec<Progress>) {
        self.forget(id, progress);
    }

    /// PUBACK: the message is delivered. False when the identifier is unknown.
    pub fn on_puback(&mut self, id: PacketId, progress: &mut Vec<Progress>) -> bool {
        self.finish(id, progress, |entry| {
            entry.publish.as_ref().is_some_and(|owed| owed.qos() == QoS::AtLeastOnce)
        })
    }

    /// PUBREC with or without an error code.
    pub fn on_pubrec(
        &mut self,
        id: PacketId,
        refused: bool,
        progress: &mut Vec<Progress>,
    ) -> PubRecOutcome {
        let Some(entry) = self.inflight.get_mut(id) else { return PubRecOutcome::Unknown };
        match &entry.publish {
            Some(owed) if owed.qos() != QoS::ExactlyOnce => PubRecOutcome::Unknown,
            _ if refused => {
                self.forget(id, progress);
                PubRecOutcome::Over
            }
            _ => {
                if let Some(owed) = entry.publish.take() {
                    self.inflight_bytes -= owed.size_bytes();
                    self.inflight_stored -= usize::from(owed.is_stored());
                    if self.next_seq == 0 || owed.seq() != entry.order {
                        // Recorded before the session ceased to outlive the process.
                        Progress::done(entry.order, entry.place, progress);
                        entry.place = Place::NONE;
                    } else if entry.place.is_recorded() {
                        progress.push(Progress::Received { seq: entry.order, place: entry.place });
                        entry.place = Place::PENDING;
                    }
                }
                PubRecOutcome::Release
            }
        }
    }

    /// PUBCOMP: the exchange is over. False when no PUBREL was owed for the identifier.
    pub fn on_pubcomp(&mut self, id: PacketId, progress: &mut Vec<Progress>) -> bool {
        self.finish(id, progress, |entry| entry.publish.is_none())
    }

    /// A new connection: everything unacknowledged is owed again, in the order it was first sent
    /// [MQTT-4.4.0-1], [MQTT-4.6.0-1].
    pub fn resume(&mut self) {
        let mut order: Vec<(u64, PacketId)> =
            self.inflight.iter().map(|(id, entry)| (entry.order, id)).collect();
        order.sort_unstable();
        self.resend = order.into_iter().map(|(_, id)| id).collect();
    }

    /// Takes out what other members of share groups are to get when this session ends: everything
    /// queued, and QoS 1 messages that were not acknowledged, in the order of sending. A QoS 2
    /// message that was sent goes to nobody else [MQTT-4.8.2-5].
    pub fn take_shared(&mut self) -> Vec<Owed> {
        let shared = |owed: &Owed| owed.share().is_some() && owed.qos() == QoS::AtLeastOnce;
        let mut sent: Vec<(u64, Owed)> = self
            .inflight
            .take(|entry| entry.publish.as_ref().is_some_and(shared))
            .into_iter()
            .filter_map(|entry| Some((entry.order, entry.publish?)))
            .collect();
        sent.sort_unstable_by_key(|(order, _)| *order);
        self.inflight_bytes -= sent.iter().map(|(_, owed)| owed.size_bytes()).sum::<usize>();
        self.inflight_stored -= sent.iter().filter(|(_, owed)| owed.is_stored()).count();
        self.resend.retain(|id| self.inflight.get(*id).is_some());
        let mut taken: Vec<Owed> = sent.into_iter().map(|(_, owed)| owed).collect();
        taken.extend(self.queue.take(|share| share.is_some()));
        taken
    }

    /// Takes out what waits in the queue for one shared subscription, which this session leaves.
    pub fn take_queued_of(&mut self, share: &str) -> Vec<Owed> {
        self.queue.take(|queued| queued == Some(share))
    }

    /// Messages waiting for the window.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Bytes waiting for the window.
    pub fn queued_bytes(&self) -> usize {
        self.queue.bytes()
    }

    /// Those of them that are in memory.
    pub fn queued_here_bytes(&self) -> usize {
        self.queue.here_bytes()
    }

    /// Messages sent and not acknowledged.
    pub fn inflight(&self) -> usize {
        self.inflight.len()
    }

    #[inline]
    fn begin(&mut self, queued: Queued) -> Option<Step<'_>> {
        self.inflight_bytes += queued.size_bytes();
        let (id, queued) = if queued.seq > 0 && self.next_seq > 0 {
            let id = id_of(queued.seq);
            let (order, place) = (queued.seq, queued.place);
            let publish = Some(Owed::Here(queued));
            (id, self.inflight.begin_as(id, Inflight { order, place, publish }))
        } else {
            self.inflight.begin(queued)
        };
        queued.map(|queued| Step::Publish { id, dup: false, queued })
    }

    /// Whether the identifier of a number is free; always where messages are not numbered.
    #[inline]
    fn may_begin(&self, seq: u64) -> bool {
        self.next_seq == 0 || seq == 0 || self.inflight.get(id_of(seq)).is_none()
    }

    #[inline]
    fn number(&mut self, queued: &mut Queued) {
        queued.seq = self.next_seq;
        self.next_seq += u64::from(self.next_seq > 0);
    }

    fn forget(&mut self, id: PacketId, progress: &mut Vec<Progress>) {
        self.finish(id, progress, |_| true);
    }

    /// Takes an exchange out if it is `legal` now, also where it waits to be sent again: a client
    /// may answer before that, to what it got on an earlier connection.
    #[inline]
    pub(super) fn finish(
        &mut self,
        id: PacketId,
        progress: &mut Vec<Progress>,
        legal: impl FnOnce(&Inflight) -> bool,
    ) -> bool {
        let Some(entry) = self.inflight.end_if(id, legal) else { return false };
        Progress::done(entry.order, entry.place, progress);
        if let Some(owed) = entry.publish {
            self.inflight_bytes -= owed.size_bytes();
            self.inflight_stored -= usize::from(owed.is_stored());
        }
        if self.resend.front() == Some(&id) {
            self.resend.pop_front();
        } else if !self.resend.is_empty() {
            self.resend.retain(|other| *other != id);
        }
        true
    }
}

#[cfg(test)]
mod tests;
