//! What a message carries: who sent it, its number, and when it was due.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Bytes that every payload begins with.
pub const STAMP_BYTES: usize = 24;
/// The largest payload, in bytes.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 20;

/// The head of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Of the run, so that messages of an earlier one are known.
    pub run: u32,
    /// The flow.
    pub flow: u32,
    /// The number in its flow, from 0.
    pub number: u64,
    /// When it was to be sent, on the clock of the run.
    pub due_ns: u64,
}

/// Payload sizes, evenly spread: `128` or `64-1024`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(RangeInclusive<usize>);

impl Stamp {
    /// Its bytes.
    #[inline]
    pub fn to_bytes(self) -> [u8; STAMP_BYTES] {
        let mut bytes = [0; STAMP_BYTES];
        bytes[..4].copy_from_slice(&self.run.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.flow.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..].copy_from_slice(&self.due_ns.to_le_bytes());
        bytes
    }

    /// The stamp of a payload; `None` when it is too short for one.
    #[inline]
    pub fn of(payload: &[u8]) -> Option<Self> {
        let bytes: &[u8; STAMP_BYTES] = payload.first_chunk()?;
        let u32_at = |at| <[u8; 4]>::try_from(&bytes[at..at + 4]).map(u32::from_le_bytes).ok();
        let u64_at = |at| <[u8; 8]>::try_from(&bytes[at..at + 8]).map(u64::from_le_bytes).ok();
        Some(Self { run: u32_at(0)?, flow: u32_at(4)?, number: u64_at(8)?, due_ns: u64_at(16)? })
    }
}

impl Sizes {
    /// The size of one message. It follows from flow and number, so that the receiver knows it.
    #[inline]
    pub fn of(&self, flow: u32, number: u64) -> usize {
        let span = (self.0.end() - self.0.start() + 1) as u64;
        if span == 1 {
            return *self.0.start();
        }
        // Fibonacci hashing: neighbours land far apart, and all sizes come equally often.
        let mixed = (number ^ u64::from(flow) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0.start() + ((u128::from(mixed) * u128::from(span)) >> 64) as usize
    }

    /// All of one size, no smaller than a stamp.
    pub fn of_one(bytes: usize) -> Self {
        let bytes = bytes.clamp(STAMP_BYTES, MAX_PAYLOAD_BYTES);
        Self(bytes..=bytes)
    }

    /// Their mean.
    pub fn mean(&self) -> f64 {
        (self.0.start() + self.0.end()) as f64 / 2.0
    }

    /// The largest.
    pub fn max(&self) -> usize {
        *self.0.end()
    }
}

impl Default for Sizes {
    fn default() -> Self {
        Self(128..=128)
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| part.parse::<usize>().map_err(|_| format!("{part:?} is no size"));
        let (low, high) = match text.split_once('-') {
            Some((low, high)) => (number(low)?, number(high)?),
            None => (number(text)?, number(text)?),
        };
        if low > high || low < STAMP_BYTES || high > MAX_PAYLOAD_BYTES {
            return Err(format!("sizes lie between {STAMP_BYTES} and {MAX_PAYLOAD_BYTES} bytes"));
        }
        Ok(Self(low..=high))
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.start(), self.0.end()) {
            (low, high) if low == high => write!(f, "{low}"),
            (low, high) => write!(f, "{low}-{high}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_come_back() {
        let stamp = Stamp { run: 7, flow: 300, number: 1 << 40, due_ns: 123_456_789_012 };
        let mut payload = stamp.to_bytes().to_vec();
        assert_eq!(Stamp::of(&payload), Some(stamp));
        payload.push(1);
        assert_eq!(Stamp::of(&payload), Some(stamp));
        assert_eq!(Stamp::of(&payload[..STAMP_BYTES - 1]), None);
    }

    #[test]
    fn sizes_fill_their_range() {
        let sizes: Sizes = "100-199".parse().unwrap();
        let mut counts = [0; 100];
        for number in 0..10_000 {
            counts[sizes.of(3, number) - 100] += 1;
        }
        assert!(counts.iter().all(|count| (80..=120).contains(count)), "{counts:?}");
        let one: Sizes = "128".parse().unwrap();
        assert_eq!((one.of(1, 2), one.max()), (128, 128));
    }

    #[test]
    fn bad_sizes_are_refused() {
        for text in ["", "23", "10-100", "200-100", "x", "24-9999999", "-5"] {
            assert!(text.parse::<Sizes>().is_err(), "{text}");
        }
        assert_eq!("24-30".parse::<Sizes>().unwrap().to_string(), "24-30");
    }
}
