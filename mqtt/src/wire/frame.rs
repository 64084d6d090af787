//! Where a packet begins and ends in a stream of bytes, judged as early as the bytes allow.

use super::DecodeError;

/// The largest value of a variable byte integer.
pub const MAX_VARIABLE_INTEGER: u32 = 268_435_455;

/// The largest packet that can be written: five bytes of fixed header and the largest remaining
/// length.
pub const MAX_PACKET_BYTES: usize = 5 + MAX_VARIABLE_INTEGER as usize;

/// The type of a control packet: the upper half of its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are the specification's")]
pub enum PacketType {
    Connect = 1,
    ConnAck = 2,
    Publish = 3,
    PubAck = 4,
    PubRec = 5,
    PubRel = 6,
    PubComp = 7,
    Subscribe = 8,
    SubAck = 9,
    Unsubscribe = 10,
    UnsubAck = 11,
    PingReq = 12,
    PingResp = 13,
    Disconnect = 14,
    Auth = 15,
}

/// Who sent a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sender {
    /// The client.
    Client,
    /// The server.
    Server,
}

/// What stands at the front of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The fixed header is not complete.
    NeedMore,
    /// The fixed header is complete and good; the packet is not all there yet.
    Partial {
        /// Size of the whole packet, header included.
        total_bytes: usize,
    },
    /// A whole packet.
    Complete {
        /// Size of the whole packet, header included.
        total_bytes: usize,
        /// Size of the fixed header.
        header_bytes: usize,
    },
}

/// Looks at the front of `input`. A packet, header included, may have `max_packet_size_bytes`.
///
/// The first byte is judged as soon as it is there, and a length that is too large before anything
/// behind it is awaited, so that a bad peer costs no buffer.
///
/// # Errors
/// The first byte is none that a packet can begin with, the length is too long, or the packet too
/// large.
#[inline]
pub fn peek(input: &[u8], max_packet_size_bytes: u32) -> Result<Frame, DecodeError> {
    let Some((&first, rest)) = input.split_first() else { return Ok(Frame::NeedMore) };
    check_first_byte(first)?;
    let Some((remaining, length_bytes)) = variable_integer(rest)? else {
        return Ok(Frame::NeedMore);
    };
    let header_bytes = 1 + length_bytes;
    let total_bytes = header_bytes + remaining as usize;
    if total_bytes as u64 > u64::from(max_packet_size_bytes) {
        return Err(DecodeError::PacketTooLarge);
    }
    if input.len() < total_bytes {
        return Ok(Frame::Partial { total_bytes });
    }
    Ok(Frame::Complete { total_bytes, header_bytes })
}

/// The variable byte integer at the front of `input` and how many bytes it takes; `None` when
/// `input` ends inside it. More bytes than the value needs pass: 3.1.1 does not forbid them, and
/// version 5 does; see [`is_minimal`].
///
/// # Errors
/// A fourth byte that says that more follow.
#[inline]
pub(super) fn variable_integer(input: &[u8]) -> Result<Option<(u32, usize)>, DecodeError> {
    let mut value = 0u32;
    for at in 0..4 {
        let Some(&byte) = input.get(at) else { return Ok(None) };
        value |= u32::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(Some((value, at + 1)));
        }
    }
    Err(DecodeError::BadVariableInteger)
}

/// Whether `value` needs all of its `length_bytes` [MQTT-1.5.5-1].
#[inline]
pub(super) const fn is_minimal(value: u32, length_bytes: usize) -> bool {
    length_bytes == variable_integer_bytes(value)
}

/// How many bytes a variable byte integer takes.
#[inline]
pub(super) const fn variable_integer_bytes(value: u32) -> usize {
    match value {
        0..0x80 => 1,
        0x80..0x4000 => 2,
        0x4000..0x20_0000 => 3,
        _ => 4,
    }
}

/// Appends a variable byte integer; `value` is at most [`MAX_VARIABLE_INTEGER`].
#[inline]
pub(super) fn put_variable_integer(out: &mut Vec<u8>, mut value: u32) {
    debug_assert!(value <= MAX_VARIABLE_INTEGER);
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The type in a first byte, when its flags are ones that some version gives that type.
#[inline]
pub(super) fn check_first_byte(first: u8) -> Result<PacketType, DecodeError> {
    let packet = PacketType::from_first_byte(first)?;
    match (packet, first & 0x0f) {
        (PacketType::Publish, flags) if flags & 0b0110 == 0b0110 => Err(DecodeError::BadQos),
        (PacketType::Publish, flags) if flags & 0b1110 == 0b1000 => Err(DecodeError::DupWithQos0),
        (PacketType::Publish, _) => Ok(packet),
        // 3.1 allows DUP beside the fixed 0b0010; the decoder knows the version and is exact.
        (PacketType::PubRel | PacketType::Subscribe | PacketType::Unsubscribe, 0x2 | 0xa) => {
            Ok(packet)
        }
        (PacketType::PubRel | PacketType::Subscribe | PacketType::Unsubscribe, _) => {
            Err(DecodeError::BadFlags)
        }
        (_, 0) => Ok(packet),
        _ => Err(DecodeError::BadFlags),
    }
}

impl PacketType {
    /// The type in the upper half of a packet's first byte.
    ///
    /// # Errors
    /// Type 0 is reserved.
    #[inline]
    pub const fn from_first_byte(first: u8) -> Result<Self, DecodeError> {
        Ok(match first >> 4 {
            1 => Self::Connect,
            2 => Self::ConnAck,
            3 => Self::Publish,
            4 => Self::PubAck,
            5 => Self::PubRec,
            6 => Self::PubRel,
            7 => Self::PubComp,
            8 => Self::Subscribe,
            9 => Self::SubAck,
            10 => Self::Unsubscribe,
            11 => Self::UnsubAck,
            12 => Self::PingReq,
            13 => Self::PingResp,
            14 => Self::Disconnect,
            15 => Self::Auth,
            _ => return Err(DecodeError::ReservedPacketType),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_is_judged_as_it_arrives() {
        assert_eq!(peek(&[], 100), Ok(Frame::NeedMore));
        assert_eq!(peek(&[0x30], 100), Ok(Frame::NeedMore));
        assert_eq!(peek(&[0x30, 0x80], 100), Ok(Frame::NeedMore));
        assert_eq!(peek(&[0x30, 2], 100), Ok(Frame::Partial { total_bytes: 4 }));
        let whole = Frame::Complete { total_bytes: 4, header_bytes: 2 };
        assert_eq!(peek(&[0x30, 2, 0, 0, 9], 100), Ok(whole));
        let most = [0x30, 0xff, 0xff, 0xff, 0x7f];
        assert_eq!(peek(&most, u32::MAX), Ok(Frame::Partial { total_bytes: MAX_PACKET_BYTES }));
        assert_eq!(
            peek(&[0x30, 0x80, 0x80, 0x80, 0x80], 100),
            Err(DecodeError::BadVariableInteger)
        );
    }

    #[test]
    fn the_limit_includes_the_header() {
        assert_eq!(peek(&[0x30, 8], 10), Ok(Frame::Partial { total_bytes: 10 }));
        assert_eq!(peek(&[0x30, 9], 10), Err(DecodeError::PacketTooLarge));
    }

    #[test]
    fn the_first_byte_needs_no_second() {
        let good: Vec<u8> = (0..=u8::MAX).filter(|first| peek(&[*first], 9).is_ok()).collect();
        let publish = [0x30, 0x31, 0x32, 0x33, 0x34, 0x35, 0x3a, 0x3b, 0x3c, 0x3d];
        let others = [0x40, 0x50, 0x62, 0x6a, 0x70, 0x82, 0x8a, 0x90, 0xa2, 0xaa, 0xb0];
        let ends = [0xc0, 0xd0, 0xe0, 0xf0];
        assert_eq!(good, [&[0x10, 0x20][..], &publish, &others, &ends].concat());
    }
}
