//! Properties being built.

use super::properties::id;
use super::{Properties, QoS, frame};

/// Builds properties. Each setter appends; what may stand once must be set once. Which property
/// fits which packet, and the ranges in [`Property`](super::Property), are the caller's knowledge.
///
/// A string longer than 65 535 bytes is cut at a character, and any string at a U+0000; longer
/// binary data is cut too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PropertyBuf {
    raw: Vec<u8>,
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($value:ty) $put:ident $id:ident;)*) => {
        $($(#[$doc])*
        pub fn $name(&mut self, value: $value) -> &mut Self {
            self.raw.push(id::$id);
            $put(&mut self.raw, value);
            self
        })*
    };
}

impl PropertyBuf {
    /// No properties; takes no memory.
    pub const fn new() -> Self {
        Self { raw: Vec::new() }
    }

    /// What was built so far.
    pub fn as_properties(&self) -> Properties<'_> {
        Properties::trusted(&self.raw)
    }

    setters! {
        /// Seconds a session outlives its connection; `u32::MAX` is for ever.
        session_expiry_interval_s(u32) put_u32 SESSION_EXPIRY;
        /// Unacknowledged QoS 1 and 2 messages the sender takes, at least 1.
        receive_maximum(u16) put_u16 RECEIVE_MAXIMUM;
        /// Largest packet the sender takes, in bytes with its header, at least 1.
        maximum_packet_size_bytes(u32) put_u32 MAXIMUM_PACKET_SIZE;
        /// A number that stands for the topic name, at least 1.
        topic_alias(u16) put_u16 TOPIC_ALIAS;
        /// Highest topic alias the sender takes.
        topic_alias_maximum(u16) put_u16 TOPIC_ALIAS_MAXIMUM;
        /// Seconds a message lives.
        message_expiry_interval_s(u32) put_u32 MESSAGE_EXPIRY;
        /// Whether the payload is UTF-8.
        payload_is_utf8(bool) put_flag PAYLOAD_FORMAT;
        /// What the payload is, in the application's words.
        content_type(&str) put_str CONTENT_TYPE;
        /// Where the answer to a request goes.
        response_topic(&str) put_str RESPONSE_TOPIC;
        /// What tells the requester which request an answer is for.
        correlation_data(&[u8]) put_binary CORRELATION_DATA;
        /// Identifier of a subscription, 1 to 268 435 455; in a server's PUBLISH any number of them.
        subscription_id(u32) put_variable SUBSCRIPTION_ID;
        /// Seconds between the end of a connection and its will.
        will_delay_interval_s(u32) put_u32 WILL_DELAY;
        /// Whether the client wants reason strings and user properties with any packet.
        request_problem_information(bool) put_flag REQUEST_PROBLEM_INFORMATION;
        /// Whether the client wants response information.
        request_response_information(bool) put_flag REQUEST_RESPONSE_INFORMATION;
        /// The reason, for people.
        reason_string(&str) put_str REASON_STRING;
        /// Name of the extended authentication method.
        auth_method(&str) put_str AUTH_METHOD;
        /// Data of the extended authentication.
        auth_data(&[u8]) put_binary AUTH_DATA;
        /// The identifier that the server gave the client.
        assigned_client_id(&str) put_str ASSIGNED_CLIENT_ID;
        /// Seconds of keep-alive that the server asks for.
        server_keep_alive_s(u16) put_u16 SERVER_KEEP_ALIVE;
        /// Highest QoS the server takes: 0 or 1.
        maximum_qos(QoS) put_qos MAXIMUM_QOS;
        /// Whether the server retains messages.
        retain_available(bool) put_flag RETAIN_AVAILABLE;
        /// Whether the server takes wildcard subscriptions.
        wildcard_available(bool) put_flag WILDCARD_AVAILABLE;
        /// Whether the server takes subscription identifiers.
        subscription_ids_available(bool) put_flag SUBSCRIPTION_IDS_AVAILABLE;
        /// Whether the server takes shared subscriptions.
        shared_available(bool) put_flag SHARED_AVAILABLE;
        /// What response topics are built on.
        response_information(&str) put_str RESPONSE_INFORMATION;
        /// Another server to use.
        server_reference(&str) put_str SERVER_REFERENCE;
    }

    /// A name and a value of the application's own; any number of them.
    pub fn user_property(&mut self, name: &str, value: &str) -> &mut Self {
        self.raw.push(id::USER_PROPERTY);
        put_str(&mut self.raw, name);
        put_str(&mut self.raw, value);
        self
    }
}

fn put_flag(out: &mut Vec<u8>, value: bool) {
    out.push(u8::from(value));
}

fn put_qos(out: &mut Vec<u8>, value: QoS) {
    out.push(value as u8);
}

fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn put_variable(out: &mut Vec<u8>, value: u32) {
    frame::put_variable_integer(out, value.min(frame::MAX_VARIABLE_INTEGER));
}

fn put_str(out: &mut Vec<u8>, value: &str) {
    let value = value.split('\0').next().unwrap_or_default();
    put_binary(out, &value.as_bytes()[..value.floor_char_boundary(usize::from(u16::MAX))]);
}

fn put_binary(out: &mut Vec<u8>, value: &[u8]) {
    let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
    put_u16(out, length);
    out.extend_from_slice(&value[..usize::from(length)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_that_do_not_fit_are_cut_at_a_character() {
        let long = "é".repeat(40_000);
        let mut built = PropertyBuf::new();
        built.reason_string(&long).content_type("a\0b");
        let built = built.as_properties();
        assert_eq!(built.reason_string().map(str::len), Some(65_534));
        assert_eq!(built.content_type(), Some("a"));
    }
}
