//! Reason codes: their numbers, and where each of them may stand.

use super::{PacketType, Sender};

/// Declares the codes once: name, number, and the packets that may carry it, by sender.
macro_rules! reason_codes {
    ($($(#[$doc:meta])* $name:ident = $byte:literal, client $client:expr, server $server:expr;)*) => {
        /// A version 5 reason code.
        ///
        /// 0x00 is also *Normal disconnection* in DISCONNECT and *Granted QoS 0* in SUBACK.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum ReasonCode {
            $($(#[$doc])* $name = $byte,)*
        }

        impl ReasonCode {
            /// Every code, in ascending order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The code of a byte, if the specification gives it a meaning.
            pub const fn from_u8(byte: u8) -> Option<Self> {
                match byte {
                    $($byte => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// The packet types that may carry it when they come from `sender`, one bit per type.
            const fn places(self, sender: Sender) -> u16 {
                match (self, sender) {
                    $((Self::$name, Sender::Client) => $client,
                    (Self::$name, Sender::Server) => $server,)*
                }
            }
        }
    };
}

const fn bit(of: PacketType) -> u16 {
    1 << of as u8
}

const CONNACK: u16 = bit(PacketType::ConnAck);
/// PUBACK and PUBREC take the same codes.
const PUBLISHED: u16 = bit(PacketType::PubAck) | bit(PacketType::PubRec);
/// PUBREL and PUBCOMP take the same codes.
const RELEASED: u16 = bit(PacketType::PubRel) | bit(PacketType::PubComp);
const SUBACK: u16 = bit(PacketType::SubAck);
const UNSUBACK: u16 = bit(PacketType::UnsubAck);
const DISCONNECT: u16 = bit(PacketType::Disconnect);
const AUTH: u16 = bit(PacketType::Auth);
const NONE: u16 = 0;

reason_codes! {
    /// It worked.
    Success = 0x00, client PUBLISHED | RELEASED | DISCONNECT,
        server CONNACK | PUBLISHED | RELEASED | SUBACK | UNSUBACK | DISCONNECT | AUTH;
    /// Subscribed with at most QoS 1.
    GrantedQoS1 = 0x01, client NONE, server SUBACK;
    /// Subscribed with at most QoS 2.
    GrantedQoS2 = 0x02, client NONE, server SUBACK;
    /// The client leaves, and its will is to be published all the same.
    DisconnectWithWill = 0x04, client DISCONNECT, server NONE;
    /// The message was taken, and nobody has subscribed to it.
    NoMatchingSubscribers = 0x10, client NONE, server PUBLISHED;
    /// There was nothing to unsubscribe.
    NoSubscriptionExisted = 0x11, client NONE, server UNSUBACK;
    /// The next step of an authentication.
    ContinueAuthentication = 0x18, client AUTH, server AUTH;
    /// The client begins a new authentication.
    ReAuthenticate = 0x19, client AUTH, server NONE;
    /// No reason is given.
    UnspecifiedError = 0x80, client PUBLISHED | DISCONNECT,
        server CONNACK | PUBLISHED | SUBACK | UNSUBACK | DISCONNECT;
    /// The bytes are no packet.
    MalformedPacket = 0x81, client DISCONNECT, server CONNACK | DISCONNECT;
    /// The packet is not allowed here.
    ProtocolError = 0x82, client DISCONNECT, server CONNACK | DISCONNECT;
    /// Valid, but not taken by this implementation.
    ImplementationSpecificError = 0x83, client PUBLISHED | DISCONNECT,
        server CONNACK | PUBLISHED | SUBACK | UNSUBACK | DISCONNECT;
    /// The protocol version is not served.
    UnsupportedProtocolVersion = 0x84, client NONE, server CONNACK;
    /// The client identifier is not allowed.
    ClientIdentifierNotValid = 0x85, client NONE, server CONNACK;
    /// The user name or the password is not known.
    BadUserNameOrPassword = 0x86, client NONE, server CONNACK;
    /// The client may not do this.
    NotAuthorized = 0x87, client PUBLISHED,
        server CONNACK | PUBLISHED | SUBACK | UNSUBACK | DISCONNECT;
    /// The server is not available.
    ServerUnavailable = 0x88, client NONE, server CONNACK;
    /// The server is busy; try later.
    ServerBusy = 0x89, client NONE, server CONNACK | DISCONNECT;
    /// The client was banned.
    Banned = 0x8A, client NONE, server CONNACK;
    /// The server is shutting down.
    ServerShuttingDown = 0x8B, client NONE, server DISCONNECT;
    /// The authentication method is not supported, or not the one in use.
    BadAuthenticationMethod = 0x8C, client NONE, server CONNACK | DISCONNECT;
    /// Nothing was heard for one and a half times the keep-alive.
    KeepAliveTimeout = 0x8D, client NONE, server DISCONNECT;
    /// Another connection uses the same client identifier.
    SessionTakenOver = 0x8E, client NONE, server DISCONNECT;
    /// The topic filter is well formed, but not taken here.
    TopicFilterInvalid = 0x8F, client NONE, server SUBACK | UNSUBACK | DISCONNECT;
    /// The topic name is well formed, but not taken here.
    TopicNameInvalid = 0x90, client PUBLISHED | DISCONNECT,
        server CONNACK | PUBLISHED | DISCONNECT;
    /// The packet identifier is in use already.
    PacketIdentifierInUse = 0x91, client PUBLISHED, server PUBLISHED | SUBACK | UNSUBACK;
    /// The packet identifier is not in use.
    PacketIdentifierNotFound = 0x92, client RELEASED, server RELEASED;
    /// More messages in flight than the receiver allowed.
    ReceiveMaximumExceeded = 0x93, client DISCONNECT, server DISCONNECT;
    /// The topic alias is 0 or above the maximum.
    TopicAliasInvalid = 0x94, client DISCONNECT, server DISCONNECT;
    /// The packet is larger than the receiver allowed.
    PacketTooLarge = 0x95, client DISCONNECT, server CONNACK | DISCONNECT;
    /// Messages come too fast.
    MessageRateTooHigh = 0x96, client DISCONNECT, server DISCONNECT;
    /// A quota is used up.
    QuotaExceeded = 0x97, client PUBLISHED | DISCONNECT,
        server CONNACK | PUBLISHED | SUBACK | DISCONNECT;
    /// Closed by an administrator.
    AdministrativeAction = 0x98, client DISCONNECT, server DISCONNECT;
    /// The payload is not of the announced format.
    PayloadFormatInvalid = 0x99, client PUBLISHED | DISCONNECT,
        server CONNACK | PUBLISHED | DISCONNECT;
    /// Retained messages are not supported.
    RetainNotSupported = 0x9A, client NONE, server CONNACK | DISCONNECT;
    /// The QoS is above what the server supports.
    QoSNotSupported = 0x9B, client NONE, server CONNACK | DISCONNECT;
    /// Use another server for now.
    UseAnotherServer = 0x9C, client NONE, server CONNACK | DISCONNECT;
    /// Use another server from now on.
    ServerMoved = 0x9D, client NONE, server CONNACK | DISCONNECT;
    /// Shared subscriptions are not supported.
    SharedSubscriptionsNotSupported = 0x9E, client NONE, server SUBACK | DISCONNECT;
    /// Connections come too fast.
    ConnectionRateExceeded = 0x9F, client NONE, server CONNACK | DISCONNECT;
    /// The connection has lasted as long as it may.
    MaximumConnectTime = 0xA0, client NONE, server DISCONNECT;
    /// Subscription identifiers are not supported.
    SubscriptionIdentifiersNotSupported = 0xA1, client NONE, server SUBACK | DISCONNECT;
    /// Wildcard subscriptions are not supported.
    WildcardSubscriptionsNotSupported = 0xA2, client NONE, server SUBACK | DISCONNECT;
}

impl ReasonCode {
    /// The byte on the wire.
    pub const fn as_u8(self) -> u8 {
        self as u8
    }

    /// Whether it tells of a failure: 0x80 and above.
    pub const fn is_error(self) -> bool {
        self as u8 >= 0x80
    }

    /// Whether version 5 allows it in a packet of this type from this sender.
    pub const fn is_legal_in(self, packet: PacketType, sender: Sender) -> bool {
        self.places(sender) & bit(packet) != 0
    }

    /// This reason, or the general one where version 5 does not allow it: for CONNACK and
    /// DISCONNECT, which say why a connection ends whatever packet was wrong [MQTT-3.2.2-8],
    /// [MQTT-3.14.2-1].
    pub const fn or_protocol_error(self, packet: PacketType, sender: Sender) -> Self {
        if self.is_legal_in(packet, sender) { self } else { Self::ProtocolError }
    }

    /// The nearest CONNACK return code of 3.1 and 3.1.1. What those versions have no word for
    /// becomes 3, *server unavailable*.
    pub const fn to_v3_connack(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::UnsupportedProtocolVersion => 1,
            Self::ClientIdentifierNotValid => 2,
            Self::BadUserNameOrPassword => 4,
            Self::NotAuthorized | Self::Banned | Self::BadAuthenticationMethod => 5,
            _ => 3,
        }
    }

    /// What a CONNACK return code of 3.1 and 3.1.1 means; `None` above 5.
    pub const fn from_v3_connack(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Success,
            1 => Self::UnsupportedProtocolVersion,
            2 => Self::ClientIdentifierNotValid,
            3 => Self::ServerUnavailable,
            4 => Self::BadUserNameOrPassword,
            5 => Self::NotAuthorized,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_its_byte_and_has_a_place() {
        for &code in ReasonCode::ALL {
            assert_eq!(ReasonCode::from_u8(code.as_u8()), Some(code));
            assert_ne!(code.places(Sender::Client) | code.places(Sender::Server), 0, "{code:?}");
        }
        assert_eq!(ReasonCode::ALL.len(), 43);
        let known = (0..=u8::MAX).filter(|byte| ReasonCode::from_u8(*byte).is_some()).count();
        assert_eq!(known, 43);
    }

    #[test]
    fn places_depend_on_packet_and_sender() {
        use PacketType::*;
        let legal = ReasonCode::is_legal_in;
        assert!(legal(ReasonCode::DisconnectWithWill, Disconnect, Sender::Client));
        assert!(!legal(ReasonCode::DisconnectWithWill, Disconnect, Sender::Server));
        assert!(legal(ReasonCode::SessionTakenOver, Disconnect, Sender::Server));
        assert!(!legal(ReasonCode::SessionTakenOver, Disconnect, Sender::Client));
        assert!(!legal(ReasonCode::PacketIdentifierNotFound, PubAck, Sender::Client));
        assert!(legal(ReasonCode::PacketIdentifierNotFound, PubComp, Sender::Client));
    }

    #[test]
    fn every_end_of_a_connection_can_be_told() {
        use PacketType::*;
        for (packet, sender) in
            [(ConnAck, Sender::Server), (Disconnect, Sender::Server), (Disconnect, Sender::Client)]
        {
            for &code in ReasonCode::ALL {
                let told = code.or_protocol_error(packet, sender);
                assert!(told.is_legal_in(packet, sender), "{code:?} in {packet:?}");
                assert!(told == code || !code.is_legal_in(packet, sender));
            }
        }
    }

    #[test]
    fn version_3_return_codes_go_there_and_back() {
        for byte in 0..=5 {
            assert_eq!(
                ReasonCode::from_v3_connack(byte).map(ReasonCode::to_v3_connack),
                Some(byte)
            );
        }
        assert_eq!(ReasonCode::from_v3_connack(6), None);
        assert_eq!(ReasonCode::QuotaExceeded.to_v3_connack(), 3);
    }
}
