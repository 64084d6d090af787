//! SCRAM-SHA-256 (RFC 5802, RFC 7677), the server's side, as a state machine of two messages.
//!
//! The client proves that it knows the password without sending it, and the server that it knows
//! the credentials. No channel binding.

use super::crypto::{from_base64, hmac, to_base64};
use super::users::{Lookup, Users};
use super::{Credentials, prepare};

/// Longest message taken, in bytes: an exchange keeps its messages until it ends.
pub const MAX_MESSAGE_BYTES: usize = 2048;

/// An exchange after the client's first message: waits for its last one.
#[derive(Clone, Debug)]
pub struct Scram {
    user: Box<str>,
    credentials: Credentials,
    known: bool,
    /// Client's and server's.
    nonce: Box<str>,
    gs2_header: Box<str>,
    /// RFC 5802's AuthMessage up to and with the comma before the client's last message.
    auth_message: String,
}

/// Why an exchange failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScramError {
    /// Not what the grammar says, or longer than [`MAX_MESSAGE_BYTES`].
    #[error("SCRAM message is malformed")]
    Malformed,
    /// The client insists on channel binding.
    #[error("SCRAM channel binding is not supported")]
    ChannelBinding,
    /// The client insists on an extension.
    #[error("SCRAM extension is not supported")]
    Extension,
    /// The client wants to act for another user.
    #[error("SCRAM authorization identity is not the user")]
    AuthorizationIdentity,
    /// The last message belongs to another exchange.
    #[error("SCRAM nonce is of another exchange")]
    Nonce,
    /// The user does not exist, or this is not its password.
    #[error("SCRAM proof is wrong")]
    Proof,
}

impl Scram {
    /// Takes the client's first message and gives the server's. `nonce` is to be printable ASCII
    /// without a comma, unpredictable and new: see [`NonceKey`](super::NonceKey).
    ///
    /// A user that does not exist is not told apart here, and neither are its answers.
    ///
    /// # Errors
    /// A message that cannot be taken: the exchange is over.
    pub fn begin(message: &[u8], users: &Users, nonce: &str) -> Result<(Self, String), ScramError> {
        let message = text(message)?;
        let mut parts = message.splitn(3, ',');
        let (binding, identity) = (parts.next(), parts.next());
        match binding {
            // "y": the client could, and believes that the server cannot. It is right.
            Some("n" | "y") => {}
            Some(other) if other.starts_with("p=") => return Err(ScramError::ChannelBinding),
            _ => return Err(ScramError::Malformed),
        }
        let bare = parts.next().ok_or(ScramError::Malformed)?;
        let gs2_header = &message[..message.len() - bare.len()];
        let mut attributes = bare.split(',');
        let name = match attributes.next() {
            Some(first) if first.starts_with("m=") => return Err(ScramError::Extension),
            first => attribute(first, "n=")?,
        };
        let user = prepare(&unescape(name)?).map_err(|_| ScramError::Malformed)?.into_owned();
        let client_nonce = attribute(attributes.next(), "r=")?;
        if client_nonce.is_empty() || !client_nonce.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ScramError::Malformed);
        }
        match identity {
            Some("") => {}
            other => {
                let identity = unescape(attribute(other, "a=")?)?;
                if !prepare(&identity).is_ok_and(|identity| identity == user) {
                    return Err(ScramError::AuthorizationIdentity);
                }
            }
        }
        let Lookup { credentials, known } = users.look_up(&user);
        let nonce = format!("{client_nonce}{nonce}");
        let salt = to_base64(&credentials.salt);
        let answer = format!("r={nonce},s={salt},i={}", credentials.iterations);
        let scram = Self {
            user: user.into(),
            credentials,
            known,
            nonce: nonce.into(),
            gs2_header: gs2_header.into(),
            auth_message: format!("{bare},{answer},"),
        };
        Ok((scram, answer))
    }

    /// Takes the client's last message. Gives the user's name, prepared, and the server's last
    /// message, which proves the server to the client.
    ///
    /// # Errors
    /// The proof is wrong, or the message cannot be taken.
    pub fn finish(self, message: &[u8]) -> Result<(Box<str>, String), ScramError> {
        let message = text(message)?;
        let (without_proof, proof) = message.rsplit_once(",p=").ok_or(ScramError::Malformed)?;
        let mut attributes = without_proof.split(',');
        let binding = attribute(attributes.next(), "c=")?;
        let nonce = attribute(attributes.next(), "r=")?;
        if attributes.next().is_some_and(|extension| extension.starts_with("m=")) {
            return Err(ScramError::Extension);
        }
        let header = from_base64(binding).ok_or(ScramError::Malformed)?;
        if header != self.gs2_header.as_bytes() {
            return Err(ScramError::ChannelBinding);
        }
        if nonce != &*self.nonce {
            return Err(ScramError::Nonce);
        }
        let mut key = from_base64(proof)
            .and_then(|proof| <[u8; 32]>::try_from(proof).ok())
            .ok_or(ScramError::Malformed)?;
        let message = [self.auth_message.as_bytes(), without_proof.as_bytes()];
        let signature = hmac(&self.credentials.stored_key, &message);
        key.iter_mut().zip(signature).for_each(|(byte, with)| *byte ^= with);
        if !(self.credentials.is_client_key(&key) & self.known) {
            return Err(ScramError::Proof);
        }
        let signature = hmac(&self.credentials.server_key, &message);
        Ok((self.user, format!("v={}", to_base64(&signature))))
    }
}

fn text(message: &[u8]) -> Result<&str, ScramError> {
    match str::from_utf8(message) {
        Ok(text) if text.len() <= MAX_MESSAGE_BYTES && !text.contains('\0') => Ok(text),
        _ => Err(ScramError::Malformed),
    }
}

fn attribute<'a>(text: Option<&'a str>, name: &str) -> Result<&'a str, ScramError> {
    text.and_then(|text| text.strip_prefix(name)).ok_or(ScramError::Malformed)
}

/// `=2C` is a comma and `=3D` an equals sign; nothing else may follow an equals sign.
fn unescape(name: &str) -> Result<String, ScramError> {
    let mut parts = name.split('=');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (sign, rest) = match (part.strip_prefix("2C"), part.strip_prefix("3D")) {
            (Some(rest), _) => (',', rest),
            (_, Some(rest)) => ('=', rest),
            _ => return Err(ScramError::Malformed),
        };
        out.push(sign);
        out.push_str(rest);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::super::test_client::prove;
    use super::*;
    use proptest::prelude::*;

    // The example of RFC 7677, section 3.
    const FIRST: &str = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
    const NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
    const ANSWER: &str = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
        s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
    const LAST: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
        p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
    const VERIFIER: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

    fn users() -> Users {
        let salt = from_base64("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let pencil = Credentials::derive("pencil", &salt, 4096).unwrap();
        Users::parse(&format!("user:{pencil}\na,b=c:{pencil}")).unwrap()
    }

    fn begin(message: &str) -> Result<(Scram, String), ScramError> {
        Scram::begin(message.as_bytes(), &users(), NONCE)
    }

    #[test]
    fn the_example_of_rfc_7677() {
        let (scram, answer) = begin(FIRST).unwrap();
        assert_eq!(answer, ANSWER);
        let (user, verifier) = scram.finish(LAST.as_bytes()).unwrap();
        assert_eq!((&*user, verifier.as_str()), ("user", VERIFIER));
        assert_eq!(prove("pencil", FIRST, ANSWER), LAST, "the test's own client");
    }

    #[test]
    fn a_wrong_password_and_a_user_that_does_not_exist_fail_alike() {
        let (scram, answer) = begin(FIRST).unwrap();
        let last = prove("Pencil", FIRST, &answer);
        assert_eq!(scram.finish(last.as_bytes()).unwrap_err(), ScramError::Proof);

        let first = FIRST.replace("n=user", "n=nobody");
        let (scram, answer) = begin(&first).unwrap();
        assert!(answer.ends_with(",i=4096") && answer.len() == ANSWER.len(), "{answer}");
        assert_eq!(begin(&first).unwrap().1, answer, "the salt stays");
        let last = prove("pencil", &first, &answer);
        assert_eq!(scram.finish(last.as_bytes()).unwrap_err(), ScramError::Proof);
    }

    #[test]
    fn a_replayed_message_is_of_another_exchange() {
        let (scram, _) = Scram::begin(FIRST.as_bytes(), &users(), "another").unwrap();
        assert_eq!(scram.finish(LAST.as_bytes()).unwrap_err(), ScramError::Nonce);
    }

    #[test]
    fn names_flags_and_identities() {
        for first in [
            "y,,n=user,r=x",
            "n,a=user,n=user,r=x",
            "n,,n=user,r=x,ext=1",
            "n,,n=a=2Cb=3Dc,r=x",
            "n,,n=u\u{AD}ser,r=x",
        ] {
            let (scram, answer) = begin(first).unwrap();
            let last = prove("pencil", first, &answer);
            assert!(scram.finish(last.as_bytes()).is_ok(), "{first}");
        }
        use ScramError::*;
        for (first, error) in [
            ("p=tls-unique,,n=user,r=x", ChannelBinding),
            ("n,a=root,n=user,r=x", AuthorizationIdentity),
            ("n,,m=1,n=user,r=x", Extension),
            ("n,,n=us=2Der,r=x", Malformed),
            ("n,,n=user=,r=x", Malformed),
            ("n,,n=,r=x", Malformed),
            ("n,,n=user,r=", Malformed),
            ("n,,n=user,r=a b", Malformed),
            ("n,,n=user", Malformed),
            ("n,,r=x,n=user", Malformed),
            ("n,user,n=user,r=x", Malformed),
            ("n,n=user,r=x", Malformed),
            ("x,,n=user,r=x", Malformed),
            ("n,,n=a\0b,r=x", Malformed),
            ("", Malformed),
        ] {
            assert_eq!(begin(first).unwrap_err(), error, "{first:?}");
        }
        let long = format!("n,,n=user,r={}", "x".repeat(MAX_MESSAGE_BYTES));
        assert_eq!(begin(&long).unwrap_err(), Malformed);
    }

    #[test]
    fn last_messages_that_do_not_fit() {
        let (scram, _) = begin(FIRST).unwrap();
        let finish = |last: &str| scram.clone().finish(last.as_bytes()).unwrap_err();
        use ScramError::*;
        assert_eq!(finish(&LAST.replace("biws", "eSws")), ChannelBinding);
        assert_eq!(finish(&LAST.replace("biws", "*")), Malformed);
        assert_eq!(finish(&LAST.replace(",p=", ",m=1,p=")), Extension);
        assert_eq!(finish(&LAST.replace(",p=", ",x=1,p=")), Proof);
        assert_eq!(finish(&LAST.replace("dHz", "dHy")), Proof);
        assert_eq!(finish(&LAST.replace("p=dHzb", "p=")), Malformed);
        for length in 0..LAST.len() {
            assert!(scram.clone().finish(&LAST.as_bytes()[..length]).is_err(), "{length}");
        }
        for length in 0..FIRST.len() - "OprNGfwEbeRWgbNEkqO".len() {
            assert!(begin(&FIRST[..length]).is_err(), "{length}");
        }
    }

    proptest! {
        #[test]
        fn never_panics_and_never_lets_in(
            first in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..64),
                "[ny],(a=user)?,(m=x,)?n=(us|er|=2C|=3D|=|user){0,3},r=[a-z,]{0,5}".prop_map(String::into_bytes),
            ],
            last in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..64),
                "c=(biws|eSws|x),r=[a-z%]{0,9},p=[A-Za-z=]{0,44}".prop_map(String::into_bytes),
                Just(LAST.as_bytes().to_vec()),
            ],
        ) {
            let users = Users::default();
            if let Ok((scram, _)) = Scram::begin(&first, &users, NONCE) {
                prop_assert!(scram.finish(&last).is_err());
            }
            let (scram, _) = Scram::begin(FIRST.as_bytes(), &users, NONCE).unwrap();
            prop_assert!(scram.finish(&last).is_err());
        }
    }
}
