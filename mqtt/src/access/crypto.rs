//! The three functions that SCRAM-SHA-256 is made of, and their key.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

/// A hash or a key.
pub(super) type Key = [u8; 32];

pub(super) fn hash(data: &[u8]) -> Key {
    Sha256::digest(data).into()
}

/// HMAC over the parts, one after another.
pub(super) fn hmac(key: &[u8], parts: &[&[u8]]) -> Key {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

/// RFC 5802's `Hi`: the costly one.
pub(super) fn stretch(password: &[u8], salt: &[u8], iterations: u32) -> Key {
    let mut key = [0; 32];
    pbkdf2::pbkdf2_hmac::<Sha256>(password, salt, iterations, &mut key);
    key
}

pub(super) fn to_base64(data: &[u8]) -> String {
    STANDARD.encode(data)
}

pub(super) fn from_base64(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}
