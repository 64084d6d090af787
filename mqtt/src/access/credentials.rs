//! What is kept of a password: enough to verify it, not enough to log in with it.

use std::fmt;
use std::str::FromStr;

use ctutils::CtEq as _;

use super::crypto::{Key, from_base64, hash, hmac, stretch, to_base64};
use super::prepare;

/// Fewest iterations taken: what RFC 7677 asks for at least.
pub const MIN_ITERATIONS: u32 = 4096;
/// Most iterations taken: a password of such a user costs seconds to verify.
pub const MAX_ITERATIONS: u32 = 10_000_000;
/// Iterations of new credentials: a few milliseconds per CONNECT with a password.
pub const DEFAULT_ITERATIONS: u32 = 15_000;
/// Bytes of salt of new credentials.
pub const SALT_BYTES: usize = 16;

/// Longest salt taken, in bytes.
const MAX_SALT_BYTES: usize = 255;
const MECHANISM: &str = "SCRAM-SHA-256";

/// The record of RFC 5803 for SCRAM-SHA-256. Its text form is
/// `SCRAM-SHA-256$iterations:salt$storedkey:serverkey`, the last three in base64.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub(super) iterations: u32,
    pub(super) salt: Box<[u8]>,
    pub(super) stored_key: Key,
    pub(super) server_key: Key,
}

/// Why credentials cannot be made or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    /// Empty, or with characters that SASLprep refuses.
    #[error("the password is empty or has characters that passwords must not have")]
    Password,
    /// Out of range.
    #[error("iterations must be a number from {MIN_ITERATIONS} to {MAX_ITERATIONS}")]
    Iterations,
    /// Empty, too long, or not base64.
    #[error("the salt must be base64 of 1 to {MAX_SALT_BYTES} bytes")]
    Salt,
    /// Not base64 of 32 bytes.
    #[error("stored key and server key must be base64 of 32 bytes each")]
    Key,
    /// Another mechanism, or no record at all.
    #[error("must look like SCRAM-SHA-256$iterations:salt$storedkey:serverkey")]
    Form,
}

impl Credentials {
    /// The credentials of `password`. `salt` is to be unpredictable, of [`SALT_BYTES`] bytes.
    /// Takes as long as verifying will.
    ///
    /// # Errors
    /// A password that SASLprep refuses; iterations or a salt out of range.
    pub fn derive(password: &str, salt: &[u8], iterations: u32) -> Result<Self, CredentialsError> {
        let password = prepare(password).map_err(|_| CredentialsError::Password)?;
        check_iterations(iterations)?;
        check_salt(salt)?;
        let salted = stretch(password.as_bytes(), salt, iterations);
        let client_key = hmac(&salted, &[b"Client Key"]);
        Ok(Self {
            iterations,
            salt: salt.into(),
            stored_key: hash(&client_key),
            server_key: hmac(&salted, &[b"Server Key"]),
        })
    }

    /// Whether `password` is the right one. Takes milliseconds, by `iterations`, whatever the
    /// result, unless no password of anybody could look like this.
    pub fn verify(&self, password: &[u8]) -> bool {
        let Ok(password) = str::from_utf8(password) else { return false };
        let Ok(password) = prepare(password) else { return false };
        let salted = stretch(password.as_bytes(), &self.salt, self.iterations);
        self.is_client_key(&hmac(&salted, &[b"Client Key"]))
    }

    pub(super) fn is_client_key(&self, key: &Key) -> bool {
        hash(key).ct_eq(&self.stored_key).to_bool()
    }
}

impl FromStr for Credentials {
    type Err = CredentialsError;

    fn from_str(text: &str) -> Result<Self, CredentialsError> {
        let mut parts = text.split('$');
        let (Some(MECHANISM), Some(cost), Some(keys), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(CredentialsError::Form);
        };
        let (iterations, salt) = cost.split_once(':').ok_or(CredentialsError::Form)?;
        let (stored_key, server_key) = keys.split_once(':').ok_or(CredentialsError::Form)?;
        let iterations = iterations.parse().map_err(|_| CredentialsError::Iterations)?;
        check_iterations(iterations)?;
        let salt = from_base64(salt).ok_or(CredentialsError::Salt)?;
        check_salt(&salt)?;
        Ok(Self {
            iterations,
            salt: salt.into(),
            stored_key: key(stored_key)?,
            server_key: key(server_key)?,
        })
    }
}

impl fmt::Display for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { iterations, salt, stored_key, server_key } = self;
        let [salt, stored_key, server_key] = [&**salt, stored_key, server_key].map(to_base64);
        write!(f, "{MECHANISM}${iterations}:{salt}${stored_key}:{server_key}")
    }
}

/// Without the keys: whoever reads a log could try passwords against them.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("iterations", &self.iterations).finish_non_exhaustive()
    }
}

fn check_iterations(iterations: u32) -> Result<(), CredentialsError> {
    match (MIN_ITERATIONS..=MAX_ITERATIONS).contains(&iterations) {
        true => Ok(()),
        false => Err(CredentialsError::Iterations),
    }
}

fn check_salt(salt: &[u8]) -> Result<(), CredentialsError> {
    match (1..=MAX_SALT_BYTES).contains(&salt.len()) {
        true => Ok(()),
        false => Err(CredentialsError::Salt),
    }
}

fn key(text: &str) -> Result<Key, CredentialsError> {
    from_base64(text).and_then(|key| key.try_into().ok()).ok_or(CredentialsError::Key)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The salt of RFC 7677's example; the keys were computed from its password by another
    /// implementation's rules: RFC 5803 as PostgreSQL writes it.
    const PENCIL: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$\
        WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

    #[test]
    fn derived_written_read_and_verified() {
        let salt = from_base64("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let made = Credentials::derive("pencil", &salt, 4096).unwrap();
        assert_eq!(made.to_string(), PENCIL);
        assert_eq!(PENCIL.parse(), Ok(made.clone()));
        assert!(made.verify(b"pencil"));
        assert!(made.verify("pen\u{AD}cil".as_bytes()), "prepared before it is compared");
        for wrong in [&b"Pencil"[..], b"", b"pencil\0", b"\xFF", b"pencil "] {
            assert!(!made.verify(wrong), "{wrong:?}");
        }
        assert!(!format!("{made:?}").contains("WG5d"), "keys stay out of logs");
    }

    #[test]
    fn what_cannot_be_made_or_read() {
        use CredentialsError::*;
        assert_eq!(Credentials::derive("", b"salt", 4096).unwrap_err(), Password);
        assert_eq!(Credentials::derive("a\u{7}", b"salt", 4096).unwrap_err(), Password);
        assert_eq!(Credentials::derive("a", b"", 4096).unwrap_err(), Salt);
        assert_eq!(Credentials::derive("a", b"salt", 4095).unwrap_err(), Iterations);
        for (from, to, error) in [
            ("SCRAM-SHA-256", "SCRAM-SHA-1", Form),
            ("$4096:", "$4096", Form),
            ("$4096:", "$4095:", Iterations),
            ("$4096:", "$99999999999:", Iterations),
            ("$4096:", "$-1:", Iterations),
            ("W22ZaJ0S", "****", Salt),
            ("qY=:", "qY=", Form),
            ("qY=:", "qY:", Key),
            ("WG5d", "", Key),
            ("dU=", "dU=$", Form),
        ] {
            let text = PENCIL.replacen(from, to, 1);
            assert_eq!(text.parse::<Credentials>().unwrap_err(), error, "{text}");
        }
    }
}
