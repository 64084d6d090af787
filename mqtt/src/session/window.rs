//! What was sent to a client and not acknowledged, by packet identifier.

use std::collections::{BTreeMap, VecDeque};

use super::outgoing::Queued;
use super::place::Place;
use super::reference::Owed;
use crate::wire::PacketId;

/// Packet identifiers: 1 to 65535.
const IDS: usize = 65_535;
/// How much longer than twice its contents the ring may be.
const SLACK: usize = 64;
/// An empty ring or queue keeps room for this many; more was one burst's.
pub(super) const KEPT: usize = 64;

/// One exchange that the client has not ended.
#[derive(Debug)]
pub(super) struct Inflight {
    /// Counts sends, so that a resume can restore their order; the message's number where it has
    /// one, which grows alike.
    pub(super) order: u64,
    /// The record of the message or, once PUBREC came, of that.
    pub(super) place: Place,
    /// `None` once PUBREC came: only PUBREL is owed, whether the message expires or not.
    pub(super) publish: Option<Owed>,
}

impl Inflight {
    fn queued(&self) -> Option<&Queued> {
        self.publish.as_ref().and_then(Owed::here)
    }
}

/// The exchanges under way, and the identifiers of those to come.
///
/// Identifiers are given out one after another and mostly come back in that order, so the exchanges
/// lie in a ring by identifier. One that stays open while many behind it come and go is set aside:
/// the ring is never much longer than twice what it holds.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Identifier - 1 of the ring's front; of the next one given out while the ring is empty.
    front: usize,
    /// The front is an exchange, if there is any.
    ring: VecDeque<Option<Inflight>>,
    /// Exchanges in the ring.
    in_ring: usize,
    aside: BTreeMap<PacketId, Inflight>,
    /// Exchanges so far.
    sent: u64,
}

impl Window {
    /// How many exchanges are under way.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.in_ring + self.aside.len()
    }

    /// Begins an exchange: a rolling counter that skips identifiers in use [MQTT-2.2.1-4]. Fewer
    /// than 65535 must be under way.
    #[inline]
    pub(super) fn begin(&mut self, queued: Queued) -> (PacketId, Option<&Queued>) {
        let id = self.free_id();
        self.sent += 1;
        self.in_ring += 1;
        let place = queued.place;
        let publish = Some(Owed::Here(queued));
        self.ring.push_back(Some(Inflight { order: self.sent, place, publish }));
        let entry = self.ring.back().and_then(Option::as_ref);
        (id, entry.and_then(Inflight::queued))
    }

    /// Begins an exchange under an identifier that is given. It must be free.
    pub(super) fn begin_as(&mut self, id: PacketId, entry: Inflight) -> Option<&Queued> {
        debug_assert!(self.get(id).is_none(), "an identifier is used twice");
        self.sent = self.sent.max(entry.order);
        // Numbers that were never sent leave gaps; a wide one sets aside what is before it.
        let place = loop {
            let place = self.place(id);
            if self.ring.is_empty() {
                self.front = usize::from(id.get()) - 1;
                break 0;
            }
            if place < IDS.min(2 * self.in_ring + SLACK) {
                break place;
            }
            self.set_front_aside();
        };
        while self.ring.len() <= place {
            self.ring.push_back(None);
        }
        self.in_ring += 1;
        self.ring[place].insert(entry).queued()
    }

    /// Orders those to come behind `order`.
    pub(super) fn raise_order(&mut self, order: u64) {
        self.sent = self.sent.max(order);
    }

    /// The order of the last exchange that began.
    #[inline]
    pub(super) fn last_order(&self) -> u64 {
        self.sent
    }

    #[inline]
    pub(super) fn get(&self, id: PacketId) -> Option<&Inflight> {
        match self.ring.get(self.place(id)) {
            Some(Some(entry)) => Some(entry),
            _ => self.aside.get(&id),
        }
    }

    pub(super) fn get_mut(&mut self, id: PacketId) -> Option<&mut Inflight> {
        let place = self.place(id);
        match self.ring.get_mut(place) {
            Some(Some(entry)) => Some(entry),
            _ => self.aside.get_mut(&id),
        }
    }

    /// Takes an exchange out, if it is one that `is_over` agrees to.
    #[inline]
    pub(super) fn end_if(
        &mut self,
        id: PacketId,
        is_over: impl FnOnce(&Inflight) -> bool,
    ) -> Option<Inflight> {
        let place = self.place(id);
        match self.ring.get_mut(place) {
            Some(slot @ Some(_)) => {
                let entry = slot.take_if(|entry| is_over(entry))?;
                self.in_ring -= 1;
                self.trim();
                Some(entry)
            }
            _ => {
                self.aside.get(&id).filter(|entry| is_over(entry))?;
                self.aside.remove(&id)
            }
        }
    }

    /// All exchanges, in no order.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Inflight> {
        self.ring.iter_mut().flatten().chain(self.aside.values_mut())
    }

    /// All exchanges, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (PacketId, &Inflight)> {
        let in_ring = self.ring.iter().enumerate();
        let in_ring = in_ring.filter_map(|(at, slot)| Some((self.id(at), slot.as_ref()?)));
        in_ring.chain(self.aside.iter().map(|(id, entry)| (*id, entry)))
    }

    /// Takes out the exchanges that are `wanted`, in no order.
    pub(super) fn take(&mut self, wanted: impl Fn(&Inflight) -> bool) -> Vec<Inflight> {
        let slots = self.ring.iter_mut();
        let mut taken: Vec<_> = slots.filter_map(|slot| slot.take_if(|it| wanted(it))).collect();
        self.in_ring -= taken.len();
        self.trim();
        taken.extend(self.aside.extract_if(.., |_, entry| wanted(entry)).map(|(_, entry)| entry));
        taken
    }

    #[inline]
    fn free_id(&mut self) -> PacketId {
        loop {
            while self.ring.len() >= IDS.min(2 * self.in_ring + SLACK) {
                self.set_front_aside();
            }
            let id = self.id(self.ring.len());
            if self.aside.is_empty() || !self.aside.contains_key(&id) {
                return id;
            }
            if self.ring.is_empty() {
                self.front = (self.front + 1) % IDS;
            } else {
                self.ring.push_back(None);
            }
        }
    }

    #[cold]
    fn set_front_aside(&mut self) {
        let id = self.id(0);
        if let Some(slot) = self.ring.front_mut()
            && let Some(entry) = slot.take()
        {
            self.aside.insert(id, entry);
            self.in_ring -= 1;
        }
        self.trim();
    }

    /// The identifier at a place of the ring, or behind its end.
    #[inline]
    fn id(&self, place: usize) -> PacketId {
        let at = (self.front + place) % IDS;
        PacketId::new(at as u16 + 1).unwrap_or(PacketId::MIN)
    }

    /// Where in the ring an identifier belongs; behind its end if it is none of the ring's.
    #[inline]
    fn place(&self, id: PacketId) -> usize {
        let at = usize::from(id.get()) - 1;
        if at >= self.front { at - self.front } else { at + IDS - self.front }
    }

    #[inline]
    fn trim(&mut self) {
        while let Some(None) = self.ring.front() {
            self.ring.pop_front();
            self.front = (self.front + 1) % IDS;
        }
        if self.ring.is_empty() && self.ring.capacity() > KEPT {
            self.ring = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::super::message::{Draft, Message};
    use super::super::outgoing::Delivery;
    use super::*;
    use crate::wire::QoS;

    fn queued() -> Queued {
        let message = Message::keep(&Draft {
            topic: "t",
            payload: b"",
            owner: None,
            properties: &[],
            qos: QoS::AtLeastOnce,
            retain: false,
            expires_at_ms: None,
            origin: 0,
        });
        let qos = QoS::AtLeastOnce;
        let delivery =
            Delivery { qos, retain: false, subscription_ids: Default::default(), share: None };
        Queued::new(Arc::new(message), delivery)
    }

    fn id(n: u16) -> PacketId {
        PacketId::new(n).unwrap()
    }

    /// The same, as plain as it can be.
    #[derive(Default)]
    struct Model {
        last: u16,
        open: BTreeMap<u16, u64>,
    }

    impl Model {
        fn begin(&mut self, order: u64) -> u16 {
            loop {
                self.last = self.last.checked_add(1).unwrap_or(1);
                if !self.open.contains_key(&self.last) {
                    self.open.insert(self.last, order);
                    return self.last;
                }
            }
        }
    }

    #[test]
    fn behaves_like_a_map_under_any_order_of_ends() {
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 33) as usize % below
        };
        // How many may be open, and how much the oldest are preferred when one ends.
        for (most, oldest) in [(1, 100), (20, 95), (1_000, 50), (3_000, 0), (300, 99)] {
            let mut window = Window { front: IDS - 3_000, ..Window::default() };
            let mut model = Model { last: (IDS - 3_000) as u16, ..Model::default() };
            for order in 1..=20_000 {
                if window.len() < most && next(2) == 0 {
                    let (id, queued) = window.begin(queued());
                    assert!(queued.is_some());
                    assert_eq!(id.get(), model.begin(order), "{most} {oldest}");
                    assert_eq!(window.get(id).map(|entry| entry.order), Some(window.sent));
                } else if !model.open.is_empty() {
                    let at = if next(100) < oldest { 0 } else { next(model.open.len()) };
                    let ended = *model.open.keys().nth(at.min(50)).unwrap();
                    model.open.remove(&ended);
                    assert!(window.end_if(id(ended), |_| false).is_none());
                    assert!(window.end_if(id(ended), |_| true).is_some());
                    assert!(window.end_if(id(ended), |_| true).is_none());
                    assert!(window.get_mut(id(ended)).is_none());
                }
                assert_eq!(window.len(), model.open.len());
                assert!(window.ring.len() <= 2 * window.in_ring + 2 * SLACK + 2);
            }
            let mut ids: Vec<u16> = window.iter().map(|(id, _)| id.get()).collect();
            ids.sort_unstable();
            assert_eq!(ids, model.open.into_keys().collect::<Vec<_>>());
            assert_eq!(window.take(|_| true).len(), ids.len());
            assert_eq!((window.len(), window.ring.len()), (0, 0));
            assert!(window.ring.capacity() <= KEPT);
        }
    }

    #[test]
    fn all_identifiers_but_one_in_use() {
        let mut window = Window::default();
        for n in 1..=u16::MAX {
            assert_eq!(window.begin(queued()).0, id(n));
        }
        for n in [65_535, 1, 700, 699, 30_000, 1, 2] {
            assert!(window.end_if(id(n), |_| true).is_some());
            assert_eq!(window.begin(queued()).0, id(n));
            assert_eq!(window.len(), IDS);
        }
    }

    #[test]
    fn identifiers_that_are_given_may_leave_gaps() {
        let entry =
            |order| Inflight { order, place: Place::NONE, publish: Some(Owed::Here(queued())) };
        let mut window = Window::default();
        let mut model = BTreeMap::new();
        let mut order = 0;
        // Gaps of all widths, all the way round and over the end.
        for step in 0..4_000_u64 {
            order += [1, 1, 1, 2, 70, 300, 20_000][step as usize % 7];
            let given = (order % 65_535) as u16 + 1;
            if model.contains_key(&given) {
                assert!(window.end_if(id(given), |_| true).is_some());
            }
            assert!(window.begin_as(id(given), entry(order)).is_some());
            model.insert(given, order);
            if step % 3 == 0
                && let Some((&ended, _)) = model.iter().nth(step as usize % model.len())
            {
                model.remove(&ended);
                assert!(window.end_if(id(ended), |_| true).is_some());
            }
            assert_eq!((window.len(), window.last_order()), (model.len(), order));
            assert!(window.ring.len() <= 2 * window.in_ring + 2 * SLACK + 2 || window.in_ring > 0);
        }
        for (given, order) in model {
            assert_eq!(window.get(id(given)).map(|entry| entry.order), Some(order));
        }
    }
}
