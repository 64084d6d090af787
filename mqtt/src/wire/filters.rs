//! The filter lists of SUBSCRIBE and UNSUBSCRIBE.

use super::reader::{Reader, text};
use super::{DecodeError, Filters, QoS, RetainHandling, SubscribeOptions, Version};

impl<'a> Filters<'a> {
    /// The filters with their options, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, SubscribeOptions)> + use<'a> {
        let with_options = self.with_options;
        let mut reader = Reader::new(self.raw);
        // Was validated, so an error means no more than the end.
        std::iter::from_fn(move || next(&mut reader, with_options).ok())
    }

    /// How many filters; walks them.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether there are none, which no decoded packet has.
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// Validates the filter list of a SUBSCRIBE. Whether a filter is well formed beyond being text
    /// is not judged here: such a filter gets a reason code of its own in SUBACK.
    pub(super) fn for_subscribe(raw: &'a [u8], version: Version) -> Result<Self, DecodeError> {
        if raw.is_empty() {
            return Err(DecodeError::NothingToSubscribe);
        }
        let mut reader = Reader::new(raw);
        while !reader.is_empty() {
            let filter = check_filter(&mut reader)?;
            check_options(reader.u8()?, filter, version)?;
        }
        Ok(Self { raw, with_options: true })
    }

    /// Validates the filter list of an UNSUBSCRIBE.
    pub(super) fn for_unsubscribe(raw: &'a [u8]) -> Result<Self, DecodeError> {
        if raw.is_empty() {
            return Err(DecodeError::NothingToUnsubscribe);
        }
        let mut reader = Reader::new(raw);
        while !reader.is_empty() {
            check_filter(&mut reader)?;
        }
        Ok(Self { raw, with_options: false })
    }
}

/// Builds the filter list of a SUBSCRIBE or UNSUBSCRIBE, for clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilterBuf {
    raw: Vec<u8>,
    with_options: bool,
}

impl FilterBuf {
    /// An empty list for a SUBSCRIBE.
    pub const fn for_subscribe() -> Self {
        Self { raw: Vec::new(), with_options: true }
    }

    /// An empty list for an UNSUBSCRIBE, where options are left out.
    pub const fn for_unsubscribe() -> Self {
        Self { raw: Vec::new(), with_options: false }
    }

    /// Appends a filter; one longer than 65 535 bytes is cut at a character.
    pub fn push(&mut self, filter: &str, options: SubscribeOptions) -> &mut Self {
        let filter = &filter[..filter.floor_char_boundary(usize::from(u16::MAX))];
        self.raw.extend_from_slice(&(filter.len() as u16).to_be_bytes());
        self.raw.extend_from_slice(filter.as_bytes());
        if self.with_options {
            self.raw.push(options.to_u8());
        }
        self
    }

    /// What was built so far; a packet needs at least one filter.
    pub fn as_filters(&self) -> Filters<'_> {
        Filters { raw: &self.raw, with_options: self.with_options }
    }
}

impl SubscribeOptions {
    /// The byte on the wire in version 5; 3.x knows the lowest two bits of it.
    pub const fn to_u8(self) -> u8 {
        self.qos as u8
            | (self.no_local as u8) << 2
            | (self.retain_as_published as u8) << 3
            | (self.retain_handling as u8) << 4
    }

    /// The options of a byte; `None` when it has reserved bits or values.
    pub const fn from_u8(byte: u8) -> Option<Self> {
        let Some(qos) = QoS::from_u8(byte & 0b11) else { return None };
        let retain_handling = match byte >> 4 {
            0 => RetainHandling::Always,
            1 => RetainHandling::IfNew,
            2 => RetainHandling::Never,
            _ => return None,
        };
        Some(Self {
            qos,
            no_local: byte & 0b100 != 0,
            retain_as_published: byte & 0b1000 != 0,
            retain_handling,
        })
    }
}

fn next<'a>(
    reader: &mut Reader<'a>,
    with_options: bool,
) -> Result<(&'a str, SubscribeOptions), DecodeError> {
    let filter = std::str::from_utf8(reader.binary()?).map_err(|_| DecodeError::NotUtf8)?;
    let options = if with_options {
        SubscribeOptions::from_u8(reader.u8()?).ok_or(DecodeError::ReservedSubscribeOption)?
    } else {
        SubscribeOptions::default()
    };
    Ok((filter, options))
}

fn check_filter<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], DecodeError> {
    let filter = reader.binary()?;
    if filter.is_empty() {
        return Err(DecodeError::EmptyFilter);
    }
    text(filter)?;
    Ok(filter)
}

fn check_options(byte: u8, filter: &[u8], version: Version) -> Result<(), DecodeError> {
    let reserved = if version == Version::V5 { 0b1100_0000 } else { 0b1111_1100 };
    if byte & reserved != 0 {
        return Err(DecodeError::ReservedSubscribeOption);
    }
    if byte & 0b11 == 0b11 {
        return Err(DecodeError::BadSubscribeQos);
    }
    let options = SubscribeOptions::from_u8(byte).ok_or(DecodeError::BadRetainHandling)?;
    if options.no_local && filter.starts_with(b"$share/") {
        return Err(DecodeError::NoLocalOnShared);
    }
    Ok(())
}
