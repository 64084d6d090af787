//! The users file, and looking a user up without telling whether it exists.

use std::collections::BTreeMap;
use std::fmt;

use super::crypto::{Key, hash, hmac};
use super::{Credentials, CredentialsError, DEFAULT_ITERATIONS, SALT_BYTES, prepare};

/// Users by name, as read from a users file: an immutable snapshot.
///
/// The file has one user per line, `name:` followed by [`Credentials`] in their text form. Empty
/// lines and lines that begin with `#` are skipped. A name may contain colons; it is prepared by
/// SASLprep.
#[derive(Clone)]
pub struct Users {
    by_name: BTreeMap<Box<str>, Credentials>,
    /// The kinds of cost and salt length that real users have, for those that do not exist.
    shapes: Vec<(u32, usize)>,
    fake_key: Key,
}

/// What is known about a name: real credentials, or ones that nothing satisfies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    pub(super) credentials: Credentials,
    pub(super) known: bool,
}

/// What is wrong with a users file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct UsersError {
    /// Counted from 1.
    pub line: usize,
    /// One short sentence.
    pub problem: String,
}

impl Users {
    /// Reads a users file.
    ///
    /// # Errors
    /// The first line that is none, or that names a user again.
    pub fn parse(text: &str) -> Result<Self, UsersError> {
        let mut by_name = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let fault = |problem: String| UsersError { line: index + 1, problem };
            let Some((name, record)) = split(line).map_err(|error| fault(error.to_string()))?
            else {
                continue;
            };
            let name = prepare(name).map_err(|error| fault(format!("the name {error}")))?;
            let credentials = record.parse().map_err(|error: CredentialsError| {
                fault(format!("the credentials of '{name}': {error}"))
            })?;
            if by_name.insert(Box::from(&*name), credentials).is_some() {
                return Err(fault(format!("'{name}' is there already")));
            }
        }
        Ok(Self::new(by_name))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Whether a user of this name, prepared, exists.
    pub fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// The credentials of `name`, which is prepared. A name that does not exist gets, each time,
    /// the same ones that look like everybody's and that nothing satisfies: neither the answer nor
    /// its time tells the difference.
    pub fn look_up(&self, name: &str) -> Lookup {
        // Made for those that exist too, so that both take as long.
        let fake = self.fake(name);
        match self.by_name.get(name) {
            Some(credentials) => Lookup { credentials: credentials.clone(), known: true },
            None => Lookup { credentials: fake, known: false },
        }
    }

    fn new(by_name: BTreeMap<Box<str>, Credentials>) -> Self {
        let mut shapes: Vec<_> =
            by_name.values().map(|known| (known.iterations, known.salt.len())).collect();
        shapes.sort_unstable();
        shapes.dedup();
        if shapes.is_empty() {
            shapes.push((DEFAULT_ITERATIONS, SALT_BYTES));
        }
        // From what only this file's readers know, so that a restart does not change the answers:
        // that would give away which names are real.
        let mut secret = Vec::new();
        for (name, known) in &by_name {
            secret.extend_from_slice(&hmac(&known.server_key, &[name.as_bytes()]));
        }
        Self { by_name, shapes, fake_key: hash(&secret) }
    }

    fn fake(&self, name: &str) -> Credentials {
        let part = |label: &[u8]| hmac(&self.fake_key, &[label, name.as_bytes()]);
        let choice = part(b"shape:")[..8].iter().fold(0, |n, &byte| n << 8 | u64::from(byte));
        let (iterations, salt_bytes) = self.shapes[(choice % self.shapes.len() as u64) as usize];
        let mut salt = Vec::with_capacity(salt_bytes);
        for block in 0_u8..=u8::MAX {
            let left = salt_bytes - salt.len();
            if left == 0 {
                break;
            }
            let more = part(&[b's', block]);
            salt.extend_from_slice(&more[..left.min(more.len())]);
        }
        Credentials {
            iterations,
            salt: salt.into(),
            stored_key: part(b"stored:"),
            server_key: part(b"server:"),
        }
    }
}

impl Default for Users {
    fn default() -> Self {
        Self::new(BTreeMap::new())
    }
}

/// How many, not who.
impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// The text of a users file with one user set (or removed, without credentials), every other line
/// as it was, and whether the user was there before.
///
/// # Errors
/// A file that [`Users::parse`] refuses; as line 0 a name that a file cannot hold: empty, beginning
/// with `#`, or refused by SASLprep.
pub fn edit_users(
    text: &str,
    name: &str,
    credentials: Option<&Credentials>,
) -> Result<(String, bool), UsersError> {
    Users::parse(text)?;
    let refused = |problem: String| UsersError { line: 0, problem };
    let name = prepare(name).map_err(|error| refused(format!("the user's name {error}")))?;
    if name.starts_with('#') {
        return Err(refused("a user's name cannot begin with '#'".into()));
    }
    let mut new = credentials.map(|credentials| format!("{name}:{credentials}\n"));
    let (mut out, mut found) = (String::with_capacity(text.len() + 200), false);
    for line in text.lines() {
        let this = split(line).ok().flatten().and_then(|(other, _)| prepare(other).ok());
        if this.is_some_and(|other| other == name) {
            found = true;
            out.push_str(&new.take().unwrap_or_default());
        } else {
            out.push_str(line);
            out.push('\n');
        }
    }
    out.push_str(&new.unwrap_or_default());
    Ok((out, found))
}

/// Name and record of a line; `None` for one that says nothing.
fn split(line: &str) -> Result<Option<(&str, &str)>, CredentialsError> {
    if line.trim().is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    // A record has no such text behind its beginning: a name may have any.
    let at = line.rfind(":SCRAM-SHA-256$").or_else(|| line.find(':'));
    let at = at.ok_or(CredentialsError::Form)?;
    Ok(Some((&line[..at], line[at + 1..].trim_end())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(password: &str) -> Credentials {
        Credentials::derive(password, b"0123456789abcdef", 4096).unwrap()
    }

    #[test]
    fn a_file_is_edited_and_read() {
        let (text, found) = edit_users("# staff\r\n\n", "ann", Some(&credentials("a"))).unwrap();
        assert!(!found);
        let (text, found) = edit_users(&text, "site:7:bob", Some(&credentials("b"))).unwrap();
        assert!(!found);
        let users = Users::parse(&text).unwrap();
        assert_eq!(users.len(), 2);
        assert!(users.look_up("ann").credentials.verify(b"a"));
        assert!(users.look_up("site:7:bob").credentials.verify(b"b"));
        let (text, found) = edit_users(&text, "ann", Some(&credentials("c"))).unwrap();
        assert!(found);
        assert!(text.starts_with("# staff\n\nann:SCRAM-SHA-256$4096:"), "{text}");
        let (text, found) = edit_users(&text, "ann", None).unwrap();
        assert!(found && !text.contains("ann") && text.starts_with("# staff\n"));
        assert!(!edit_users(&text, "ann", None).unwrap().1);
        assert!(edit_users(&text, "#x", None).is_err());
        assert!(edit_users(&text, "a\nb", None).is_err());
        assert!(edit_users("what", "ann", None).is_err());
    }

    #[test]
    fn errors_name_the_line() {
        let line = format!("ann:{}", credentials("a"));
        for (text, error) in [
            (format!("{line}\n\n{line}"), "line 3: 'ann' is there already"),
            ("#\nann".into(), "line 2: must look like SCRAM-SHA-256$"),
            ("ann:secret".into(), "line 1: the credentials of 'ann': must look like"),
            (format!("\u{7}:{line}"), "line 1: the name has characters"),
            (line[3..].into(), "line 1: the name has characters"),
        ] {
            let message = Users::parse(&text).unwrap_err().to_string();
            assert!(message.starts_with(error), "{message}");
        }
    }

    #[test]
    fn who_does_not_exist_looks_like_everybody() {
        let text = format!("ann:{}\nbob:{}", credentials("a"), credentials("b"));
        let users = Users::parse(&text).unwrap();
        let (real, fake) = (users.look_up("ann"), users.look_up("eve"));
        assert!(real.known && !fake.known);
        assert_eq!(fake.credentials.iterations, 4096);
        assert_eq!(fake.credentials.salt.len(), 16);
        assert_eq!(Users::parse(&text).unwrap().look_up("eve"), fake, "also after a restart");
        assert_ne!(users.look_up("eva").credentials.salt, fake.credentials.salt);
        assert_eq!(Users::default().look_up("x").credentials.iterations, DEFAULT_ITERATIONS);
    }
}
