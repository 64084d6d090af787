//! How often a login may fail from one address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rt_abstract::Peer;

/// Where a connection comes from, as far as guessing passwords is concerned: an IPv4 address, or
/// the network of an IPv6 address, of which one client has 2^64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Origin(u64);

/// Failed logins by address, for all shards of a node. Each address has a bucket of one minute's
/// worth of failures. An address whose bucket is empty may not try; one that failed more often than
/// that at once, on many connections, waits longer.
///
/// Holds [`MAX_ADDRESSES`] that failed within the last minutes; failures of further ones are not
/// counted until there is room.
#[derive(Debug, Default)]
pub struct Guesses {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// When an address's bucket is full again, in milliseconds on the shards' clock.
    full_at_ms: HashMap<Origin, u64>,
    /// When those that are full again were last looked for.
    swept_ms: u64,
}

/// Addresses remembered at once.
const MAX_ADDRESSES: usize = 65_536;
const MINUTE_MS: u64 = 60_000;
/// An address is let in again after this, however often it failed.
const MAX_WAIT_MS: u64 = 10 * MINUTE_MS;
const SWEEP_MS: u64 = 1_000;

impl Origin {
    /// No address: a local client over a Unix-domain socket, which is not limited.
    pub const LOCAL: Self = Self(0);
}

impl From<Peer> for Origin {
    fn from(peer: Peer) -> Self {
        let Peer::Tcp(address) = peer else { return Self::LOCAL };
        match address.ip().to_canonical() {
            IpAddr::V4(ip) => Self(u64::from(ip.to_bits()) | 1 << 32),
            IpAddr::V6(ip) => Self((ip.to_bits() >> 64) as u64),
        }
    }
}

impl Guesses {
    /// Whether `origin` may try to log in, when `per_min` failures a minute are allowed; 0 is no
    /// limit.
    pub fn may_try(&self, origin: Origin, per_min: u32, now_ms: u64) -> bool {
        let Some(token_ms) = MINUTE_MS.checked_div(per_min.into()) else { return true };
        let full_at_ms = self.lock().full_at_ms.get(&origin).copied().unwrap_or(0);
        full_at_ms.saturating_sub(now_ms) + token_ms <= MINUTE_MS
    }

    /// A login from `origin` failed.
    pub fn failed(&self, origin: Origin, per_min: u32, now_ms: u64) {
        let Some(token_ms) = MINUTE_MS.checked_div(per_min.into()) else { return };
        if origin == Origin::LOCAL {
            return;
        }
        let mut inner = self.lock();
        if inner.full_at_ms.len() >= MAX_ADDRESSES && !inner.full_at_ms.contains_key(&origin) {
            if now_ms < inner.swept_ms + SWEEP_MS {
                return;
            }
            inner.swept_ms = now_ms;
            inner.full_at_ms.retain(|_, full_at_ms| *full_at_ms > now_ms);
            if inner.full_at_ms.len() >= MAX_ADDRESSES {
                return;
            }
        }
        let full_at_ms = inner.full_at_ms.entry(origin).or_default();
        *full_at_ms = ((*full_at_ms).max(now_ms) + token_ms).min(now_ms + MAX_WAIT_MS);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(address: &str) -> Origin {
        Peer::Tcp(address.parse().unwrap()).into()
    }

    #[test]
    fn a_minute_of_failures_and_then_as_they_come_back() {
        let guesses = Guesses::default();
        let (one, other) = (origin("192.0.2.1:1"), origin("192.0.2.2:1"));
        for n in 0..6 {
            assert!(guesses.may_try(one, 6, 1_000), "{n}");
            guesses.failed(one, 6, 1_000);
        }
        assert!(!guesses.may_try(one, 6, 1_000));
        assert!(guesses.may_try(other, 6, 1_000));
        assert!(guesses.may_try(one, 0, 1_000), "no limit");
        assert!(!guesses.may_try(one, 6, 10_999));
        assert!(guesses.may_try(one, 6, 11_000));
        guesses.failed(one, 6, 11_000);
        assert!(!guesses.may_try(one, 6, 11_000));
        for _ in 0..10_000 {
            guesses.failed(one, 6, 11_000);
        }
        assert!(!guesses.may_try(one, 6, 11_000 + MAX_WAIT_MS - MINUTE_MS));
        assert!(guesses.may_try(one, 6, 11_000 + MAX_WAIT_MS));
    }

    #[test]
    fn who_counts_as_one() {
        assert_eq!(origin("192.0.2.1:1"), origin("[::ffff:192.0.2.1]:2"));
        assert_eq!(origin("[2001:db8::1]:1"), origin("[2001:db8::2:0:0:9]:1"));
        assert_ne!(origin("[2001:db8::1]:1"), origin("[2001:db8:0:1::1]:1"));
        assert_eq!(Origin::from(Peer::Unix), Origin::LOCAL);
        let guesses = Guesses::default();
        guesses.failed(Origin::LOCAL, 1, 0);
        assert!(guesses.may_try(Origin::LOCAL, 1, 0));
    }

    #[test]
    fn a_flood_of_addresses_takes_no_more_room() {
        let guesses = Guesses::default();
        for n in 0..MAX_ADDRESSES as u64 + 10 {
            guesses.failed(Origin(n + 1), 1, 5_000);
        }
        assert_eq!(guesses.lock().full_at_ms.len(), MAX_ADDRESSES);
        guesses.failed(Origin(u64::MAX), 1, 5_000 + MINUTE_MS);
        assert_eq!(guesses.lock().full_at_ms.len(), 1);
        assert!(!guesses.may_try(Origin(u64::MAX), 1, 5_000 + MINUTE_MS));
    }
}
