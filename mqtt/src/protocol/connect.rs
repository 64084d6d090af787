//! CONNECT: what is granted, and what CONNACK says.

use super::Violation;
use crate::wire::{Connect, PropertyBuf, ReasonCode, Version};

/// What the server grants to any client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRules {
    /// Longest keep-alive in seconds; 0 leaves the client's wish alone.
    pub max_keep_alive_s: u16,
    /// Unacknowledged QoS 1 and 2 messages that a client may have.
    pub receive_maximum: u16,
    /// Unacknowledged QoS 1 and 2 messages that the server sends at most.
    pub max_inflight: u16,
    /// Topic aliases that a client may define.
    pub topic_alias_maximum: u16,
    /// Largest packet the server takes, in bytes with its header.
    pub max_packet_size_bytes: u32,
    /// Longest session expiry in seconds; `u32::MAX` is for ever.
    pub max_session_expiry_s: u32,
}

/// What one client was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Seconds; `u32::MAX` is for ever.
    pub session_expiry_s: u32,
    /// Seconds of the keep-alive in force; 0 for none.
    pub keep_alive_s: u16,
    /// Unacknowledged QoS 1 and 2 messages the server may send to it.
    pub window: u16,
    /// Largest packet it takes, in bytes with its header.
    pub max_packet_size_bytes: u32,
    /// Topic aliases that the server may define for it; 0 for none.
    pub topic_alias_maximum: u16,
    /// Whether reason strings and user properties may be sent with any packet.
    pub problem_information: bool,
}

/// Who a client says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity<'a> {
    /// Its own identifier.
    Named(&'a str),
    /// It wants one assigned.
    Assign,
}

/// Judges a CONNECT, apart from who sends it: see [`demand`](crate::access::demand).
///
/// # Errors
/// The reason to refuse it with.
pub fn accept<'a>(
    connect: &Connect<'a>,
    rules: &ServerRules,
) -> Result<(Identity<'a>, Accepted), Violation> {
    let v5 = connect.version == Version::V5;
    let identity = match connect.client_id {
        // 3.1.1 allows an empty identifier only with a clean session [MQTT-3.1.3-8]; 3.1 never.
        "" if connect.version == Version::V3_1 || (!v5 && !connect.clean_start) => {
            return Err(Violation::new(
                ReasonCode::ClientIdentifierNotValid,
                "client identifier is empty",
            ));
        }
        "" => Identity::Assign,
        name => Identity::Named(name),
    };
    let wished_expiry = match (v5, connect.clean_start) {
        (true, _) => connect.properties.session_expiry_interval_s().unwrap_or(0),
        (false, true) => 0,
        (false, false) => u32::MAX,
    };
    let keep_alive_s = match (v5, rules.max_keep_alive_s, connect.keep_alive_s) {
        (true, max, wish) if max > 0 && (wish == 0 || wish > max) => max,
        (_, _, wish) => wish,
    };
    let accepted = Accepted {
        session_expiry_s: wished_expiry.min(rules.max_session_expiry_s),
        keep_alive_s,
        window: connect.properties.receive_maximum().unwrap_or(u16::MAX).min(rules.max_inflight),
        max_packet_size_bytes: connect.properties.maximum_packet_size_bytes().unwrap_or(u32::MAX),
        topic_alias_maximum: connect
            .properties
            .topic_alias_maximum()
            .unwrap_or(0)
            .min(rules.topic_alias_maximum),
        problem_information: v5 && connect.properties.request_problem_information().unwrap_or(true),
    };
    Ok((identity, accepted))
}

/// The properties of a successful CONNACK; says only what differs from the specification's
/// defaults or from the client's wish.
pub fn connack_properties(
    connect: &Connect<'_>,
    accepted: &Accepted,
    rules: &ServerRules,
    assigned_client_id: Option<&str>,
) -> PropertyBuf {
    let mut properties = PropertyBuf::new();
    let wished_expiry = connect.properties.session_expiry_interval_s().unwrap_or(0);
    if accepted.session_expiry_s != wished_expiry {
        properties.session_expiry_interval_s(accepted.session_expiry_s);
    }
    properties.receive_maximum(rules.receive_maximum);
    properties.maximum_packet_size_bytes(rules.max_packet_size_bytes);
    if let Some(id) = assigned_client_id {
        properties.assigned_client_id(id);
    }
    properties.topic_alias_maximum(rules.topic_alias_maximum);
    if accepted.keep_alive_s != connect.keep_alive_s {
        properties.server_keep_alive_s(accepted.keep_alive_s);
    }
    properties
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Properties;

    fn rules() -> ServerRules {
        ServerRules {
            max_keep_alive_s: 100,
            receive_maximum: 50,
            max_inflight: 20,
            topic_alias_maximum: 5,
            max_packet_size_bytes: 1000,
            max_session_expiry_s: 3600,
        }
    }

    fn connect(version: Version, clean_start: bool, client_id: &str) -> Connect<'_> {
        Connect {
            version,
            clean_start,
            keep_alive_s: 200,
            client_id,
            will: None,
            username: None,
            password: None,
            properties: Properties::EMPTY,
        }
    }

    #[test]
    fn an_empty_identifier_needs_a_clean_session_before_version_5() {
        let reason = |version, clean| accept(&connect(version, clean, ""), &rules()).err();
        assert!(reason(Version::V3_1, true).is_some());
        assert!(reason(Version::V3_1_1, false).is_some());
        assert!(reason(Version::V3_1_1, true).is_none());
        assert!(reason(Version::V5, false).is_none());
    }

    #[test]
    fn version_3_keeps_its_wishes_and_version_5_is_told_the_limits() {
        let (_, old) = accept(&connect(Version::V3_1_1, false, "c"), &rules()).unwrap();
        assert_eq!((old.session_expiry_s, old.keep_alive_s, old.window), (3600, 200, 20));
        let asked = connect(Version::V5, false, "c");
        let (identity, new) = accept(&asked, &rules()).unwrap();
        assert_eq!(identity, Identity::Named("c"));
        assert_eq!((new.session_expiry_s, new.keep_alive_s, new.window), (0, 100, 20));
        let told = connack_properties(&asked, &new, &rules(), Some("id"));
        let told = told.as_properties();
        assert_eq!(told.server_keep_alive_s(), Some(100));
        assert_eq!(told.assigned_client_id(), Some("id"));
        assert_eq!(told.session_expiry_interval_s(), None);
        assert_eq!(told.receive_maximum(), Some(50));
    }
}
