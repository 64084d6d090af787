//! Topic aliases that a client defined on this connection.

use super::Violation;
use crate::wire::ReasonCode;

/// Alias -> topic name, for one connection. Takes no memory until an alias is defined.
#[derive(Debug, Default)]
pub struct IncomingAliases {
    names: Vec<Option<Box<str>>>,
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
}
