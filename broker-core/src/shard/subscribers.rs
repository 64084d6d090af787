//! Who on this shard subscribed to one filter.

use std::cell::Cell;

use mqtt::wire::{QoS, RetainHandling, SubscribeOptions};

use super::SessionKey;

/// What the shard's filter tree holds per filter.
#[derive(Debug, Default)]
pub struct FilterEntry {
    /// Plain subscriptions, one per session.
    pub plain: Vec<Subscriber>,
    /// Share groups with at least one member here.
    pub groups: Vec<Group>,
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

/// The members of one share group on this shard.
#[derive(Debug)]
pub struct Group {
    /// The share name.
    pub name: Box<str>,
    /// Its members here; never empty.
    pub members: Vec<Subscriber>,
    next: Cell<u32>,
}

impl FilterEntry {
    /// Whether nobody is left.
    pub fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.groups.is_empty()
    }

    /// Adds a subscriber, or replaces the one of the same session; true when it is new.
    pub fn add(&mut self, share: Option<&str>, subscriber: Subscriber) -> bool {
        let list = match share {
            None => &mut self.plain,
            Some(name) => match self.groups.iter().position(|group| &*group.name == name) {
                Some(at) => &mut self.groups[at].members,
                None => {
                    self.groups.push(Group {
                        name: name.into(),
                        members: Vec::with_capacity(1),
                        next: Cell::new(0),
                    });
                    let last = self.groups.len() - 1;
                    &mut self.groups[last].members
                }
            },
        };
        match list.iter_mut().find(|known| known.session == subscriber.session) {
            Some(known) => {
                *known = subscriber;
                false
            }
            None => {
                if list.capacity() == 0 {
                    list.reserve_exact(1); // most filters have one subscriber
                }
                list.push(subscriber);
                true
            }
        }
    }

    /// Removes a session's subscriber; true when it was there.
    pub fn remove(&mut self, share: Option<&str>, session: SessionKey) -> bool {
        let Some(name) = share else { return take(&mut self.plain, session) };
        let Some(at) = self.groups.iter().position(|group| &*group.name == name) else {
            return false;
        };
        let removed = take(&mut self.groups[at].members, session);
        if self.groups[at].members.is_empty() {
            self.groups.swap_remove(at);
        }
        removed
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

impl Group {
    /// The next member in turn, preferring those that `connected` says are there: a message for
    /// an absent member waits while others could work on it.
    pub fn pick(&self, connected: impl Fn(SessionKey) -> bool) -> Option<Subscriber> {
        let count = self.members.len();
        let start = self.next.get() as usize;
        self.next.set(self.next.get().wrapping_add(1));
        let turn = |offset: usize| self.members[(start + offset) % count];
        (0..count)
            .map(turn)
            .find(|member| connected(member.session))
            .or_else(|| (count > 0).then(|| turn(0)))
    }
}

// Linear: a filter with very many subscribers pays for it when they all leave at once.
fn take(list: &mut Vec<Subscriber>, session: SessionKey) -> bool {
    match list.iter().position(|known| known.session == session) {
        Some(at) => {
            list.swap_remove(at);
            true
        }
        None => false,
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
    fn groups_take_turns_and_prefer_the_connected() {
        let mut entry = FilterEntry::default();
        for session in 0..3 {
            assert!(entry.add(Some("g"), subscriber(session)));
        }
        assert!(!entry.add(Some("g"), subscriber(1)));
        let pick = |entry: &FilterEntry, absent: u32| {
            entry.groups[0].pick(|key| key != SessionKey(absent)).unwrap().session.0
        };
        assert_eq!(
            [pick(&entry, 9), pick(&entry, 9), pick(&entry, 9), pick(&entry, 9)],
            [0, 1, 2, 0]
        );
        assert_ne!(pick(&entry, 1), 1);
        for session in 0..3 {
            assert!(entry.remove(Some("g"), SessionKey(session)));
        }
        assert!(entry.is_empty());
        assert!(!entry.remove(Some("g"), SessionKey(0)));
        assert!(!entry.remove(None, SessionKey(0)));
    }
}
