//! SASLprep: so that a name or password typed on one keyboard equals the same typed on another.

use std::borrow::Cow;

/// A string that SASLprep (RFC 4013) refuses: control characters, private use, mixed directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("has characters that names and passwords must not have")]
pub struct NotPreparable;

/// The prepared form of a name or a password; printable ASCII is its own.
///
/// # Errors
/// A string that SASLprep refuses, or one of which nothing is left.
pub fn prepare(text: &str) -> Result<Cow<'_, str>, NotPreparable> {
    match stringprep::saslprep(text) {
        Ok(prepared) if !prepared.is_empty() => Ok(prepared),
        _ => Err(NotPreparable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_4013_examples() {
        for (text, prepared) in [
            ("I\u{AD}X", Some("IX")),
            ("user", Some("user")),
            ("USER", Some("USER")),
            ("\u{AA}", Some("a")),
            ("\u{2168}", Some("IX")),
            ("\u{7}", None),
            ("\u{627}\u{31}", None),
            ("", None),
            ("\u{AD}", None),
            ("a\nb", None),
        ] {
            assert_eq!(prepare(text).ok().as_deref(), prepared, "{text:?}");
        }
    }
}
