//! QoS 1 and 2 towards a client: the window of unacknowledged messages and the queue behind it.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use super::message::{Lifetime, Message};
use super::window::{Inflight, KEPT, Window};
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
}

impl Queued {
    /// The message and what delivering it takes, the size that the bounds count.
    pub fn size_bytes(&self) -> usize {
        let ids = self.delivery.subscription_ids.len() * size_of::<u32>();
        size_of::<Self>() + ids + self.message.size_bytes()
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
    inflight: Window,
    /// Identifiers to send again on this connection, oldest first.
    resend: VecDeque<PacketId>,
    queue: VecDeque<Queued>,
    queued_bytes: usize,
    inflight_bytes: usize,
}

impl Outgoing {
    /// Puts a message at the end of the queue.
    ///
    /// # Errors
    /// [`Rejected`] when the bounds are reached, after applying their policy.
    pub fn enqueue(&mut self, queued: Queued, bounds: &QueueBounds) -> Result<(), Rejected> {
        let size = queued.size_bytes();
        let mut dropped = 0;
        // One message always fits an empty queue: a bound below its size would stop it for ever.
        while !self.queue.is_empty()
            && (self.queue.len() >= bounds.max_messages
                || self.queued_bytes + size > bounds.max_bytes)
        {
            dropped += 1;
            if bounds.when_full == QueueFull::DropNew {
                return Err(Rejected { dropped });
            }
            self.pop_queue();
        }
        self.queued_bytes += size;
        self.queue.push_back(queued);
        if dropped > 0 { Err(Rejected { dropped }) } else { Ok(()) }
    }

    /// The next packet to send, or `None` when nothing is owed, or the window of `window`
    /// unacknowledged messages [MQTT-3.3.4-9] or of `bounds.max_bytes` is full. Messages that
    /// expired in the queue are dropped and counted in `expired`; one that was sent before is sent
    /// again all the same.
    pub fn next_step(
        &mut self,
        window: u16,
        bounds: &QueueBounds,
        now_ms: u64,
        expired: &mut u64,
    ) -> Option<Step<'_>> {
        let unsent = self.resend.len();
        if self.inflight.len().saturating_sub(unsent) >= usize::from(window) {
            return None;
        }
        if let Some(id) = self.resend.pop_front() {
            return Some(match self.inflight.get(id)?.publish.as_ref() {
                Some(queued) => Step::Publish { id, dup: true, queued },
                None => Step::Release(id),
            });
        }
        if self.inflight_bytes >= bounds.max_bytes && self.inflight.len() > 0 {
            return None;
        }
        loop {
            let queued = self.pop_queue()?;
            if queued.message.lifetime(now_ms) == Lifetime::Expired {
                *expired += 1;
                continue;
            }
            return self.begin(queued);
        }
    }

    /// Sends a message at once, past an empty queue: what [`enqueue`](Self::enqueue) and
    /// [`next_step`](Self::next_step) would lead to. Gives it back when it has to go that way.
    ///
    /// # Errors
    /// The message, when others are owed before it, the window is full, or it has expired.
    #[inline]
    pub fn send_at_once(
        &mut self,
        queued: Queued,
        window: u16,
        bounds: &QueueBounds,
        now_ms: u64,
    ) -> Result<Option<Step<'_>>, Queued> {
        let open = self.queue.is_empty()
            && self.resend.is_empty()
            && self.inflight.len() < usize::from(window)
            && (self.inflight_bytes < bounds.max_bytes || self.inflight.len() == 0)
            && queued.message.lifetime(now_ms) != Lifetime::Expired;
        if open { Ok(self.begin(queued)) } else { Err(queued) }
    }

    /// Whether anything waits to be sent.
    #[inline]
    pub fn owes(&self) -> bool {
        !self.queue.is_empty() || !self.resend.is_empty()
    }

    /// Forgets the message that `next_step` just gave: the client cannot take it (too large), and
    /// the server acts as if it had been delivered [MQTT-3.1.2-25].
    pub fn abandon(&mut self, id: PacketId) {
        self.forget(id);
    }

    /// PUBACK: the message is delivered. False when the identifier is unknown.
    pub fn on_puback(&mut self, id: PacketId) -> bool {
        self.finish(id, |entry| {
            entry.publish.as_ref().is_some_and(|q| q.delivery.qos == QoS::AtLeastOnce)
        })
    }

    /// PUBREC with or without an error code.
    pub fn on_pubrec(&mut self, id: PacketId, refused: bool) -> PubRecOutcome {
        let Some(entry) = self.inflight.get_mut(id) else { return PubRecOutcome::Unknown };
        match &entry.publish {
            Some(queued) if queued.delivery.qos != QoS::ExactlyOnce => PubRecOutcome::Unknown,
            _ if refused => {
                self.forget(id);
                PubRecOutcome::Over
            }
            _ => {
                let payload = entry.publish.take();
                self.inflight_bytes -= payload.map_or(0, |queued| queued.size_bytes());
                PubRecOutcome::Release
            }
        }
    }

    /// PUBCOMP: the exchange is over. False when no PUBREL was owed for the identifier.
    pub fn on_pubcomp(&mut self, id: PacketId) -> bool {
        self.finish(id, |entry| entry.publish.is_none())
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
    pub fn take_shared(&mut self) -> Vec<Queued> {
        let shared = |q: &Queued| q.delivery.share.is_some() && q.delivery.qos == QoS::AtLeastOnce;
        let mut sent: Vec<(u64, Queued)> = self
            .inflight
            .take(|entry| entry.publish.as_ref().is_some_and(shared))
            .into_iter()
            .filter_map(|entry| Some((entry.order, entry.publish?)))
            .collect();
        sent.sort_unstable_by_key(|(order, _)| *order);
        self.inflight_bytes -= sent.iter().map(|(_, queued)| queued.size_bytes()).sum::<usize>();
        self.resend.retain(|id| self.inflight.get(*id).is_some());
        let mut taken: Vec<Queued> = sent.into_iter().map(|(_, queued)| queued).collect();
        taken.extend(self.take_queued(|share| share.is_some()));
        taken
    }

    /// Takes out what waits in the queue for one shared subscription, which this session leaves.
    pub fn take_queued_of(&mut self, share: &str) -> Vec<Queued> {
        self.take_queued(|queued| queued == Some(share))
    }

    /// Messages waiting for the window.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Bytes waiting for the window.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Messages sent and not acknowledged.
    pub fn inflight(&self) -> usize {
        self.inflight.len()
    }

    #[inline]
    fn begin(&mut self, queued: Queued) -> Option<Step<'_>> {
        self.inflight_bytes += queued.size_bytes();
        let (id, queued) = self.inflight.begin(queued);
        queued.map(|queued| Step::Publish { id, dup: false, queued })
    }

    fn forget(&mut self, id: PacketId) {
        self.finish(id, |_| true);
    }

    /// Takes an exchange out if it is `legal` now, also where it waits to be sent again: a client
    /// may answer before that, to what it got on an earlier connection.
    #[inline]
    fn finish(&mut self, id: PacketId, legal: impl FnOnce(&Inflight) -> bool) -> bool {
        let Some(entry) = self.inflight.end_if(id, legal) else { return false };
        self.inflight_bytes -= entry.publish.map_or(0, |queued| queued.size_bytes());
        if self.resend.front() == Some(&id) {
            self.resend.pop_front();
        } else if !self.resend.is_empty() {
            self.resend.retain(|other| *other != id);
        }
        true
    }

    fn take_queued(&mut self, wanted: impl Fn(Option<&str>) -> bool) -> Vec<Queued> {
        let (taken, kept): (Vec<_>, VecDeque<_>) = std::mem::take(&mut self.queue)
            .into_iter()
            .fold((Vec::new(), VecDeque::new()), |(mut taken, mut kept), queued| {
                match wanted(queued.delivery.share.as_deref()) {
                    true => taken.push(queued),
                    false => kept.push_back(queued),
                }
                (taken, kept)
            });
        self.queue = kept;
        self.queued_bytes -= taken.iter().map(Queued::size_bytes).sum::<usize>();
        taken
    }

    fn pop_queue(&mut self) -> Option<Queued> {
        let queued = self.queue.pop_front()?;
        self.queued_bytes -= queued.size_bytes();
        if self.queue.is_empty() && self.queue.capacity() > KEPT {
            self.queue = VecDeque::new();
        }
        Some(queued)
    }
}

#[cfg(test)]
mod tests;
