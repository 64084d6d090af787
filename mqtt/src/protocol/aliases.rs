//! Topic aliases of one connection, in both directions.

use hashbrown::HashMap;

use super::Violation;
use crate::wire::ReasonCode;

/// Alias -> topic name, for one connection. Takes no memory until an alias is defined.
#[derive(Debug, Default)]
pub struct IncomingAliases {
    names: Vec<Option<Box<str>>>,
}

/// Topic name -> alias, as the server chose them for one connection: the names used last keep
/// theirs. Bounded by the maximum that the client gave.
#[derive(Debug)]
pub struct OutgoingAliases {
    maximum: u16,
    names: HashMap<Box<str>, (u16, u64)>,
    uses: u64,
}

impl OutgoingAliases {
    /// No aliases yet; `maximum` is at least 1.
    pub fn new(maximum: u16) -> Self {
        debug_assert!(maximum > 0, "a client without aliases needs no table");
        Self { maximum, names: HashMap::new(), uses: 0 }
    }

    /// The alias that stands for `topic`, if one was defined; it may then be sent without the name.
    pub fn known(&mut self, topic: &str) -> Option<u16> {
        let (alias, used) = self.names.get_mut(topic)?;
        self.uses += 1;
        *used = self.uses;
        Some(*alias)
    }

    /// Defines an alias for `topic`, which must be sent with the name; takes it from the name that
    /// was not used for longest when all are taken.
    pub fn define(&mut self, topic: &str) -> u16 {
        self.uses += 1;
        let alias = if self.names.len() < usize::from(self.maximum) {
            self.names.len() as u16 + 1
        } else {
            // Linear in the maximum, which the configuration keeps small.
            let oldest = self.names.iter().min_by_key(|(_, (_, used))| *used);
            let name = oldest.map(|(name, _)| name.clone()).unwrap_or_default();
            self.names.remove(&name).map_or(1, |(alias, _)| alias)
        };
        self.names.insert(topic.into(), (alias, self.uses));
        alias
    }
}

impl IncomingAliases {
    /// The topic name that a PUBLISH means: defines `alias` when it comes with a name, looks it up
    /// when the name is empty. `maximum` is what the server's CONNACK allowed.
    ///
    /// # Errors
    /// An alias above the maximum [MQTT-3.3.2-9], or one that was never defined.
    pub fn resolve<'a>(
        &'a mut self,
        topic: &'a str,
        alias: Option<u16>,
        maximum: u16,
    ) -> Result<&'a str, Violation> {
        let Some(alias) = alias else { return Ok(topic) };
        if alias == 0 || alias > maximum {
            return Err(Violation::new(
                ReasonCode::TopicAliasInvalid,
                "topic alias is above the maximum",
            ));
        }
        let at = usize::from(alias) - 1;
        if topic.is_empty() {
            return self
                .names
                .get(at)
                .and_then(|name| name.as_deref())
                .ok_or(Violation::new(ReasonCode::ProtocolError, "topic alias is not defined"));
        }
        if self.names.len() <= at {
            self.names.resize(at + 1, None);
        }
        self.names[at] = Some(topic.into());
        Ok(topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defined_used_replaced_and_bounded() {
        let mut aliases = IncomingAliases::default();
        assert_eq!(aliases.resolve("plain", None, 0).unwrap(), "plain");
        assert!(aliases.resolve("", Some(2), 2).is_err());
        assert_eq!(aliases.resolve("a", Some(2), 2).unwrap(), "a");
        assert_eq!(aliases.resolve("", Some(2), 2).unwrap(), "a");
        assert_eq!(aliases.resolve("b", Some(2), 2).unwrap(), "b");
        assert_eq!(aliases.resolve("", Some(2), 2).unwrap(), "b");
        assert!(aliases.resolve("", Some(1), 2).is_err());
        let refused = aliases.resolve("c", Some(3), 2).unwrap_err();
        assert_eq!(refused.reason, ReasonCode::TopicAliasInvalid);
    }

    #[test]
    fn the_least_recently_used_name_loses_its_alias() {
        let mut aliases = OutgoingAliases::new(2);
        assert_eq!(aliases.known("a"), None);
        assert_eq!(aliases.define("a"), 1);
        assert_eq!(aliases.define("b"), 2);
        assert_eq!(aliases.known("a"), Some(1));
        assert_eq!(aliases.define("c"), 2);
        assert_eq!(aliases.known("b"), None);
        assert_eq!((aliases.known("a"), aliases.known("c")), (Some(1), Some(2)));
    }
}
