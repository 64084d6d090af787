//! Nonces without a generator at hand.

use std::fmt;

use super::crypto::{Key, hmac, to_base64};

/// Makes nonces out of numbers: unpredictable for whoever does not know the key, different for
/// different numbers, and the same again in a test.
#[derive(Clone)]
pub struct NonceKey(Key);

impl NonceKey {
    /// From 32 unpredictable bytes, anew for every run of the program.
    pub fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    /// The nonce of `number`, which must not be used again with this key: 24 printable characters
    /// without a comma, 144 bits.
    pub fn nonce(&self, number: u64) -> String {
        to_base64(&hmac(&self.0, &[&number.to_be_bytes()])[..18])
    }
}

impl fmt::Debug for NonceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NonceKey")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differ_by_number_and_key() {
        let (one, two) = (NonceKey::new([1; 32]), NonceKey::new([2; 32]));
        assert_eq!(one.nonce(1).len(), 24);
        assert_ne!(one.nonce(1), one.nonce(2));
        assert_ne!(one.nonce(1), two.nonce(1));
    }
}
