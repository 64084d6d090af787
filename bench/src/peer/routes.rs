//! Who gets what, in the simplest way.

use std::collections::HashMap;

use mqtt::topic::{matches, parse_filter};
use mqtt::wire::QoS;

/// All subscriptions.
#[derive(Debug, Default)]
pub struct Routes {
    exact: HashMap<String, Topic>,
    wild: Vec<(String, Subscriber)>,
}

#[derive(Debug, Default)]
struct Topic {
    subscribers: Vec<Subscriber>,
    groups: Vec<Group>,
}

#[derive(Debug)]
struct Group {
    name: String,
    members: Vec<Subscriber>,
    next: usize,
}

#[derive(Clone, Copy, Debug)]
struct Subscriber {
    session: usize,
    qos: QoS,
}

impl Routes {
    /// Adds a subscription, in place of an equal one. Groups with wildcards are refused.
    pub fn add(&mut self, filter: &str, session: usize, qos: QoS) -> Result<(), ()> {
        let parsed = parse_filter(filter).map_err(drop)?;
        let subscriber = Subscriber { session, qos };
        if parsed.has_wildcards {
            if parsed.share.is_some() {
                return Err(());
            }
            self.wild.retain(|(other, it)| it.session != session || other != parsed.filter);
            self.wild.push((parsed.filter.to_owned(), subscriber));
            return Ok(());
        }
        let topic = self.exact.entry(parsed.filter.to_owned()).or_default();
        let list = match parsed.share {
            None => &mut topic.subscribers,
            Some(name) => {
                let name = name.as_str();
                let at = topic.groups.iter().position(|group| group.name == name);
                let at = at.unwrap_or_else(|| {
                    topic.groups.push(Group {
                        name: name.to_owned(),
                        members: Vec::new(),
                        next: 0,
                    });
                    topic.groups.len() - 1
                });
                &mut topic.groups[at].members
            }
        };
        list.retain(|other| other.session != session);
        list.push(subscriber);
        Ok(())
    }

    /// Takes all subscriptions of a session away.
    pub fn remove_session(&mut self, session: usize) {
        self.wild.retain(|(_, it)| it.session != session);
        self.exact.retain(|_, topic| {
            topic.subscribers.retain(|it| it.session != session);
            topic.groups.iter_mut().for_each(|it| it.members.retain(|it| it.session != session));
            topic.groups.retain(|group| !group.members.is_empty());
            !topic.subscribers.is_empty() || !topic.groups.is_empty()
        });
    }

    /// Calls `found` for each delivery of a message; of each group for one member in turn.
    pub fn find(&mut self, topic: &str, mut found: impl FnMut(usize, QoS)) {
        if let Some(topic) = self.exact.get_mut(topic) {
            topic.subscribers.iter().for_each(|it| found(it.session, it.qos));
            for group in &mut topic.groups {
                let member = group.members[group.next % group.members.len()];
                group.next = (group.next + 1) % group.members.len();
                found(member.session, member.qos);
            }
        }
        for (filter, it) in &self.wild {
            if matches(filter, topic) {
                found(it.session, it.qos);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions(routes: &mut Routes, topic: &str) -> Vec<usize> {
        let mut found = Vec::new();
        routes.find(topic, |session, _| found.push(session));
        found.sort_unstable();
        found
    }

    #[test]
    fn finds_exact_wild_and_shared() {
        let mut routes = Routes::default();
        for (filter, session) in [
            ("a/b", 1),
            ("a/+", 2),
            ("a/#", 3),
            ("$share/g/a/b", 4),
            ("$share/g/a/b", 5),
            ("a/b", 1),
        ] {
            routes.add(filter, session, QoS::AtMostOnce).unwrap();
        }
        assert_eq!(sessions(&mut routes, "a/b"), [1, 2, 3, 4]);
        assert_eq!(sessions(&mut routes, "a/b"), [1, 2, 3, 5]);
        assert_eq!(sessions(&mut routes, "a/c"), [2, 3]);
        (1..=3).chain([5]).for_each(|session| routes.remove_session(session));
        assert_eq!(sessions(&mut routes, "a/b"), [4]);
        assert_eq!(sessions(&mut routes, "a/b"), [4]);
        assert!(routes.add("a/#/b", 1, QoS::AtMostOnce).is_err());
        assert!(routes.add("$share/g/a/+", 1, QoS::AtMostOnce).is_err());
    }
}
