//! What must hold for any bytes at all. The fuzz targets and the tests here share it.

use mqtt::wire::{
    DecodeError, Frame, Packet, Properties, Sender, Version, connect_version, decode_from_client,
    decode_from_server, encode, peek,
};

/// Larger packets are refused.
const LIMIT_BYTES: u32 = 1 << 20;

/// The first byte chooses version and sender; the rest is a stream of packets as a connection
/// would read it. Every frame decodes or is an error, and everything in it can be read.
pub fn decode(data: &[u8]) {
    let Some((&choice, stream)) = data.split_first() else { return };
    let (mut version, sender) = choose(choice);
    let mut rest = stream;
    loop {
        let _ = connect_version(rest);
        match peek(rest, LIMIT_BYTES) {
            Ok(Frame::Complete { total_bytes, header_bytes }) => {
                assert!(header_bytes <= 5 && header_bytes <= total_bytes);
                assert!(total_bytes <= LIMIT_BYTES as usize);
                let (frame, behind) = rest.split_at(total_bytes);
                rest = behind;
                match receive(frame, version, sender) {
                    Ok(Packet::Connect(connect)) => {
                        read(&Packet::Connect(connect));
                        version = connect.version;
                    }
                    Ok(packet) => read(&packet),
                    Err(error) => {
                        assert!(error.reason().is_error() && !error.clause().is_empty());
                        return;
                    }
                }
            }
            Ok(Frame::Partial { total_bytes }) => {
                assert!(total_bytes > rest.len());
                // Whoever ignores the framing must get an error, not a packet.
                assert!(receive(rest, version, sender).is_err());
                return;
            }
            Ok(Frame::NeedMore) => {
                assert!(rest.len() < 5);
                return;
            }
            Err(_) => return,
        }
    }
}

/// The first byte chooses version and sender; the rest is one frame. What decodes is encoded to
/// bytes that decode to the same packet, and is then encoded to the same bytes again.
pub fn roundtrip(data: &[u8]) {
    let Some((&choice, frame)) = data.split_first() else { return };
    let (version, sender) = choose(choice);
    let Ok(packet) = receive(frame, version, sender) else { return };
    read(&packet);
    let version = if let Packet::Connect(connect) = &packet { connect.version } else { version };
    let mut bytes = Vec::new();
    encode(&packet, version, &mut bytes);
    let again = receive(&bytes, version, sender);
    assert_eq!(again, Ok(packet), "{frame:02x?} became {bytes:02x?}");
    let whole = peek(&bytes, u32::MAX);
    assert!(matches!(whole, Ok(Frame::Complete { total_bytes, .. }) if total_bytes == bytes.len()));
    let mut twice = Vec::new();
    if let Ok(again) = again {
        encode(&again, version, &mut twice);
    }
    assert_eq!(bytes, twice);
    // Every shorter front of it is incomplete, and said to be.
    for cut in 0..bytes.len().min(64) {
        let seen = peek(&bytes[..cut], u32::MAX);
        assert!(matches!(seen, Ok(Frame::NeedMore | Frame::Partial { .. })), "cut at {cut}");
    }
}

fn choose(choice: u8) -> (Version, Sender) {
    let version = match choice % 3 {
        0 => Version::V5,
        1 => Version::V3_1_1,
        _ => Version::V3_1,
    };
    (version, if choice & 0x80 == 0 { Sender::Client } else { Sender::Server })
}

fn receive(frame: &[u8], version: Version, sender: Sender) -> Result<Packet<'_>, DecodeError> {
    match sender {
        Sender::Client => decode_from_client(frame, version),
        Sender::Server => decode_from_server(frame, version),
    }
}

/// Reads all that a packet offers: whatever was validated is readable to its end.
fn read(packet: &Packet<'_>) {
    let properties = match packet {
        Packet::Connect(it) => {
            if let Some(will) = &it.will {
                assert!(!will.topic.is_empty() && !will.topic.contains(['+', '#', '\0']));
                read_properties(&will.properties);
            }
            it.properties
        }
        Packet::ConnAck(it) => it.properties,
        Packet::Publish(it) => {
            assert!(!it.topic.contains(['+', '#', '\0']));
            assert!(!it.topic.is_empty() || it.properties.topic_alias().is_some());
            it.properties
        }
        Packet::Ack(it) => it.properties,
        Packet::Subscribe(it) => {
            assert_eq!(it.filters.iter().count(), it.filters.len());
            assert!(it.filters.iter().all(|(filter, _)| !filter.is_empty()));
            it.properties
        }
        Packet::Unsubscribe(it) => {
            assert!(it.filters.iter().count() > 0);
            it.properties
        }
        Packet::SubAck(it) | Packet::UnsubAck(it) => it.properties,
        Packet::Disconnect(it) | Packet::Auth(it) => it.properties,
        Packet::PingReq | Packet::PingResp => Properties::EMPTY,
    };
    read_properties(&properties);
}

fn read_properties(properties: &Properties<'_>) {
    assert_eq!(properties.iter().next().is_none(), properties.is_empty());
    let _ = (properties.subscription_ids().count(), properties.user_properties().count());
    let mut copied = Vec::new();
    properties.copy_forwardable(&mut copied);
    if let Some(together) = properties.forwardable() {
        assert_eq!(together, copied);
    }
}
