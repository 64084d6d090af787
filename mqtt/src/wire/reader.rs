//! Fields, taken from the front of a packet one after the other.

use super::property_check::Place;
use super::{DecodeError, PacketId, Properties, frame};

/// What is left of a packet's body.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// All that is left.
    #[inline]
    pub fn take_rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Ends the packet: nothing may be left.
    pub fn finish(&self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::TrailingBytes) }
    }

    #[inline]
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        let (byte, rest) = self.rest.split_first().ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(*byte)
    }

    #[inline]
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(u16::from_be_bytes(*bytes))
    }

    #[inline]
    pub fn packet_id(&mut self) -> Result<PacketId, DecodeError> {
        PacketId::new(self.u16()?).ok_or(DecodeError::ZeroPacketId)
    }

    /// Bytes behind a two-byte length.
    #[inline]
    pub fn binary(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = usize::from(self.u16()?);
        self.take(length)
    }

    pub fn string(&mut self) -> Result<&'a str, DecodeError> {
        text(self.binary()?)
    }

    /// A topic name, possibly empty; a wildcard in it is the violation `wildcard`.
    #[inline]
    pub fn topic(&mut self, wildcard: DecodeError) -> Result<&'a str, DecodeError> {
        topic_text(self.binary()?, wildcard)
    }

    /// Properties behind their length.
    #[inline]
    pub fn properties(&mut self, place: Place) -> Result<Properties<'a>, DecodeError> {
        if let [0, rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(Properties::EMPTY);
        }
        let (length, length_bytes) =
            frame::variable_integer(self.rest)?.ok_or(DecodeError::Truncated)?;
        if !frame::is_minimal(length, length_bytes) {
            return Err(DecodeError::BadVariableInteger);
        }
        self.rest = &self.rest[length_bytes..];
        Properties::check(self.take(length as usize)?, place)
    }

    #[inline]
    fn take(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }
}

/// A string field: UTF-8 [MQTT-1.5.4-1] without U+0000 [MQTT-1.5.4-2].
pub(super) fn text(bytes: &[u8]) -> Result<&str, DecodeError> {
    let text = std::str::from_utf8(bytes).map_err(|_| DecodeError::NotUtf8)?;
    match memchr::memchr(0, bytes) {
        Some(_) => Err(DecodeError::NulInString),
        None => Ok(text),
    }
}

/// A topic name: text without wildcards.
#[inline]
pub(super) fn topic_text(bytes: &[u8], wildcard: DecodeError) -> Result<&str, DecodeError> {
    let text = std::str::from_utf8(bytes).map_err(|_| DecodeError::NotUtf8)?;
    match memchr::memchr3(b'+', b'#', 0, bytes) {
        Some(at) if bytes[at] == 0 => Err(DecodeError::NulInString),
        Some(_) => Err(wildcard),
        None => Ok(text),
    }
}
