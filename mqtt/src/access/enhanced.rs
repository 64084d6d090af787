//! Extended authentication of version 5 (4.12): AUTH packets around a SASL mechanism.

use super::scram::{Scram, ScramError};
use super::users::Users;
use crate::protocol::Violation;
use crate::wire::{Disconnect, ReasonCode};

/// The authentication method that is served.
pub const SCRAM_SHA_256: &str = "SCRAM-SHA-256";

/// The authentication of one connection, from its CONNECT to its end: a first exchange, then any
/// number of further ones by the same method [MQTT-4.12.1-1].
#[derive(Clone, Debug)]
pub struct Enhanced {
    /// Whom the exchanges so far have shown the client to be.
    user: Option<Box<str>>,
    state: State,
}

/// What an exchange leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send an AUTH packet with reason 0x18 [MQTT-4.12.0-2], the method, and this data if any.
    Continue(Option<Box<[u8]>>),
    /// The client is who it says. Send the method and this data, in CONNACK the first time, later
    /// in an AUTH packet with reason 0x00.
    Accepted(Box<[u8]>),
}

#[derive(Clone, Debug)]
enum State {
    /// No exchange is under way.
    Idle,
    /// The client's first message is awaited.
    First,
    /// Its last one is.
    Last(Box<Scram>),
}

impl Enhanced {
    /// Whether a method of this name is served.
    pub fn is_method(name: &str) -> bool {
        name == SCRAM_SHA_256
    }

    /// Begins with what a CONNECT brings whose method is served. A client that leaves the data out
    /// is asked for it. `nonce` makes one that was never used before.
    ///
    /// # Errors
    /// What to refuse the CONNECT with.
    pub fn begin(
        data: Option<&[u8]>,
        users: &Users,
        nonce: impl FnOnce() -> String,
    ) -> Result<(Self, Step), Violation> {
        let mut this = Self { user: None, state: State::First };
        let step = this.first(data, users, nonce)?;
        Ok((this, step))
    }

    /// An AUTH packet came.
    ///
    /// # Errors
    /// What to end the connection with: in CONNACK [MQTT-4.12.0-4] while
    /// [`user`](Self::user) is `None`, in DISCONNECT [MQTT-4.12.1-2] later.
    pub fn on_auth(
        &mut self,
        auth: &Disconnect<'_>,
        users: &Users,
        nonce: impl FnOnce() -> String,
    ) -> Result<Step, Violation> {
        // [MQTT-4.12.0-5]
        if auth.properties.auth_method() != Some(SCRAM_SHA_256) {
            return protocol_error("AUTH with another method than CONNECT");
        }
        let data = auth.properties.auth_data();
        match (auth.reason, std::mem::replace(&mut self.state, State::Idle)) {
            (ReasonCode::ReAuthenticate, State::Idle) if self.user.is_some() => {
                self.state = State::First;
                self.first(data, users, nonce)
            }
            (ReasonCode::ReAuthenticate, _) => protocol_error("AUTH begins anew too early"),
            // [MQTT-4.12.0-3]
            (ReasonCode::ContinueAuthentication, State::First) => {
                // Asked for it once: it has to come now.
                self.first(Some(data.unwrap_or_default()), users, nonce)
            }
            (ReasonCode::ContinueAuthentication, State::Last(scram)) => {
                let (user, data) =
                    scram.finish(data.unwrap_or_default()).map_err(|error| self.failed(error))?;
                // Another user would have other rights, and a session that is not its own.
                if self.user.as_ref().is_some_and(|before| *before != user) {
                    return Err(Violation::new(ReasonCode::NotAuthorized, "another user"));
                }
                self.user = Some(user);
                Ok(Step::Accepted(data.into_bytes().into()))
            }
            _ => protocol_error("AUTH without an exchange"),
        }
    }

    /// The user's name, once it was shown.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    fn first(
        &mut self,
        data: Option<&[u8]>,
        users: &Users,
        nonce: impl FnOnce() -> String,
    ) -> Result<Step, Violation> {
        let Some(data) = data else { return Ok(Step::Continue(None)) };
        let (scram, answer) =
            Scram::begin(data, users, &nonce()).map_err(|error| self.failed(error))?;
        self.state = State::Last(Box::new(scram));
        Ok(Step::Continue(Some(answer.into_bytes().into())))
    }

    fn failed(&self, error: ScramError) -> Violation {
        let (reason, text) = match (error, &self.user) {
            // DISCONNECT has no 0x86.
            (ScramError::Proof, None) => {
                (ReasonCode::BadUserNameOrPassword, "user or proof is wrong")
            }
            (ScramError::Proof, Some(_)) => (ReasonCode::NotAuthorized, "user or proof is wrong"),
            _ => (ReasonCode::NotAuthorized, "SCRAM message cannot be taken"),
        };
        Violation::new(reason, text)
    }
}

fn protocol_error<T>(text: &'static str) -> Result<T, Violation> {
    Err(Violation::new(ReasonCode::ProtocolError, text))
}

#[cfg(test)]
mod tests {
    use super::super::Credentials;
    use super::super::test_client::prove;
    use super::*;
    use crate::wire::PropertyBuf;

    const FIRST: &str = "n,,n=ann,r=abc";

    fn users() -> Users {
        let record = |word| Credentials::derive(word, b"0123456789abcdef", 4096).unwrap();
        Users::parse(&format!("ann:{}\nbob:{}", record("a"), record("b"))).unwrap()
    }

    fn auth(
        it: &mut Enhanced,
        reason: ReasonCode,
        method: &str,
        data: Option<&str>,
    ) -> Result<Step, Violation> {
        let mut properties = PropertyBuf::new();
        properties.auth_method(method);
        if let Some(data) = data {
            properties.auth_data(data.as_bytes());
        }
        let packet = Disconnect { reason, properties: properties.as_properties() };
        it.on_auth(&packet, &users(), || "srv".into())
    }

    fn next(it: &mut Enhanced, data: &str) -> Result<Step, Violation> {
        auth(it, ReasonCode::ContinueAuthentication, SCRAM_SHA_256, Some(data))
    }

    fn again(it: &mut Enhanced, data: Option<&str>) -> Result<Step, Violation> {
        auth(it, ReasonCode::ReAuthenticate, SCRAM_SHA_256, data)
    }

    fn begin(data: Option<&str>) -> Result<(Enhanced, Step), Violation> {
        Enhanced::begin(data.map(str::as_bytes), &users(), || "srv".into())
    }

    fn proof(password: &str, first: &str, step: &Step) -> String {
        let Step::Continue(Some(answer)) = step else { panic!("{step:?}") };
        prove(password, first, str::from_utf8(answer).unwrap())
    }

    fn accepted() -> Enhanced {
        let (mut it, step) = begin(Some(FIRST)).unwrap();
        let step = next(&mut it, &proof("a", FIRST, &step)).unwrap();
        assert!(matches!(&step, Step::Accepted(data) if data.starts_with(b"v=")));
        assert_eq!(it.user(), Some("ann"));
        it
    }

    fn reason(result: Result<Step, Violation>) -> ReasonCode {
        result.unwrap_err().reason
    }

    #[test]
    fn the_first_message_may_come_with_connect_or_when_asked_for() {
        accepted();
        let (mut it, step) = begin(None).unwrap();
        assert_eq!(step, Step::Continue(None));
        let step = next(&mut it, FIRST).unwrap();
        assert_eq!(it.user(), None);
        assert!(next(&mut it, &proof("a", FIRST, &step)).is_ok());
        let (mut it, _) = begin(None).unwrap();
        let nothing = auth(&mut it, ReasonCode::ContinueAuthentication, SCRAM_SHA_256, None);
        assert_eq!(reason(nothing), ReasonCode::NotAuthorized);
    }

    #[test]
    fn failures_of_the_first_exchange() {
        let refused = begin(Some("x")).unwrap_err();
        assert_eq!(refused.reason, ReasonCode::NotAuthorized);
        let (it, step) = begin(Some(FIRST)).unwrap();
        let last = proof("wrong", FIRST, &step);
        assert_eq!(reason(next(&mut it.clone(), &last)), ReasonCode::BadUserNameOrPassword);
        assert_eq!(reason(next(&mut it.clone(), "x")), ReasonCode::NotAuthorized);
        let last = proof("a", FIRST, &step);
        let other =
            auth(&mut it.clone(), ReasonCode::ContinueAuthentication, "SCRAM-SHA-1", Some(&last));
        assert_eq!(reason(other), ReasonCode::ProtocolError);
        assert_eq!(reason(again(&mut it.clone(), Some(FIRST))), ReasonCode::ProtocolError);
        let mut over = it;
        let _ = next(&mut over, "x");
        assert_eq!(reason(next(&mut over, &last)), ReasonCode::ProtocolError, "no second try");
    }

    #[test]
    fn once_more() {
        let mut it = accepted();
        for first in [Some(FIRST), None] {
            let step = again(&mut it, first).unwrap();
            let step = if first.is_none() { next(&mut it, FIRST).unwrap() } else { step };
            assert_eq!(it.user(), Some("ann"), "meanwhile it is who it was");
            assert!(next(&mut it, &proof("a", FIRST, &step)).is_ok());
        }
        assert_eq!(reason(next(&mut it.clone(), FIRST)), ReasonCode::ProtocolError);

        let step = again(&mut it, Some(FIRST)).unwrap();
        let wrong = proof("wrong", FIRST, &step);
        assert_eq!(reason(next(&mut it.clone(), &wrong)), ReasonCode::NotAuthorized);
        assert_eq!(reason(again(&mut it.clone(), Some(FIRST))), ReasonCode::ProtocolError);

        let mut it = accepted();
        let step = again(&mut it, Some("n,,n=bob,r=abc")).unwrap();
        let last = proof("b", "n,,n=bob,r=abc", &step);
        assert_eq!(reason(next(&mut it, &last)), ReasonCode::NotAuthorized);
    }
}
