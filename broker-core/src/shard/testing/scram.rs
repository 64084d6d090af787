//! Users, and a client's side of SCRAM-SHA-256.

use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use mqtt::access::{Credentials, MIN_ITERATIONS, Users};
use sha2::{Digest as _, Sha256};

/// A client's first message, of the user `ann`.
pub const FIRST: &str = "n,,n=ann,r=abc";
/// The password of `ann`; that of `bob` is "b".
const PASSWORD: &str = "a";
const SALT: &[u8] = b"0123456789abcdef";

/// `ann` and `bob`. Derived once: stretching a password takes longer than many inputs.
pub fn users() -> Users {
    static USERS: OnceLock<Users> = OnceLock::new();
    let make = || {
        let record = |word| Credentials::derive(word, SALT, MIN_ITERATIONS).expect("a password");
        let file = format!("ann:{}\nbob:{}", record(PASSWORD), record("b"));
        Users::parse(&file).expect("two users")
    };
    USERS.get_or_init(make).clone()
}

/// What `ann` answers to the server's first message, if it is one.
pub fn last_message(answer: &str) -> Option<String> {
    static SALTED: OnceLock<[u8; 32]> = OnceLock::new();
    let salted = SALTED.get_or_init(|| stretch(PASSWORD, SALT, MIN_ITERATIONS));
    answer.contains("s=").then(|| prove(salted, FIRST, answer).0)
}

/// RFC 5802's SaltedPassword.
pub fn stretch(password: &str, salt: &[u8], iterations: u32) -> [u8; 32] {
    let mut salted = [0; 32];
    pbkdf2::pbkdf2_hmac::<Sha256>(password.as_bytes(), salt, iterations, &mut salted);
    salted
}

/// The client's last message behind its `first` and the server's `answer`, and what the server must
/// say to it.
pub fn prove(salted: &[u8; 32], first: &str, answer: &str) -> (String, String) {
    let nonce = answer.split(',').find_map(|part| part.strip_prefix("r=")).unwrap_or_default();
    let key = hmac(salted, b"Client Key");
    let last = format!("c=biws,r={nonce}");
    let bare = first.strip_prefix("n,,").unwrap_or(first);
    let message = format!("{bare},{answer},{last}");
    let signed = hmac(&Sha256::digest(key), message.as_bytes());
    let proof: Vec<u8> = key.iter().zip(signed).map(|(a, b)| a ^ b).collect();
    let verifier = hmac(&hmac(salted, b"Server Key"), message.as_bytes());
    let (proof, verifier) = (STANDARD.encode(proof), STANDARD.encode(verifier));
    (format!("{last},p={proof}"), format!("v={verifier}"))
}

fn hmac(key: &[u8], data: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length will do");
    mac.update(data);
    mac.finalize().into_bytes().into()
}
