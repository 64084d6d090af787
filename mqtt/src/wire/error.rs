//! Every way in which a packet can be wrong.

use super::ReasonCode;

/// Declares the violations once: name, text, reason code, clause.
macro_rules! violations {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $reason:ident, $clause:literal;)*) => {
        /// Why bytes are not a packet, or not one that may come from there.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
        pub enum DecodeError {
            $($(#[$doc])* #[error($text)] $name,)*
        }

        impl DecodeError {
            /// Every violation.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// What a version 5 peer is told.
            pub const fn reason(self) -> ReasonCode {
                match self {
                    $(Self::$name => ReasonCode::$reason,)*
                }
            }

            /// The clause of the version 5 specification that it breaks, or the section where the
            /// specification has no numbered clause.
            pub const fn clause(self) -> &'static str {
                match self {
                    $(Self::$name => $clause,)*
                }
            }
        }
    };
}

violations! {
    // The fixed header.
    /// Packet type 0.
    ReservedPacketType = "packet type is reserved", MalformedPacket, "2.1.2";
    /// The lower half of the first byte.
    BadFlags = "fixed header flags are reserved", MalformedPacket, "MQTT-2.1.3-1";
    /// More than four bytes, or more bytes than needed.
    BadVariableInteger = "variable byte integer is too long", MalformedPacket, "MQTT-1.5.5-1";
    /// Larger than the receiver takes.
    PacketTooLarge = "packet is too large", PacketTooLarge, "MQTT-3.2.2-15";
    /// The packet ends before its fields do.
    Truncated = "packet ends inside a field", MalformedPacket, "1.2";
    /// The packet goes on after its last field.
    TrailingBytes = "bytes after the last field", MalformedPacket, "2.1.4";
    /// A server's packet from a client, or the reverse.
    WrongDirection = "packet type is not sent in this direction", ProtocolError, "2.1.2";
    /// AUTH, or a server's DISCONNECT, before version 5.
    NotInThisVersion = "packet type does not exist in this version", ProtocolError, "2.1.2";

    // Fields that many packets have.
    /// A string that is no UTF-8.
    NotUtf8 = "string is not UTF-8", MalformedPacket, "MQTT-1.5.4-1";
    /// A string with U+0000.
    NulInString = "string contains U+0000", MalformedPacket, "MQTT-1.5.4-2";
    /// Packet identifier 0.
    ZeroPacketId = "packet identifier is 0", ProtocolError, "MQTT-2.2.1-3";
    /// A byte that is no reason code.
    UnknownReasonCode = "reason code is not known", MalformedPacket, "2.4";
    /// A reason code that belongs to other packets, or to the other side.
    ReasonCodeNotAllowed = "reason code is not allowed here", ProtocolError, "2.4";

    // CONNECT and CONNACK.
    /// Neither `MQTT` nor `MQIsdp`.
    BadProtocolName = "protocol name is not MQTT", UnsupportedProtocolVersion, "MQTT-3.1.2-1";
    /// A protocol level that is not served under that name.
    UnsupportedVersion = "protocol version is not supported", UnsupportedProtocolVersion, "MQTT-3.1.2-2";
    /// Bit 0 of the connect flags.
    ReservedConnectFlag = "reserved connect flag is set", MalformedPacket, "MQTT-3.1.2-3";
    /// Will QoS without a will.
    WillQosWithoutWill = "will QoS is set without a will", MalformedPacket, "MQTT-3.1.2-11";
    /// Will QoS 3.
    BadWillQos = "will QoS is 3", MalformedPacket, "MQTT-3.1.2-12";
    /// Will retain without a will.
    WillRetainWithoutWill = "will retain is set without a will", MalformedPacket, "MQTT-3.1.2-13";
    /// Forbidden before version 5; there the number of the clause is 3.1.1's.
    PasswordWithoutUserName = "password without a user name", ProtocolError, "MQTT-3.1.2-22";
    /// Bits 1 to 7 of the acknowledge flags.
    ReservedConnAckFlag = "reserved acknowledge flag is set", MalformedPacket, "MQTT-3.2.2-1";
    /// A refusal that resumes a session.
    SessionPresentWithError = "session present in a refusal", ProtocolError, "MQTT-3.2.2-6";

    // Topics.
    /// QoS 3.
    BadQos = "QoS is 3", MalformedPacket, "MQTT-3.3.1-4";
    /// DUP where nothing is repeated.
    DupWithQos0 = "DUP is set with QoS 0", MalformedPacket, "MQTT-3.3.1-2";
    /// No topic, and no alias that stands for it.
    EmptyTopic = "topic name is empty", ProtocolError, "MQTT-4.7.3-1";
    /// `+` or `#` in the topic of a PUBLISH.
    WildcardInTopic = "topic name contains a wildcard", TopicNameInvalid, "MQTT-3.3.2-2";
    /// `+` or `#` in the topic of a will.
    WildcardInWillTopic = "will topic contains a wildcard", TopicNameInvalid, "MQTT-4.7.0-1";
    /// `+` or `#` in a response topic.
    WildcardInResponseTopic = "response topic contains a wildcard", ProtocolError, "MQTT-3.3.2-14";
    /// A response topic of no characters.
    EmptyResponseTopic = "response topic is empty", ProtocolError, "MQTT-4.7.3-1";

    // SUBSCRIBE, UNSUBSCRIBE and their answers.
    /// A SUBSCRIBE without filters.
    NothingToSubscribe = "SUBSCRIBE without a topic filter", ProtocolError, "MQTT-3.8.3-2";
    /// An UNSUBSCRIBE without filters.
    NothingToUnsubscribe = "UNSUBSCRIBE without a topic filter", ProtocolError, "MQTT-3.10.3-2";
    /// A filter of no characters.
    EmptyFilter = "topic filter is empty", ProtocolError, "MQTT-4.7.3-1";
    /// Reserved bits of the subscription options.
    ReservedSubscribeOption = "reserved subscription option is set", MalformedPacket, "MQTT-3.8.3-5";
    /// Subscription QoS 3.
    BadSubscribeQos = "subscription QoS is 3", ProtocolError, "3.8.3.1";
    /// Retain handling 3.
    BadRetainHandling = "retain handling is 3", ProtocolError, "3.8.3.1";
    /// No Local in a shared subscription.
    NoLocalOnShared = "no local on a shared subscription", ProtocolError, "MQTT-3.8.3-4";
    /// A SUBACK, or a version 5 UNSUBACK, without codes.
    NoAckCodes = "acknowledgement without reason codes", ProtocolError, "MQTT-3.8.4-6";

    // Properties.
    /// A property identifier without a meaning.
    UnknownProperty = "property is not known", MalformedPacket, "2.2.2.2";
    /// A property that belongs to other packets, or to the other side.
    PropertyNotAllowed = "property is not allowed here", MalformedPacket, "2.2.2.2";
    /// A property that may stand once, twice.
    DuplicateProperty = "property stands twice", ProtocolError, "2.2.2.2";
    /// A flag that is neither 0 nor 1.
    BadFlagProperty = "property must be 0 or 1", ProtocolError, "2.2.2.2";
    /// Receive Maximum 0.
    ZeroReceiveMaximum = "receive maximum is 0", ProtocolError, "3.1.2.11.3";
    /// Maximum Packet Size 0.
    ZeroMaximumPacketSize = "maximum packet size is 0", ProtocolError, "3.1.2.11.4";
    /// Topic Alias 0.
    ZeroTopicAlias = "topic alias is 0", TopicAliasInvalid, "MQTT-3.3.2-8";
    /// Subscription Identifier 0.
    ZeroSubscriptionId = "subscription identifier is 0", ProtocolError, "3.8.2.1.2";
    /// A subscription identifier in a client's PUBLISH.
    SubscriptionIdFromClient = "subscription identifier in a client's PUBLISH", ProtocolError, "MQTT-3.3.4-6";
    /// A server's Session Expiry Interval in DISCONNECT.
    SessionExpiryFromServer = "session expiry in a server's DISCONNECT", ProtocolError, "MQTT-3.14.2-2";
    /// Authentication data without a method.
    AuthDataWithoutMethod = "authentication data without a method", ProtocolError, "3.1.2.11.10";
    /// An AUTH step without a method.
    AuthWithoutMethod = "AUTH without a method", ProtocolError, "3.15.2.2.2";
}

impl DecodeError {
    /// The same violation in the words of 3.1 and 3.1.1 as a CONNACK return code, for the one
    /// violation that those versions answer; all others only close the connection.
    pub const fn v3_connack(self) -> Option<u8> {
        match self {
            Self::UnsupportedVersion => {
                Some(ReasonCode::UnsupportedProtocolVersion.to_v3_connack())
            }
            _ => None,
        }
    }
}
