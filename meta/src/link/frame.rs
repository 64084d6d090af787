//! Frames: `[u32 length][u8 kind][u64 request]`, then the body; numbers are little-endian.
//!
//! The length counts what follows it. The request number ties an answer to what it answers.

use bytes::{Buf, Bytes, BytesMut};

/// Bytes before the body.
pub const HEAD_BYTES: usize = 13;
/// What the length counts beside the body.
const COUNTED_HEAD_BYTES: usize = 9;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A request; the body is a [`super::message::Request`].
    Request = 1,
    /// The answer to a request; its type depends on the request.
    Response = 2,
    /// The peer could not carry a request out: a text.
    Refused = 3,
    /// Asks for a pong. Without a body.
    Ping = 4,
    /// Answers a ping. Without a body.
    Pong = 5,
    /// Begins or resumes a snapshot: a [`super::message::Offer`].
    Offer = 6,
    /// Answers an offer: a [`super::message::Resume`].
    Resume = 7,
    /// A piece of a snapshot, as `state::export` encodes it.
    Chunk = 8,
    /// A piece was taken. Without a body.
    Taken = 9,
    /// All pieces were sent: put the snapshot in place. The body is the vote that sends it.
    Finish = 10,
    /// Answers a finish: a `SnapshotResponse`.
    Finished = 11,
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub kind: Kind,
    /// Which request it is about; 0 where that has no meaning.
    pub request: u64,
    /// The rest.
    pub body: Bytes,
}

/// Why bytes are no frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// More than the limit.
    #[error("a frame of {bytes} bytes, where {limit} are allowed")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// What is allowed.
        limit: usize,
    },
    /// Too small to have a kind and a number.
    #[error("a frame of {0} bytes")]
    TooSmall(u32),
    /// Of a kind that this build does not know.
    #[error("a frame of the unknown kind {0}")]
    UnknownKind(u8),
}

/// The bytes of a frame.
///
/// # Errors
/// [`FrameError::TooLarge`].
pub fn encode(
    kind: Kind,
    request: u64,
    body: &[u8],
    max_frame_bytes: usize,
) -> Result<Vec<u8>, FrameError> {
    let counted = body.len() + COUNTED_HEAD_BYTES;
    let too_large = || FrameError::TooLarge { bytes: counted as u64, limit: max_frame_bytes };
    if counted > max_frame_bytes {
        return Err(too_large());
    }
    let length = u32::try_from(counted).map_err(|_| too_large())?;
    let mut bytes = Vec::with_capacity(HEAD_BYTES + body.len());
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.push(kind as u8);
    bytes.extend_from_slice(&request.to_le_bytes());
    bytes.extend_from_slice(body);
    Ok(bytes)
}

/// Takes the first frame off `buffer`; `None` when it is not there as a whole.
///
/// # Errors
/// [`FrameError`], as soon as it can be seen. The stream cannot be read on.
pub fn decode(buffer: &mut BytesMut, max_frame_bytes: usize) -> Result<Option<Frame>, FrameError> {
    let Some(length) = buffer.first_chunk().copied().map(u32::from_le_bytes) else {
        return Ok(None);
    };
    let counted = length as usize;
    if counted > max_frame_bytes {
        return Err(FrameError::TooLarge { bytes: length.into(), limit: max_frame_bytes });
    }
    if counted < COUNTED_HEAD_BYTES {
        return Err(FrameError::TooSmall(length));
    }
    let Some(&kind) = buffer.get(4) else { return Ok(None) };
    let kind = Kind::from_byte(kind).ok_or(FrameError::UnknownKind(kind))?;
    if buffer.len() < 4 + counted {
        return Ok(None);
    }
    let mut frame = buffer.split_to(4 + counted).freeze();
    frame.advance(5);
    let request = frame.get_u64_le();
    Ok(Some(Frame { kind, request, body: frame }))
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Request,
            2 => Self::Response,
            3 => Self::Refused,
            4 => Self::Ping,
            5 => Self::Pong,
            6 => Self::Offer,
            7 => Self::Resume,
            8 => Self::Chunk,
            9 => Self::Taken,
            10 => Self::Finish,
            11 => Self::Finished,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 1000;

    fn stream() -> (Vec<Frame>, Vec<u8>) {
        let frames = vec![
            Frame { kind: Kind::Request, request: 7, body: Bytes::from_static(b"append") },
            Frame { kind: Kind::Ping, request: 0, body: Bytes::new() },
            Frame { kind: Kind::Finished, request: u64::MAX, body: vec![9; 300].into() },
        ];
        let bytes = frames.iter().flat_map(|frame| {
            encode(frame.kind, frame.request, &frame.body, LIMIT).expect("small")
        });
        (frames.clone(), bytes.collect())
    }

    #[test]
    fn frames_come_out_wherever_the_bytes_are_split() {
        let (frames, bytes) = stream();
        for split in 0..=bytes.len() {
            let mut found = Vec::new();
            let mut buffer = BytesMut::new();
            for part in [&bytes[..split], &bytes[split..]] {
                buffer.extend_from_slice(part);
                while let Some(frame) = decode(&mut buffer, LIMIT).expect("frames") {
                    found.push(frame);
                }
            }
            assert_eq!(found, frames, "split at {split}");
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn frames_come_out_byte_by_byte() {
        let (frames, bytes) = stream();
        let mut found = Vec::new();
        let mut buffer = BytesMut::new();
        for byte in bytes {
            buffer.extend_from_slice(&[byte]);
            found.extend(decode(&mut buffer, LIMIT).expect("frames"));
        }
        assert_eq!(found, frames);
    }

    #[test]
    fn sizes_and_kinds_are_checked() {
        assert!(encode(Kind::Request, 1, &[0; LIMIT - 9], LIMIT).is_ok());
        let error = encode(Kind::Request, 1, &[0; LIMIT - 8], LIMIT).expect_err("too large");
        assert_eq!(error, FrameError::TooLarge { bytes: LIMIT as u64 + 1, limit: LIMIT });

        let decode = |bytes: &[u8]| decode(&mut BytesMut::from(bytes), LIMIT);
        // Seen by the length alone: nobody waits for, or makes room for, what follows.
        let error = decode(&u32::MAX.to_le_bytes()).expect_err("too large");
        assert_eq!(error, FrameError::TooLarge { bytes: u32::MAX.into(), limit: LIMIT });
        assert_eq!(decode(&[8, 0, 0, 0]), Err(FrameError::TooSmall(8)));
        assert_eq!(decode(&[9, 0, 0, 0, 77]), Err(FrameError::UnknownKind(77)));
        assert_eq!(decode(&[9, 0, 0, 0, 0]), Err(FrameError::UnknownKind(0)));
        assert_eq!(decode(&[9, 0, 0]), Ok(None));
    }

    #[test]
    fn all_kinds_are_known() {
        for byte in 0..=u8::MAX {
            if let Some(kind) = Kind::from_byte(byte) {
                assert_eq!(kind as u8, byte);
            }
        }
        assert_eq!((0..=u8::MAX).filter_map(Kind::from_byte).count(), 11);
    }
}
