//! QoS 1 and 2 towards a client: the window of unacknowledged messages and the queue behind it.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::message::{Lifetime, Message};
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
    last_id: u16,
    inflight: HashMap<PacketId, Inflight>,
    /// Counts sends, so that a resume can restore their order.
    sent: u64,
    /// Identifiers to send again on this connection, oldest first.
    resend: VecDeque<PacketId>,
    queue: VecDeque<Queued>,
    queued_bytes: usize,
    inflight_bytes: usize,
}

#[derive(Debug)]
struct Inflight {
    order: u64,
    /// `None` once PUBREC came: only PUBREL is owed, whether the message expires or not.
    publish: Option<Queued>,
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
    /// unacknowledged messages [MQTT-3.3.4-9] or of `bounds.max_bytes` is full. Messages that expired in the queue are
    /// dropped and counted in `expired`; one that was sent before is sent again all the same.
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
            return Some(match self.inflight.get(&id)?.publish.as_ref() {
                Some(queued) => Step::Publish { id, dup: true, queued },
                None => Step::Release(id),
            });
        }
        if self.inflight_bytes >= bounds.max_bytes && !self.inflight.is_empty() {
            return None;
        }
        loop {
            let queued = self.pop_queue()?;
            if queued.message.lifetime(now_ms) == Lifetime::Expired {
                *expired += 1;
                continue;
            }
            let id = self.free_id();
            self.sent += 1;
            self.inflight_bytes += queued.size_bytes();
            let entry = Inflight { order: self.sent, publish: Some(queued) };
            let entry = self.inflight.entry(id).insert(entry).into_mut();
            return entry.publish.as_ref().map(|queued| Step::Publish { id, dup: false, queued });
        }
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
        let Some(entry) = self.inflight.get_mut(&id) else { return PubRecOutcome::Unknown };
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
            self.inflight.iter().map(|(id, entry)| (entry.order, *id)).collect();
        order.sort_unstable();
        self.resend = order.into_iter().map(|(_, id)| id).collect();
    }

    /// Takes out what other members of share groups are to get when this session ends: everything
    /// queued, and QoS 1 messages that were not acknowledged, in the order of sending. A QoS 2
    /// message that was sent goes to nobody else [MQTT-4.8.2-5].
    pub fn take_shared(&mut self) -> Vec<Queued> {
        let mut sent: Vec<(u64, Queued)> = self
            .inflight
            .extract_if(|_, entry| {
                let shared =
                    |q: &Queued| q.delivery.share.is_some() && q.delivery.qos == QoS::AtLeastOnce;
                entry.publish.as_ref().is_some_and(shared)
            })
            .filter_map(|(_, entry)| Some((entry.order, entry.publish?)))
            .collect();
        sent.sort_unstable_by_key(|(order, _)| *order);
        self.inflight_bytes -= sent.iter().map(|(_, queued)| queued.size_bytes()).sum::<usize>();
        self.resend.retain(|id| self.inflight.contains_key(id));
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

    fn finish(&mut self, id: PacketId, legal: impl FnOnce(&Inflight) -> bool) -> bool {
        if !self.inflight.get(&id).is_some_and(legal) {
            return false;
        }
        self.forget(id);
        true
    }

    /// Takes an exchange out, also where it waits to be sent again: a client may answer before
    /// that, to what it got on an earlier connection.
    fn forget(&mut self, id: PacketId) {
        if let Some(entry) = self.inflight.remove(&id) {
            self.inflight_bytes -= entry.publish.map_or(0, |queued| queued.size_bytes());
        }
        if self.resend.front() == Some(&id) {
            self.resend.pop_front();
        } else if !self.resend.is_empty() {
            self.resend.retain(|other| *other != id);
        }
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
        Some(queued)
    }

    /// A rolling counter that skips identifiers in use [MQTT-2.2.1-2]; the window is at most
    /// 65535, and one is free when this is called.
    fn free_id(&mut self) -> PacketId {
        loop {
            self.last_id = self.last_id.wrapping_add(1);
            if let Some(id) = PacketId::new(self.last_id)
                && !self.inflight.contains_key(&id)
            {
                return id;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::Draft;
    use super::*;

    const BOUNDS: QueueBounds =
        QueueBounds { max_messages: 3, max_bytes: 100_000, when_full: QueueFull::DropNew };

    fn queued(payload: &str, qos: QoS) -> Queued {
        let message = Message::keep(&Draft {
            topic: "t",
            payload: payload.as_bytes(),
            owner: None,
            properties: &[],
            qos,
            retain: false,
            expires_at_ms: None,
            origin: 0,
        });
        let delivery =
            Delivery { qos, retain: false, subscription_ids: SmallVec::new(), share: None };
        Queued { message: Arc::new(message), delivery }
    }

    fn next(outgoing: &mut Outgoing, window: u16) -> Option<(u16, bool, String)> {
        let mut expired = 0;
        Some(match outgoing.next_step(window, &BOUNDS, 0, &mut expired)? {
            Step::Publish { id, dup, queued } => {
                let draft = queued.message.draft();
                (id.get(), dup, String::from_utf8_lossy(draft.payload).into_owned())
            }
            Step::Release(id) => (id.get(), true, "PUBREL".into()),
        })
    }

    fn id(n: u16) -> PacketId {
        PacketId::new(n).unwrap()
    }

    #[test]
    fn the_window_holds_back_and_acknowledgements_open_it() {
        let mut out = Outgoing::default();
        for payload in ["a", "b", "c"] {
            out.enqueue(queued(payload, QoS::AtLeastOnce), &BOUNDS).unwrap();
        }
        assert_eq!(
            out.enqueue(queued("d", QoS::AtLeastOnce), &BOUNDS),
            Err(Rejected { dropped: 1 })
        );
        assert_eq!(next(&mut out, 2), Some((1, false, "a".into())));
        assert_eq!(next(&mut out, 2), Some((2, false, "b".into())));
        assert_eq!(next(&mut out, 2), None);
        assert!(!out.on_puback(id(9)));
        assert!(out.on_puback(id(2)));
        assert_eq!(next(&mut out, 2), Some((3, false, "c".into())));
        assert_eq!((out.queued(), out.queued_bytes(), out.inflight()), (0, 0, 2));
    }

    #[test]
    fn drop_old_makes_room() {
        let mut out = Outgoing::default();
        let bounds = QueueBounds { when_full: QueueFull::DropOld, ..BOUNDS };
        for payload in ["a", "b", "c"] {
            out.enqueue(queued(payload, QoS::AtLeastOnce), &bounds).unwrap();
        }
        assert_eq!(
            out.enqueue(queued("d", QoS::AtLeastOnce), &bounds),
            Err(Rejected { dropped: 1 })
        );
        assert_eq!(next(&mut out, 9), Some((1, false, "b".into())));
    }

    #[test]
    fn a_resume_repeats_in_order_with_dup_and_the_window_counts_it() {
        let mut out = Outgoing::default();
        for payload in ["a", "b", "c"] {
            out.enqueue(queued(payload, QoS::ExactlyOnce), &BOUNDS).unwrap();
        }
        for _ in 0..3 {
            next(&mut out, 9);
        }
        assert_eq!(out.on_pubrec(id(2), false), PubRecOutcome::Release);
        out.enqueue(queued("d", QoS::ExactlyOnce), &BOUNDS).unwrap();
        out.resume();
        assert_eq!(next(&mut out, 2), Some((1, true, "a".into())));
        assert_eq!(next(&mut out, 2), Some((2, true, "PUBREL".into())));
        assert_eq!(next(&mut out, 2), None);
        assert!(out.on_pubcomp(id(2)));
        assert_eq!(next(&mut out, 2), Some((3, true, "c".into())));
        assert_eq!(out.on_pubrec(id(1), false), PubRecOutcome::Release);
        assert!(out.on_pubcomp(id(1)));
        assert_eq!(next(&mut out, 2), Some((4, false, "d".into())));
    }

    #[test]
    fn a_refused_or_unknown_qos_2_exchange_is_over() {
        let mut out = Outgoing::default();
        out.enqueue(queued("a", QoS::ExactlyOnce), &BOUNDS).unwrap();
        next(&mut out, 9);
        assert!(!out.on_puback(id(1)), "PUBACK for QoS 2 is not an end");
        assert_eq!(out.on_pubrec(id(1), true), PubRecOutcome::Over);
        assert_eq!(out.on_pubrec(id(1), false), PubRecOutcome::Unknown);
        assert!(!out.on_pubcomp(id(1)));
    }

    #[test]
    fn identifiers_wrap_around_and_skip_those_in_use() {
        let mut out = Outgoing::default();
        out.enqueue(queued("old", QoS::AtLeastOnce), &BOUNDS).unwrap();
        assert_eq!(next(&mut out, 9), Some((1, false, "old".into())));
        for round in 0..70_000u32 {
            out.enqueue(queued("x", QoS::AtLeastOnce), &BOUNDS).unwrap();
            let (got, _, _) = next(&mut out, 9).unwrap();
            assert_ne!(got, 1, "round {round}");
            assert!(out.on_puback(id(got)));
        }
    }

    #[test]
    fn expired_messages_leave_the_queue_but_not_an_exchange() {
        let mut out = Outgoing::default();
        let mut dying = queued("late", QoS::ExactlyOnce);
        let draft = Draft { expires_at_ms: 10.try_into().ok(), ..dying.message.draft() };
        dying =
            Queued { message: Arc::new(Message::keep(&draft)), delivery: dying.delivery.clone() };
        out.enqueue(dying.clone(), &BOUNDS).unwrap();
        next(&mut out, 9);
        assert_eq!(out.on_pubrec(id(1), false), PubRecOutcome::Release);
        out.enqueue(dying, &BOUNDS).unwrap();
        out.resume();
        let mut expired = 0;
        assert!(matches!(out.next_step(9, &BOUNDS, 50, &mut expired), Some(Step::Release(_))));
        assert!(out.next_step(9, &BOUNDS, 50, &mut expired).is_none());
        assert_eq!(expired, 1);
    }

    #[test]
    fn what_a_share_group_is_owed_can_be_taken_out() {
        let mut out = Outgoing::default();
        let of = |payload: &str, qos, share: Option<&str>| {
            let mut queued = queued(payload, qos);
            queued.delivery.share = share.map(Arc::from);
            queued
        };
        let bounds = QueueBounds { max_messages: 9, ..BOUNDS };
        for entry in [
            of("sent 1", QoS::AtLeastOnce, Some("g")),
            of("sent 2", QoS::ExactlyOnce, Some("g")),
            of("own", QoS::AtLeastOnce, None),
            of("queued 1", QoS::ExactlyOnce, Some("g")),
            of("queued 2", QoS::AtLeastOnce, Some("h")),
            of("queued own", QoS::AtLeastOnce, None),
        ] {
            out.enqueue(entry, &bounds).unwrap();
        }
        for _ in 0..3 {
            next(&mut out, 3);
        }
        let text = |queued: Vec<Queued>| -> Vec<String> {
            let payload = |q: &Queued| String::from_utf8_lossy(q.message.draft().payload).into();
            queued.iter().map(payload).collect()
        };
        assert_eq!(text(out.take_queued_of("h")), ["queued 2"]);
        assert_eq!(text(out.take_shared()), ["sent 1", "queued 1"]);
        assert_eq!((out.inflight(), out.queued()), (2, 1));
        assert_eq!(out.queued_bytes(), of("queued own", QoS::AtLeastOnce, None).size_bytes());
    }

    #[test]
    fn a_refusal_before_the_resend_leaves_nothing_behind() {
        let mut out = Outgoing::default();
        for payload in ["a", "b"] {
            out.enqueue(queued(payload, QoS::ExactlyOnce), &BOUNDS).unwrap();
            next(&mut out, 9);
        }
        out.resume();
        assert_eq!(out.on_pubrec(id(1), true), PubRecOutcome::Over);
        assert_eq!(next(&mut out, 9), Some((2, true, "b".into())));
        assert_eq!(next(&mut out, 9), None);
        assert_eq!(out.on_pubrec(id(2), true), PubRecOutcome::Over);
        assert_eq!((out.inflight(), out.inflight_bytes), (0, 0));
    }

    #[test]
    fn bytes_close_the_window_too_but_never_for_one_message() {
        let mut out = Outgoing::default();
        let bounds = QueueBounds { max_bytes: 10, ..BOUNDS };
        for payload in ["a", "b"] {
            out.enqueue(queued(payload, QoS::AtLeastOnce), &BOUNDS).unwrap();
        }
        let mut expired = 0;
        assert!(out.next_step(9, &bounds, 0, &mut expired).is_some());
        assert!(out.next_step(9, &bounds, 0, &mut expired).is_none());
        assert!(out.on_puback(id(1)));
        assert!(out.next_step(9, &bounds, 0, &mut expired).is_some());
    }
}
