//! User name and password of a CONNECT.

use std::fmt;

use super::users::{Lookup, Users};
use super::{Credentials, prepare};

/// A password to be verified, with all that takes: may be carried to another thread, and run there
/// for the milliseconds that it needs.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordCheck {
    credentials: Credentials,
    known: bool,
    password: Box<[u8]>,
}

impl PasswordCheck {
    /// The check of a user's password, and the user's name prepared. A name that nobody can have is
    /// treated like one that nobody has.
    pub fn new(user: &str, password: &[u8], users: &Users) -> (Self, Box<str>) {
        let user = prepare(user).unwrap_or_default();
        let Lookup { credentials, known } = users.look_up(&user);
        (Self { credentials, known, password: password.into() }, user.into())
    }

    /// Whether it is the user's password. Takes as long for a user that does not exist.
    pub fn run(&self) -> bool {
        self.credentials.verify(&self.password) & self.known
    }
}

/// Without the password.
impl fmt::Debug for PasswordCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PasswordCheck").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_password_of_a_user_that_exists() {
        let pencil = Credentials::derive("pencil", b"salt", 4096).unwrap();
        let users = Users::parse(&format!("IX:{pencil}")).unwrap();
        let check = |user: &str, password: &[u8]| PasswordCheck::new(user, password, &users);
        let (right, name) = check("\u{2168}", b"pencil");
        assert!(right.run());
        assert_eq!(&*name, "IX");
        assert!(!format!("{right:?}").contains("112"), "bytes of the password");
        for (user, password) in [("IX", "Pencil"), ("IY", "pencil"), ("", "pencil"), ("\u{7}", "")]
        {
            assert!(!check(user, password.as_bytes()).0.run(), "{user} {password}");
        }
    }
}
