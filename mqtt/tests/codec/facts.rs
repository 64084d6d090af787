//! The fields of a packet, in one form for both codecs.

use mqtt::wire::{AckKind, Packet, Properties, Property, QoS, ReasonCode, RetainHandling};
use rumqttc::mqttbytes::v4;
use rumqttc::v5::mqttbytes::v5;

/// Fields in words; properties by kind, those of one kind in their order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Facts {
    fields: Vec<String>,
    properties: Vec<String>,
    will_properties: Vec<String>,
}

macro_rules! facts {
    ($($value:expr),* $(,)?) => { Facts { fields: vec![$(format!("{:?}", $value)),*], ..Facts::default() } };
}

/// Turns optional fields of theirs into properties of ours.
macro_rules! properties {
    ($from:expr; $($field:ident => $property:expr),* $(,)?) => {{
        #[allow(unused_mut, clippy::redundant_closure_call)]
        let mut all: Vec<String> = Vec::new();
        if let Some(from) = &$from {
            $(if let Some(value) = &from.$field { all.push(format!("{:?}", $property(value))); })*
            for (name, value) in &from.user_properties {
                all.push(format!("{:?}", Property::UserProperty(name, value)));
            }
        }
        all
    }};
}

impl Facts {
    fn with(mut self, properties: Vec<String>) -> Self {
        self.properties = sorted(properties);
        self
    }
}

fn sorted(mut all: Vec<String>) -> Vec<String> {
    // Stable: the order of properties of one kind has a meaning.
    all.sort_by_key(|text| text.split('(').next().unwrap_or_default().to_owned());
    all
}

fn listed(properties: Properties<'_>) -> Vec<String> {
    properties.iter().map(|property| format!("{property:?}")).collect()
}

pub fn ours(packet: &Packet<'_>) -> Facts {
    match packet {
        Packet::Connect(it) => {
            let will = it.will.map(|will| {
                (will.topic.to_owned(), will.payload.to_vec(), will.qos as u8, will.retain)
            });
            // Theirs is text, and absent when empty.
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let username = it.username.unwrap_or_default();
            let password = it.password.map(text).unwrap_or_default();
            let mut facts =
                facts![it.client_id, it.clean_start, it.keep_alive_s, will, username, password]
                    .with(listed(it.properties));
            if let Some(will) = it.will {
                facts.will_properties = sorted(listed(will.properties));
            }
            facts
        }
        Packet::ConnAck(it) => {
            facts![it.session_present, it.reason.as_u8()].with(listed(it.properties))
        }
        Packet::Publish(it) => facts![
            it.topic,
            it.dup,
            it.qos as u8,
            it.retain,
            it.packet_id.map_or(0, |id| id.get()),
            it.payload.to_vec()
        ]
        .with(listed(it.properties)),
        Packet::Ack(it) => {
            facts![it.kind, it.packet_id.get(), it.reason.as_u8()].with(listed(it.properties))
        }
        Packet::Subscribe(it) => {
            let filters: Vec<_> = it
                .filters
                .iter()
                .map(|(filter, o)| {
                    let handling = o.retain_handling as u8;
                    (filter.to_owned(), o.qos as u8, o.no_local, o.retain_as_published, handling)
                })
                .collect();
            facts![it.packet_id.get(), filters].with(listed(it.properties))
        }
        Packet::Unsubscribe(it) => {
            let filters: Vec<String> = it.filters.iter().map(|(it, _)| it.to_owned()).collect();
            facts![it.packet_id.get(), filters].with(listed(it.properties))
        }
        Packet::SubAck(it) | Packet::UnsubAck(it) => {
            facts![it.packet_id.get(), it.codes.to_vec()].with(listed(it.properties))
        }
        Packet::Disconnect(it) => facts![it.reason.as_u8()].with(listed(it.properties)),
        Packet::PingReq => facts!["PINGREQ"],
        Packet::PingResp => facts!["PINGRESP"],
        Packet::Auth(it) => facts!["AUTH", it.reason].with(listed(it.properties)),
    }
}

pub fn theirs_v4(packet: &v4::Packet) -> Facts {
    let good = ReasonCode::Success.as_u8();
    let ack = |kind: AckKind, id: u16| facts![kind, id, good];
    match packet {
        v4::Packet::Connect(it) => {
            let will = it
                .last_will
                .as_ref()
                .map(|w| (w.topic.clone(), w.message.to_vec(), w.qos as u8, w.retain));
            let login = it.login.clone();
            let (name, password) = login.map(|it| (it.username, it.password)).unwrap_or_default();
            facts![it.client_id, it.clean_session, it.keep_alive, will, name, password]
        }
        v4::Packet::ConnAck(it) => {
            let reason = ReasonCode::from_v3_connack(it.code as u8).map(ReasonCode::as_u8);
            facts![it.session_present, reason.unwrap_or(u8::MAX)]
        }
        v4::Packet::Publish(it) => {
            facts![it.topic, it.dup, it.qos as u8, it.retain, it.pkid, it.payload.to_vec()]
        }
        v4::Packet::PubAck(it) => ack(AckKind::PubAck, it.pkid),
        v4::Packet::PubRec(it) => ack(AckKind::PubRec, it.pkid),
        v4::Packet::PubRel(it) => ack(AckKind::PubRel, it.pkid),
        v4::Packet::PubComp(it) => ack(AckKind::PubComp, it.pkid),
        v4::Packet::Subscribe(it) => {
            let filters: Vec<_> = it
                .filters
                .iter()
                .map(|f| (f.path.clone(), f.qos as u8, false, false, RetainHandling::Always as u8))
                .collect();
            facts![it.pkid, filters]
        }
        v4::Packet::Unsubscribe(it) => facts![it.pkid, it.topics],
        v4::Packet::SubAck(it) => {
            let codes: Vec<u8> = it
                .return_codes
                .iter()
                .map(|code| match code {
                    v4::SubscribeReasonCode::Success(qos) => *qos as u8,
                    v4::SubscribeReasonCode::Failure => 0x80,
                })
                .collect();
            facts![it.pkid, codes]
        }
        v4::Packet::UnsubAck(it) => facts![it.pkid, Vec::<u8>::new()],
        v4::Packet::PingReq => facts!["PINGREQ"],
        v4::Packet::PingResp => facts!["PINGRESP"],
        v4::Packet::Disconnect => facts![good],
    }
}

pub fn theirs_v5(packet: &v5::Packet) -> Facts {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match packet {
        v5::Packet::Connect(it, will, login) => {
            let told =
                will.as_ref().map(|w| (text(&w.topic), w.message.to_vec(), w.qos as u8, w.retain));
            let login = login.clone();
            let (name, password) = login.map(|it| (it.username, it.password)).unwrap_or_default();
            let properties = properties![it.properties;
                session_expiry_interval => |it: &u32| Property::SessionExpiryIntervalS(*it),
                receive_maximum => |it: &u16| Property::ReceiveMaximum(*it),
                max_packet_size => |it: &u32| Property::MaximumPacketSizeBytes(*it),
                topic_alias_max => |it: &u16| Property::TopicAliasMaximum(*it),
                request_response_info => |it: &u8| Property::RequestResponseInformation(*it == 1),
                request_problem_info => |it: &u8| Property::RequestProblemInformation(*it == 1),
                authentication_method => Property::AuthMethod,
                authentication_data => Property::AuthData,
            ];
            let of_will = will.as_ref().and_then(|will| will.properties.clone());
            let of_will = properties![of_will;
                delay_interval => |it: &u32| Property::WillDelayIntervalS(*it),
                payload_format_indicator => |it: &u8| Property::PayloadIsUtf8(*it == 1),
                message_expiry_interval => |it: &u32| Property::MessageExpiryIntervalS(*it),
                content_type => Property::ContentType,
                response_topic => Property::ResponseTopic,
                correlation_data => Property::CorrelationData,
            ];
            let facts = facts![it.client_id, it.clean_start, it.keep_alive, told, name, password];
            Facts { will_properties: sorted(of_will), ..facts.with(properties) }
        }
        v5::Packet::ConnAck(it) => {
            let properties = properties![it.properties;
                session_expiry_interval => |it: &u32| Property::SessionExpiryIntervalS(*it),
                receive_max => |it: &u16| Property::ReceiveMaximum(*it),
                max_qos => |it: &u8| Property::MaximumQos(QoS::from_u8(*it).unwrap_or_default()),
                retain_available => |it: &u8| Property::RetainAvailable(*it == 1),
                max_packet_size => |it: &u32| Property::MaximumPacketSizeBytes(*it),
                assigned_client_identifier => Property::AssignedClientId,
                topic_alias_max => |it: &u16| Property::TopicAliasMaximum(*it),
                reason_string => Property::ReasonString,
                wildcard_subscription_available => |it: &u8| Property::WildcardAvailable(*it == 1),
                subscription_identifiers_available =>
                    |it: &u8| Property::SubscriptionIdsAvailable(*it == 1),
                shared_subscription_available => |it: &u8| Property::SharedAvailable(*it == 1),
                server_keep_alive => |it: &u16| Property::ServerKeepAliveS(*it),
                response_information => Property::ResponseInformation,
                server_reference => Property::ServerReference,
                authentication_method => Property::AuthMethod,
                authentication_data => Property::AuthData,
            ];
            facts![it.session_present, byte_of(&format!("{:?}", it.code))].with(properties)
        }
        v5::Packet::Publish(it) => {
            let mut properties = properties![it.properties;
                payload_format_indicator => |it: &u8| Property::PayloadIsUtf8(*it == 1),
                message_expiry_interval => |it: &u32| Property::MessageExpiryIntervalS(*it),
                topic_alias => |it: &u16| Property::TopicAlias(*it),
                response_topic => Property::ResponseTopic,
                correlation_data => Property::CorrelationData,
                content_type => Property::ContentType,
            ];
            let ids = it.properties.iter().flat_map(|it| it.subscription_identifiers.iter());
            properties.extend(ids.map(|id| format!("{:?}", Property::SubscriptionId(*id as u32))));
            let topic = text(&it.topic);
            facts![topic, it.dup, it.qos as u8, it.retain, it.pkid, it.payload.to_vec()]
                .with(properties)
        }
        v5::Packet::PubAck(it) => {
            let properties = properties![it.properties; reason_string => Property::ReasonString];
            facts![AckKind::PubAck, it.pkid, byte_of(&format!("{:?}", it.reason))].with(properties)
        }
        v5::Packet::PubRec(it) => {
            let properties = properties![it.properties; reason_string => Property::ReasonString];
            facts![AckKind::PubRec, it.pkid, byte_of(&format!("{:?}", it.reason))].with(properties)
        }
        v5::Packet::PubRel(it) => {
            let properties = properties![it.properties; reason_string => Property::ReasonString];
            facts![AckKind::PubRel, it.pkid, byte_of(&format!("{:?}", it.reason))].with(properties)
        }
        v5::Packet::PubComp(it) => {
            let properties = properties![it.properties; reason_string => Property::ReasonString];
            facts![AckKind::PubComp, it.pkid, byte_of(&format!("{:?}", it.reason))].with(properties)
        }
        v5::Packet::Subscribe(it) => {
            let filters: Vec<_> = it
                .filters
                .iter()
                .map(|f| {
                    let handling = f.retain_forward_rule.clone() as u8;
                    (f.path.clone(), f.qos as u8, f.nolocal, f.preserve_retain, handling)
                })
                .collect();
            let properties = properties![it.properties;
                id => |it: &usize| Property::SubscriptionId(*it as u32)
            ];
            facts![it.pkid, filters].with(properties)
        }
        v5::Packet::SubAck(it) => {
            let codes: Vec<u8> = it
                .return_codes
                .iter()
                .map(|code| match code {
                    v5::SubscribeReasonCode::Success(qos) => *qos as u8,
                    other => byte_of(&format!("{other:?}")),
                })
                .collect();
            let properties = properties![it.properties; reason_string => Property::ReasonString];
            facts![it.pkid, codes].with(properties)
        }
        v5::Packet::Unsubscribe(it) => {
            facts![it.pkid, it.filters].with(properties![it.properties;])
        }
        v5::Packet::UnsubAck(it) => {
            let codes: Vec<u8> =
                it.reasons.iter().map(|code| byte_of(&format!("{code:?}"))).collect();
            let properties = properties![it.properties; reason_string => Property::ReasonString];
            facts![it.pkid, codes].with(properties)
        }
        v5::Packet::Disconnect(it) => {
            let properties = properties![it.properties;
                session_expiry_interval => |it: &u32| Property::SessionExpiryIntervalS(*it),
                reason_string => Property::ReasonString,
                server_reference => Property::ServerReference,
            ];
            facts![it.reason_code as u8].with(properties)
        }
        v5::Packet::PingReq(_) => facts!["PINGREQ"],
        v5::Packet::PingResp(_) => facts!["PINGRESP"],
        v5::Packet::Auth(it) => facts!["AUTH", it.code],
    }
}

/// The number of a reason code by its name in the specification, as both write it.
fn byte_of(name: &str) -> u8 {
    let name = match name {
        // Their names, where they are not the specification's.
        "BadUserNamePassword" => "BadUserNameOrPassword",
        "Unspecified" => "UnspecifiedError",
        "ImplementationSpecific" => "ImplementationSpecificError",
        "PkidInUse" => "PacketIdentifierInUse",
        "SubscriptionIdNotSupported" => "SubscriptionIdentifiersNotSupported",
        other => other,
    };
    let found = ReasonCode::ALL.iter().find(|code| format!("{code:?}").eq_ignore_ascii_case(name));
    found.map_or(u8::MAX, |code| code.as_u8())
}
