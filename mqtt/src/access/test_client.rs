//! The client's side of SCRAM-SHA-256, for tests.

use super::crypto::{from_base64, hash, hmac, stretch, to_base64};

/// A client's last message, after its own `first` and the server's `answer`.
pub fn prove(password: &str, first: &str, answer: &str) -> String {
    let bare = first.splitn(3, ',').nth(2).unwrap();
    let part = |name| answer.split(',').find_map(|part| part.strip_prefix(name)).unwrap();
    let salt = from_base64(part("s=")).unwrap();
    let salted = stretch(password.as_bytes(), &salt, part("i=").parse().unwrap());
    let key = hmac(&salted, &[b"Client Key"]);
    let header = to_base64(&first.as_bytes()[..first.len() - bare.len()]);
    let last = format!("c={header},r={}", part("r="));
    let signed = hmac(&hash(&key), &[format!("{bare},{answer},{last}").as_bytes()]);
    let proof: Vec<u8> = key.iter().zip(signed).map(|(a, b)| a ^ b).collect();
    format!("{last},p={}", to_base64(&proof))
}
