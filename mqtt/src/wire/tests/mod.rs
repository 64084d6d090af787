//! The codec against one table of packets, and against arbitrary bytes.

mod arbitrary;
mod builders;
mod table;

use super::*;
use table::{Row, rows};

/// More than any row of the table but the one that is too large.
const LIMIT_BYTES: u32 = 200;

/// What a receiver makes of bytes: the framing first, then the packet.
fn receive(bytes: &[u8], version: Version, sender: Sender) -> Result<Packet<'_>, DecodeError> {
    peek(bytes, LIMIT_BYTES)?;
    match sender {
        Sender::Client => decode_from_client(bytes, version),
        Sender::Server => decode_from_server(bytes, version),
    }
}

fn encoded(packet: &Packet<'_>, version: Version) -> Vec<u8> {
    let mut out = Vec::new();
    encode(packet, version, &mut out);
    out
}

#[test]
fn every_row_is_received_as_it_says() {
    let mut wrong = Vec::new();
    for Row { name, version, sender, bytes, expected, .. } in rows() {
        let got = receive(bytes, version, sender);
        if got != expected {
            wrong.push(format!("{name}: {got:?} instead of {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn good_rows_are_encoded_to_their_bytes() {
    for Row { name, version, bytes, expected, canonical, .. } in rows() {
        let Ok(packet) = expected else { continue };
        let again = encoded(&packet, version);
        assert_eq!(again == bytes, canonical, "{name}: {again:02x?}");
    }
}

#[test]
fn good_rows_are_complete_only_with_their_last_byte() {
    for Row { name, bytes, expected, version, sender, .. } in rows() {
        if expected.is_err() {
            continue;
        }
        for cut in 0..bytes.len() {
            let seen = peek(&bytes[..cut], LIMIT_BYTES);
            let short = match seen {
                Ok(Frame::NeedMore) => cut < 2 || bytes[cut - 1] & 0x80 != 0,
                Ok(Frame::Partial { total_bytes }) => total_bytes == bytes.len(),
                _ => false,
            };
            assert!(short, "{name} cut at {cut}: {seen:?}");
            assert!(receive(&bytes[..cut], version, sender).is_err(), "{name} cut at {cut}");
        }
        let whole = peek(bytes, LIMIT_BYTES);
        assert!(matches!(whole, Ok(Frame::Complete { total_bytes, header_bytes })
            if total_bytes == bytes.len() && header_bytes < 4));
        assert_eq!(peek(bytes, bytes.len() as u32 - 1), Err(DecodeError::PacketTooLarge));
        assert_eq!(peek(bytes, bytes.len() as u32), whole, "the limit is inclusive");
    }
}

#[test]
fn bodies_cut_inside_are_never_taken_for_the_whole() {
    for Row { name, bytes, expected, version, sender, canonical } in rows() {
        // A payload and lists may end anywhere; only whoever counts them can tell.
        if !canonical || !matches!(expected, Ok(Packet::Connect(_) | Packet::ConnAck(_))) {
            continue;
        }
        for cut in 2..bytes.len() {
            let mut short = bytes[..cut].to_vec();
            short[1] = (cut - 2) as u8;
            assert_eq!(
                receive(&short, version, sender),
                Err(DecodeError::Truncated),
                "{name} cut at {cut}"
            );
        }
    }
}

#[test]
fn the_table_has_every_packet_type_and_every_violation() {
    let rows = rows();
    for error in DecodeError::ALL {
        assert!(rows.iter().any(|row| row.expected == Err(*error)), "{error:?} has no row");
        assert!(error.reason().is_error(), "{error:?}");
        assert!(!error.clause().is_empty() && !error.to_string().is_empty());
    }
    for first in (0x10..=0xf0).step_by(0x10) {
        let of_type = |row: &&Row| row.expected.is_ok() && row.bytes[0] & 0xf0 == first;
        assert!(rows.iter().any(|row| of_type(&row)), "type {first:02x} has no good row");
    }
}

#[test]
fn names_are_unique() {
    let mut names: Vec<_> = rows().iter().map(|row| row.name).collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all);
}
