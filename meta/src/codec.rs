//! How a record is written: one version byte, then postcard.
//!
//! The version stands in every record, not once in the store, so that a later build can read what an
//! earlier one wrote and rewrite it piece by piece.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::store::StoreError;

/// The version that this build writes, and the only one that it reads.
pub const VERSION: u8 = 1;

/// The bytes of a record.
///
/// # Panics
/// Only for types whose `Serialize` fails by itself; derived ones over owned data, which is all that
/// this crate stores, never do.
pub fn encode<T: Serialize + ?Sized>(record: &T) -> Vec<u8> {
    postcard::to_extend(record, vec![VERSION]).expect("derived records always encode")
}

/// The record that `bytes` hold.
///
/// # Errors
/// [`StoreError::Damaged`] when they are empty, have a newer version (its number is told), are cut
/// short, do not fit the type, or go on behind it.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, StoreError> {
    let damaged = |reason: String| Err(StoreError::Damaged(reason));
    match bytes.split_first() {
        None => damaged("an empty record".into()),
        Some((&VERSION, body)) => match postcard::take_from_bytes(body) {
            Ok((record, [])) => Ok(record),
            Ok((_, rest)) => damaged(format!("{} bytes too many in a record", rest.len())),
            Err(error) => damaged(format!("a record that cannot be read: {error}")),
        },
        Some((version, _)) => damaged(format!(
            "a record of version {version}, but this build reads version {VERSION} only"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(bytes: &[u8]) -> String {
        decode::<(u64, String)>(bytes).expect_err("refused").to_string()
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = encode(&(300_u64, "a".to_owned()));
        assert_eq!(bytes, [1, 0xac, 0x02, 1, b'a']);
        assert_eq!(decode::<(u64, String)>(&bytes).expect("reads"), (300, "a".to_owned()));
    }

    #[test]
    fn a_newer_version_is_refused_with_its_number() {
        assert!(reason(&[7, 0, 0]).contains("version 7"));
    }

    #[test]
    fn empty_short_and_long_records_are_refused() {
        assert!(reason(&[]).contains("empty"));
        assert!(reason(&[1, 0xac]).contains("cannot be read"));
        assert!(reason(&[1, 0, 5, b'a']).contains("cannot be read"));
        assert!(reason(&[1, 0, 1, b'a', 0]).contains("1 bytes too many"));
    }
}
