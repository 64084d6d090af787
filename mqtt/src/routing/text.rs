//! The text of a filter as part of a larger entry.

/// The text of a filter. That of a usual filter lies in the entry itself: one wait for memory
/// less for each filter that matches, and no more bytes than a block of its own.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Text {
    Short { len: u8, bytes: [u8; SHORT_BYTES] },
    Long(Box<[u8]>),
}

const SHORT_BYTES: usize = 46;

impl Text {
    pub(super) fn new(filter: &str) -> Self {
        if filter.len() > SHORT_BYTES {
            return Self::Long(filter.as_bytes().into());
        }
        let mut bytes = [0; SHORT_BYTES];
        bytes[..filter.len()].copy_from_slice(filter.as_bytes());
        Self::Short { len: filter.len() as u8, bytes }
    }

    #[inline]
    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short { len, bytes } => &bytes[..usize::from(*len)],
            Self::Long(long) => long,
        }
    }

    /// The text again; never empty, as no filter is.
    pub(super) fn as_str(&self) -> &str {
        // It was made from a `str`; this is for listings, where checking it costs little.
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_any_length_come_back() {
        for len in 0..100 {
            let text = "x".repeat(len);
            assert_eq!(Text::new(&text).as_str(), text);
        }
        assert_eq!(size_of::<Option<Text>>(), 48);
    }
}
