//! What a CONNECT has to prove before it is served.

use super::Enhanced;
use crate::protocol::Violation;
use crate::wire::{Connect, ReasonCode};

/// What the operator wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Clients that give no credentials are served.
    pub allow_anonymous: bool,
    /// There are users to verify against. Without them user names and passwords mean nothing.
    pub has_users: bool,
}

/// What has to be proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand<'a> {
    /// Nothing: served without a name.
    Nothing,
    /// A password.
    Password {
        /// User name, not prepared.
        user: &'a str,
        /// Password.
        password: &'a [u8],
    },
    /// An exchange by this method, which is known. A user name and a password beside it mean
    /// nothing (4.12).
    Exchange(&'a str),
}

/// Judges what a CONNECT brings.
///
/// # Errors
/// 0x8C for a method that is not served [MQTT-4.12.0-1]; 0x87 when something is needed and nothing
/// was brought; 0x86 for a name without a password or a password without a name.
pub fn demand<'a>(connect: &Connect<'a>, policy: Policy) -> Result<Demand<'a>, Violation> {
    if let Some(method) = connect.properties.auth_method() {
        return match policy.has_users && Enhanced::is_method(method) {
            true => Ok(Demand::Exchange(method)),
            false => Err(Violation::new(
                ReasonCode::BadAuthenticationMethod,
                "authentication method is not served",
            )),
        };
    }
    match (connect.username, connect.password) {
        (None, None) if !policy.allow_anonymous => {
            Err(Violation::new(ReasonCode::NotAuthorized, "credentials are needed"))
        }
        (None, None) => Ok(Demand::Nothing),
        (Some(user), Some(password)) if policy.has_users => Ok(Demand::Password { user, password }),
        _ if policy.has_users => {
            Err(Violation::new(ReasonCode::BadUserNameOrPassword, "half of the credentials"))
        }
        _ if policy.allow_anonymous => Ok(Demand::Nothing),
        _ => Err(Violation::new(ReasonCode::NotAuthorized, "there are no users")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Properties, PropertyBuf, Version};

    #[test]
    fn every_pair_of_policy_and_credentials() {
        let bare = Connect {
            version: Version::V5,
            clean_start: true,
            keep_alive_s: 0,
            client_id: "c",
            will: None,
            username: None,
            password: None,
            properties: Properties::EMPTY,
        };
        let both = Connect { username: Some("u"), password: Some(b"p"), ..bare };
        let name = Connect { password: None, ..both };
        let word = Connect { username: None, ..both };
        let (mut scram, mut other) = (PropertyBuf::new(), PropertyBuf::new());
        scram.auth_method("SCRAM-SHA-256");
        other.auth_method("SCRAM-SHA-1");
        let scram = Connect { properties: scram.as_properties(), ..both };
        let other = Connect { properties: other.as_properties(), ..bare };
        let requests = [bare, both, name, word, scram, other];

        let password = Ok(Demand::Password { user: "u", password: b"p" });
        let exchange = Ok(Demand::Exchange("SCRAM-SHA-256"));
        let nothing = Ok(Demand::Nothing);
        let bad = Err(ReasonCode::BadUserNameOrPassword);
        let missing = Err(ReasonCode::NotAuthorized);
        let method = Err(ReasonCode::BadAuthenticationMethod);
        for (allow_anonymous, has_users, wanted) in [
            (true, false, [nothing, nothing, nothing, nothing, method, method]),
            (true, true, [nothing, password, bad, bad, exchange, method]),
            (false, true, [missing, password, bad, bad, exchange, method]),
            (false, false, [missing, missing, missing, missing, method, method]),
        ] {
            let policy = Policy { allow_anonymous, has_users };
            let got = requests.map(|it| demand(&it, policy).map_err(|violation| violation.reason));
            assert_eq!(got, wanted, "{policy:?}");
        }
    }
}
