//! The first bytes of a connection, in both directions: who speaks, to whom, and in which version.
//!
//! `[8 bytes magic][u16 version][u16 length]`, then as many bytes of postcard; numbers are
//! little-endian. The first twelve bytes stay as they are in all versions, so that nodes of
//! different versions can tell each other.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::record::NodeId;

/// The first bytes of a link.
pub const MAGIC: [u8; 8] = *b"GBXLINK\n";
/// The version that this build speaks. Grows when frames, messages, openraft's types or the encoding
/// of commands change: all of them are only read by the version that wrote them.
pub const VERSION: u16 = 1;
/// Bytes before the body.
pub const HEAD_BYTES: usize = 12;
/// A longer body is not read.
pub const MAX_BODY_BYTES: usize = 1024;

/// As whom a node means to speak to that knows an address and no more: whoever is there.
pub const ANY_NODE: NodeId = 0;

/// What the connecting node says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The name of its cluster.
    pub cluster: String,
    /// Itself.
    pub from: NodeId,
    /// Whom it means to speak to, or [`ANY_NODE`].
    pub to: NodeId,
    /// What the connection is for.
    pub purpose: Purpose,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// Requests and their answers.
    Requests,
    /// One snapshot, from the connecting node.
    Snapshot,
}

/// What the accepting node says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Go ahead.
    Welcome {
        /// Itself.
        node: NodeId,
    },
    /// Go away; for the reader of a log.
    Refused {
        /// Why.
        reason: String,
    },
}

/// Why the other side is not spoken to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// It is no node of Gearbox.
    #[error("the peer is no Gearbox node")]
    Foreign,
    /// It speaks another version.
    #[error("the peer speaks version {theirs} of the link, this node version {VERSION}")]
    Version {
        /// Its version.
        theirs: u16,
    },
    /// What it said makes no sense.
    #[error("a damaged hello")]
    Damaged,
    /// It is another one than was meant.
    #[error("{0}")]
    Mismatch(String),
    /// It said no.
    #[error("the peer refused: {0}")]
    Refused(String),
}

/// The bytes of a hello or of its answer.
///
/// # Errors
/// [`HelloError::Damaged`] when it is too long: a cluster's name of a kilobyte, say.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, HelloError> {
    let body = postcard::to_allocvec(message).map_err(|_| HelloError::Damaged)?;
    let length = u16::try_from(body.len()).map_err(|_| HelloError::Damaged)?;
    if body.len() > MAX_BODY_BYTES {
        return Err(HelloError::Damaged);
    }
    let mut bytes = Vec::with_capacity(HEAD_BYTES + body.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// How many bytes follow a head.
///
/// # Errors
/// [`HelloError::Foreign`], [`HelloError::Version`], [`HelloError::Damaged`].
pub fn body_bytes(head: &[u8; HEAD_BYTES]) -> Result<usize, HelloError> {
    let [magic @ .., v0, v1, l0, l1] = head;
    if *magic != MAGIC {
        return Err(HelloError::Foreign);
    }
    let theirs = u16::from_le_bytes([*v0, *v1]);
    if theirs != VERSION {
        return Err(HelloError::Version { theirs });
    }
    match usize::from(u16::from_le_bytes([*l0, *l1])) {
        length if length > MAX_BODY_BYTES => Err(HelloError::Damaged),
        length => Ok(length),
    }
}

/// What a body says.
///
/// # Errors
/// [`HelloError::Damaged`].
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, HelloError> {
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        _ => Err(HelloError::Damaged),
    }
}

impl Hello {
    /// Checks a hello that came to `node` of `cluster`.
    ///
    /// # Errors
    /// [`HelloError::Mismatch`].
    pub fn check(&self, cluster: &str, node: NodeId) -> Result<(), HelloError> {
        let mismatch = |text| Err(HelloError::Mismatch(text));
        if self.cluster != cluster {
            return mismatch(format!(
                "node {} belongs to the cluster '{}', this node to '{cluster}'",
                self.from, self.cluster
            ));
        }
        if self.to != node && self.to != ANY_NODE {
            return mismatch(format!(
                "node {} looks for node {}, but this is node {node}: an address is wrong",
                self.from, self.to
            ));
        }
        if self.from == node {
            return mismatch(format!("two nodes have the number {node}"));
        }
        Ok(())
    }
}

impl Answer {
    /// Checks an answer that was to come from `node`.
    ///
    /// # Errors
    /// [`HelloError::Mismatch`], [`HelloError::Refused`].
    pub fn check(self, node: NodeId) -> Result<(), HelloError> {
        match self {
            Self::Welcome { node: found } if found == node || node == ANY_NODE => Ok(()),
            Self::Welcome { node: found } => Err(HelloError::Mismatch(format!(
                "node {found} answers where node {node} is expected"
            ))),
            Self::Refused { reason } => Err(HelloError::Refused(reason)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello { cluster: "c".into(), from: 1, to: 2, purpose: Purpose::Requests }
    }

    #[test]
    fn what_is_said_is_understood() {
        let bytes = encode(&hello()).expect("short");
        let (head, body) = bytes.split_first_chunk().expect("a head");
        assert_eq!(body_bytes(head), Ok(body.len()));
        assert_eq!(decode::<Hello>(body), Ok(hello()));
        assert_eq!(decode::<Hello>(&body[1..]), Err(HelloError::Damaged));
        assert_eq!(hello().check("c", 2), Ok(()));
    }

    #[test]
    fn heads_are_checked() {
        let bytes = encode(&hello()).expect("short");
        let head: [u8; HEAD_BYTES] = bytes[..HEAD_BYTES].try_into().expect("a head");
        let with = |at: usize, byte| {
            let mut head = head;
            head[at] = byte;
            body_bytes(&head)
        };
        assert_eq!(with(0, 0x10), Err(HelloError::Foreign));
        assert_eq!(with(9, 1), Err(HelloError::Version { theirs: 257 }));
        assert_eq!(with(11, 5), Err(HelloError::Damaged));
        let long = Hello { cluster: "c".repeat(MAX_BODY_BYTES), ..hello() };
        assert_eq!(encode(&long), Err(HelloError::Damaged));
    }

    #[test]
    fn the_wrong_ones_are_told_why() {
        let said = |hello: &Hello| hello.check("c", 2).expect_err("refused").to_string();
        assert!(said(&Hello { cluster: "d".into(), ..hello() }).contains("cluster 'd'"));
        assert!(said(&Hello { to: 3, ..hello() }).contains("looks for node 3"));
        assert!(said(&Hello { from: 2, ..hello() }).contains("two nodes have the number 2"));
        assert!(Answer::Welcome { node: 2 }.check(2).is_ok());
        let error = Answer::Welcome { node: 4 }.check(2).expect_err("another");
        assert!(error.to_string().contains("node 4 answers"));
        let error = Answer::Refused { reason: "no".into() }.check(2).expect_err("refused");
        assert_eq!(error.to_string(), "the peer refused: no");
    }
}
