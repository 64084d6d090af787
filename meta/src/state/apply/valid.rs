//! What makes sense whatever the state. NUL is what separates the parts of a key; MQTT forbids it in
//! its strings anyway [MQTT-1.5.4-2].

use crate::command::Refusal;
use crate::record::{ClientKey, StoredMessage, StoredSubscription, StoredWill};

/// The longest string of MQTT, in bytes (1.5.4); all names keep to it.
const MAX_BYTES: usize = 65_535;

/// The largest subscription identifier (3.8.2.1.2).
const MAX_SUBSCRIPTION_ID: u32 = 268_435_455;

pub(super) fn client(client: &ClientKey) -> Result<(), Refusal> {
    text("the tenant's name", &client.tenant)?;
    name("the client identifier", &client.client_id)
}

pub(super) fn will(will: &StoredWill) -> Result<(), Refusal> {
    message("the will's topic", &will.message)
}

/// A message that can be published; an empty payload is for the caller to judge.
pub(super) fn message(what: &str, message: &StoredMessage) -> Result<(), Refusal> {
    topic(what, &message.topic)?;
    if message.qos > 2 {
        return invalid(format!("there is no QoS {}", message.qos));
    }
    Ok(())
}

/// A topic name: no wildcards [MQTT-3.3.2-2].
pub(super) fn topic(what: &str, topic: &str) -> Result<(), Refusal> {
    name(what, topic)?;
    if topic.contains(['+', '#']) {
        return invalid(format!("{what} holds a wildcard"));
    }
    Ok(())
}

pub(super) fn subscription(subscription: &StoredSubscription) -> Result<(), Refusal> {
    filter(&subscription.filter)?;
    let options = subscription.options;
    // [MQTT-3.8.3-5]: reserved bits; 3.8.3.1: neither a QoS nor a retain handling of 3.
    if options & 0b1100_0000 != 0 || options & 0b11 == 0b11 || options & 0b11_0000 == 0b11_0000 {
        return invalid(format!("there are no subscription options {options:#04x}"));
    }
    if subscription.id > MAX_SUBSCRIPTION_ID {
        return invalid(format!("there is no subscription identifier {}", subscription.id));
    }
    Ok(())
}

/// A filter that can be stored; whether it is well formed is for the protocol to know.
pub(super) fn filter(filter: &str) -> Result<(), Refusal> {
    name("a filter", filter)
}

/// A string that can be a part of a key and names something.
pub(super) fn name(what: &str, name: &str) -> Result<(), Refusal> {
    if name.is_empty() {
        return invalid(format!("{what} is empty"));
    }
    text(what, name)
}

/// A string that can be a part of a key.
pub(super) fn text(what: &str, text: &str) -> Result<(), Refusal> {
    if text.len() > MAX_BYTES {
        return invalid(format!("{what} has {} bytes, more than {MAX_BYTES}", text.len()));
    }
    if text.contains('\0') {
        return invalid(format!("{what} holds a NUL character"));
    }
    Ok(())
}

pub(super) fn invalid(reason: String) -> Result<(), Refusal> {
    Err(Refusal::Invalid(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_bounded_as_in_mqtt() {
        assert_eq!(name("x", &"a".repeat(MAX_BYTES)), Ok(()));
        assert!(name("x", &"a".repeat(MAX_BYTES + 1)).is_err());
        assert!(name("x", "a\0b").is_err());
        assert!(name("x", "").is_err());
        assert_eq!(text("x", ""), Ok(()));
        assert!(topic("x", "a/+").is_err());
        assert!(topic("x", "#").is_err());
        assert_eq!(topic("x", "/ $a"), Ok(()));
    }

    #[test]
    fn options_and_identifiers_are_those_of_mqtt() {
        let of =
            |options, id| subscription(&StoredSubscription { filter: "a".into(), options, id });
        let legal = (0..=u8::MAX).filter(|&options| of(options, 0).is_ok()).count();
        assert_eq!(legal, 3 * 2 * 2 * 3);
        assert_eq!(of(0, MAX_SUBSCRIPTION_ID), Ok(()));
        assert!(of(0, MAX_SUBSCRIPTION_ID + 1).is_err());
    }
}
