//! Who on this shard subscribed to one filter.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

use mqtt::wire::{QoS, RetainHandling, SubscribeOptions};

use super::SessionKey;
use super::share::Group;

/// What the shard's filter tree holds per filter: few bytes, because there is one per filter.
#[derive(Debug, Default)]
pub struct FilterEntry {
    /// Plain subscriptions, one per session.
    pub plain: List,
    /// Share groups with at least one member here, sorted by name.
    pub groups: Groups,
}

/// A list of share groups that is one pointer: most filters have none.
#[derive(Debug, Default)]
pub struct Groups(
    #[allow(clippy::box_collection, reason = "8 bytes, not 24, for each filter that has none")]
    Option<Box<Vec<Group>>>,
);

impl Deref for Groups {
    type Target = [Group];

    #[inline]
    fn deref(&self) -> &[Group] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }
}

impl DerefMut for Groups {
    fn deref_mut(&mut self) -> &mut [Group] {
        self.0.as_deref_mut().map_or(&mut [], Vec::as_mut_slice)
    }
}

impl Groups {
    fn insert(&mut self, at: usize, group: Group) {
        self.0.get_or_insert_default().insert(at, group);
    }

    fn remove(&mut self, at: usize) {
        let Some(groups) = &mut self.0 else { return };
        groups.remove(at);
        if groups.is_empty() {
            self.0 = None;
        }
    }
}

/// One session's subscription, packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscriber {
    /// The session.
    pub session: SessionKey,
    /// Subscription identifier; 0 for none.
    pub id: u32,
    flags: u8,
}

impl FilterEntry {
    /// Whether nobody is left.
    pub fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.groups.is_empty()
    }

    /// The share group of this name.
    pub fn group(&self, name: &str) -> Option<&Group> {
        self.groups.get(self.place(name).ok()?)
    }

    /// The share group of this name, to be changed.
    pub fn group_mut(&mut self, name: &str) -> Option<&mut Group> {
        let at = self.place(name).ok()?;
        self.groups.get_mut(at)
    }

    /// Adds a subscriber, or replaces the one of the same session; true when it is new. `raw` is
    /// the filter as the client wrote it, from which `share` is the name.
    pub fn add(&mut self, share: Option<&str>, raw: &str, subscriber: Subscriber) -> bool {
        let Some(name) = share else { return self.plain.add(subscriber) };
        match self.place(name) {
            Ok(at) => self.groups[at].members.add(subscriber),
            Err(at) => {
                self.groups.insert(at, Group::new(name, raw, subscriber));
                true
            }
        }
    }

    /// Removes a session's subscriber; true when it was there.
    pub fn remove(&mut self, share: Option<&str>, session: SessionKey) -> bool {
        let Some(name) = share else { return self.plain.remove(session) };
        let Ok(at) = self.place(name) else { return false };
        let removed = self.groups[at].members.remove(session);
        if self.groups[at].members.is_empty() {
            self.groups.remove(at);
        }
        removed
    }

    /// Where the group of this name is, or `Err` with where it would be.
    fn place(&self, name: &str) -> Result<usize, usize> {
        self.groups.binary_search_by(|group| (*group.name).cmp(name))
    }
}

/// From this many subscribers of one filter on, an index finds them: without it, a crowd that
/// leaves together costs the square of its size.
const INDEX_FROM: usize = 32;

/// Subscribers of distinct sessions, in an order that depends on the calls alone. Reads as a
/// slice. One subscriber, which is what most filters have, takes no memory of its own.
#[derive(Debug, Default)]
pub enum List {
    /// Exactly one.
    One(Subscriber),
    /// None.
    #[default]
    None,
    /// Up to [`INDEX_FROM`]: searched one by one.
    #[allow(clippy::box_collection, reason = "8 bytes, not 24, for each filter that has one")]
    Few(Box<Vec<Subscriber>>),
    /// More, or were more not long ago.
    Many(Box<Indexed>),
}

/// A list and where each session is in it.
#[derive(Debug)]
pub struct Indexed {
    list: Vec<Subscriber>,
    /// A tree, not a hash table: nobody can choose keys that make it slow.
    places: BTreeMap<SessionKey, u32>,
}

impl Deref for List {
    type Target = [Subscriber];

    #[inline]
    fn deref(&self) -> &[Subscriber] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::None => &[],
            Self::Few(list) => list,
            Self::Many(many) => &many.list,
        }
    }
}

impl List {
    /// Adds a subscriber, or replaces the one of the same session; true when it is new.
    pub fn add(&mut self, subscriber: Subscriber) -> bool {
        if let Some(known) = self.find(subscriber.session) {
            *known = subscriber;
            return false;
        }
        match self {
            Self::None => *self = Self::One(subscriber),
            Self::One(first) => *self = Self::Few(Box::new(vec![*first, subscriber])),
            Self::Few(list) if list.len() < INDEX_FROM => list.push(subscriber),
            Self::Few(list) => {
                let mut many =
                    Indexed { list: std::mem::take(&mut **list), places: BTreeMap::new() };
                many.list.push(subscriber);
                many.places = (0..).zip(&many.list).map(|(at, s)| (s.session, at)).collect();
                *self = Self::Many(Box::new(many));
            }
            Self::Many(many) => {
                many.places.insert(subscriber.session, many.list.len() as u32);
                many.list.push(subscriber);
            }
        }
        true
    }

    /// Removes a session's subscriber; true when it was there. The last one takes its place.
    pub fn remove(&mut self, session: SessionKey) -> bool {
        match self {
            Self::One(one) if one.session == session => *self = Self::default(),
            Self::One(_) | Self::None => return false,
            Self::Few(list) => {
                let at = list.iter().position(|known| known.session == session);
                let Some(at) = at else { return false };
                list.swap_remove(at);
                if let [last] = list[..] {
                    *self = Self::One(last);
                }
            }
            Self::Many(many) => {
                let Some(at) = many.places.remove(&session) else { return false };
                many.list.swap_remove(at as usize);
                if let Some(moved) = many.list.get(at as usize) {
                    many.places.insert(moved.session, at);
                }
                // Halfway down, so that one who comes and goes does not rebuild the index.
                if many.list.len() <= INDEX_FROM / 2 {
                    many.list.shrink_to_fit();
                    *self = Self::Few(Box::new(std::mem::take(&mut many.list)));
                }
            }
        }
        true
    }

    fn find(&mut self, session: SessionKey) -> Option<&mut Subscriber> {
        match self {
            Self::None => None,
            Self::One(one) => (one.session == session).then_some(one),
            Self::Few(list) => list.iter_mut().find(|known| known.session == session),
            Self::Many(many) => many.list.get_mut(*many.places.get(&session)? as usize),
        }
    }
}

impl Subscriber {
    /// Packs a subscription.
    pub fn new(session: SessionKey, options: &SubscribeOptions, id: u32) -> Self {
        let flags = options.qos as u8
            | u8::from(options.no_local) << 2
            | u8::from(options.retain_as_published) << 3;
        Self { session, id, flags }
    }

    /// Maximum QoS.
    #[inline]
    pub fn qos(self) -> QoS {
        match self.flags & 3 {
            0 => QoS::AtMostOnce,
            1 => QoS::AtLeastOnce,
            _ => QoS::ExactlyOnce,
        }
    }

    /// Not this session's own messages.
    #[inline]
    pub fn no_local(self) -> bool {
        self.flags & 4 != 0
    }

    /// Keep the retain flag.
    #[inline]
    pub fn retain_as_published(self) -> bool {
        self.flags & 8 != 0
    }

    /// The options it was made from, but for retain handling, which only SUBSCRIBE itself uses.
    pub fn options(self) -> SubscribeOptions {
        SubscribeOptions {
            qos: self.qos(),
            no_local: self.no_local(),
            retain_as_published: self.retain_as_published(),
            retain_handling: RetainHandling::Always,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscriber(session: u32) -> Subscriber {
        let options = SubscribeOptions {
            qos: QoS::ExactlyOnce,
            no_local: true,
            retain_as_published: true,
            retain_handling: RetainHandling::Always,
        };
        Subscriber::new(SessionKey(session), &options, 0)
    }

    #[test]
    fn options_survive_packing() {
        let all = subscriber(1);
        assert_eq!(
            (all.qos(), all.no_local(), all.retain_as_published()),
            (QoS::ExactlyOnce, true, true)
        );
        let none = Subscriber::new(SessionKey(1), &SubscribeOptions::default(), 5);
        assert_eq!(
            (none.qos(), none.no_local(), none.retain_as_published()),
            (QoS::AtMostOnce, false, false)
        );
        assert_eq!(none.options(), SubscribeOptions::default());
    }

    #[test]
    fn a_list_is_a_list_at_every_size() {
        assert_eq!((size_of::<List>(), size_of::<FilterEntry>()), (16, 24));
        let (mut list, mut model) = (List::default(), Vec::<Subscriber>::new());
        let check = |list: &List, model: &[Subscriber]| {
            assert_eq!(**list, *model);
            if let List::Many(many) = list {
                assert_eq!(many.places.len(), model.len());
            }
        };
        for session in 0..100 {
            assert!(!list.remove(SessionKey(session)));
            assert!(list.add(subscriber(session)));
            model.push(subscriber(session));
            let replaced = Subscriber { id: 7, ..subscriber(session / 2) };
            assert!(!list.add(replaced));
            model[session as usize / 2] = replaced;
            check(&list, &model);
        }
        assert!(matches!(list, List::Many(_)));
        for step in 0..100 {
            let session = SessionKey(step * 37 % 100);
            assert!(list.remove(session) && !list.remove(session));
            let at = model.iter().position(|known| known.session == session).unwrap();
            model.swap_remove(at);
            check(&list, &model);
        }
        assert!(list.is_empty() && matches!(list, List::None));
    }

    #[test]
    fn a_crowd_comes_and_goes_in_time() {
        // With a scan per step this would be 10^10 steps: the test would not end.
        let mut entry = FilterEntry::default();
        for share in [None, Some("g")] {
            for session in 0..100_000 {
                assert!(entry.add(share, "$share/g/t", subscriber(session)));
            }
            for session in (0..100_000).rev() {
                assert!(entry.remove(share, SessionKey(session)));
            }
        }
        assert!(entry.is_empty());
    }
}
