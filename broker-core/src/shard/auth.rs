//! Authentication: passwords that are verified on another thread, and exchanges of AUTH packets.
//!
//! Between CONNECT and CONNACK the connection is in [`Phase::Authenticating`]; its CONNECT is kept
//! and walks on, through the same code as an anonymous one, when the client has proved itself.

use bytes::Bytes;
use mqtt::access::{Demand, Enhanced, PasswordCheck, SCRAM_SHA_256, Step, demand};
use mqtt::protocol::{Violation, accept};
use mqtt::wire::{
    Connect, Disconnect, Packet, PropertyBuf, ReasonCode, Version, decode_from_client, encode,
};

use super::conn::Phase;
use super::packets::{self, Then};
use super::{ConnKey, ConnectStep, Received, Shard, connect};

/// What a connection has proved, or is about to. Anonymous connections have none.
#[derive(Debug)]
pub struct ConnAccess {
    /// The whole CONNECT, until the client is let in.
    connect: Bytes,
    proof: Proof,
    /// When a further exchange must have ended, while one is under way.
    further_by_ms: Option<u64>,
}

#[derive(Debug)]
enum Proof {
    Password {
        user: Box<str>,
        /// It is being verified, and counted in `Shard::verifying`.
        pending: bool,
    },
    Exchange(Box<Enhanced>),
}

/// What became of a [`PasswordCheck`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verified {
    /// It is the user's password.
    Right,
    /// It is not, or there is no such user.
    Wrong,
    /// It could not be found out.
    Failed,
}

/// Judges by whom a CONNECT comes: `None` when it may go on at once. Otherwise it is kept, and
/// `raw` is all of it.
pub(super) fn judge(
    shard: &mut Shard,
    key: ConnKey,
    request: &Connect<'_>,
    raw: &[u8],
    now_ms: u64,
) -> Result<Option<Then>, Violation> {
    let access = shard.access.clone();
    let demand = demand(request, access.policy())?;
    if !matches!(demand, Demand::Nothing) && !may_try(shard, key, now_ms) {
        shard.stats.logins_rate_limited.add(1);
        let reason = ReasonCode::ConnectionRateExceeded;
        return Err(Violation::new(reason, "too many failed logins from this address"));
    }
    let (proof, then, step) = match demand {
        Demand::Nothing => return Ok(None),
        Demand::Password { user, password } => {
            if shard.verifying >= access.max_pending_verifications() {
                return Err(Violation::new(ReasonCode::ServerBusy, "too many logins at once"));
            }
            shard.verifying += 1;
            let (check, user) = PasswordCheck::new(user, password, &access.users());
            (Proof::Password { user, pending: true }, Then::Verify(Box::new(check)), None)
        }
        Demand::Exchange(_) => {
            let number = shard.number();
            let data = request.properties.auth_data();
            let (exchange, step) = Enhanced::begin(data, &access.users(), || access.nonce(number))?;
            (Proof::Exchange(Box::new(exchange)), Then::Continue, Some(step))
        }
    };
    let Some(conn) = shard.conn(key) else { return Ok(Some(Then::Continue)) };
    conn.phase = Phase::Authenticating;
    conn.access = Some(Box::new(ConnAccess {
        connect: Bytes::copy_from_slice(raw),
        proof,
        further_by_ms: None,
    }));
    if let Some(Step::Continue(data)) = step {
        // Holds already for what is sent now [MQTT-3.1.2-24].
        conn.max_packet_size_bytes =
            request.properties.maximum_packet_size_bytes().unwrap_or(u32::MAX);
        say_auth(shard, key, ReasonCode::ContinueAuthentication, data.as_deref())?;
    }
    match then {
        Then::Verify(_) => shard.step_waits(key),
        _ => shard.step_rests(key), // the client's turn
    }
    Ok(Some(then))
}

/// AUTH: a step of the first exchange, or of a further one while the connection is open, which
/// goes on meanwhile.
pub(super) fn on_auth(
    shard: &mut Shard,
    key: ConnKey,
    auth: &Disconnect<'_>,
    now_ms: u64,
) -> Result<(), Violation> {
    shard.step(key, ConnectStep::LoginCheck);
    let access = shard.access.clone();
    let number = shard.number();
    let Some(conn) = shard.conn(key) else { return Ok(()) };
    let phase = conn.phase;
    let Some(Proof::Exchange(exchange)) = conn.access.as_mut().map(|access| &mut access.proof)
    else {
        // [MQTT-4.12.0-7]
        return Err(Violation::new(ReasonCode::ProtocolError, "AUTH without a method"));
    };
    let step = exchange.on_auth(auth, &access.users(), || access.nonce(number));
    if let Err(violation) = &step
        && matches!(violation.reason, ReasonCode::BadUserNameOrPassword | ReasonCode::NotAuthorized)
    {
        count_failure(shard, key, now_ms);
    }
    let step = step?;
    if phase == Phase::Open {
        let by_ms = now_ms + u64::from(shard.limits.connect_timeout_ms);
        limit_further(shard, key, matches!(step, Step::Continue(_)).then_some(by_ms));
    }
    match step {
        Step::Continue(data) => {
            shard.step_rests(key);
            say_auth(shard, key, ReasonCode::ContinueAuthentication, data.as_deref())
        }
        Step::Accepted(data) if phase == Phase::Open => {
            say_auth(shard, key, ReasonCode::Success, Some(&data))
        }
        Step::Accepted(data) => {
            let_in(shard, key, Some(&data), now_ms);
            Ok(())
        }
    }
}

impl Shard {
    /// A password was verified: the connection goes on, with CONNACK and with the bytes that
    /// waited behind its CONNECT.
    pub fn on_verified(&mut self, key: ConnKey, verified: Verified, now_ms: u64) -> Received {
        self.step(key, ConnectStep::LoginCheck);
        if self.verification_over(key) {
            match verified {
                Verified::Right => let_in(self, key, None, now_ms),
                Verified::Wrong => {
                    count_failure(self, key, now_ms);
                    let reason = ReasonCode::BadUserNameOrPassword;
                    let violation = Violation::new(reason, "user name or password is wrong");
                    connect::deny(self, key, &violation, now_ms);
                }
                Verified::Failed => {
                    let reason = ReasonCode::ServerUnavailable;
                    connect::deny(self, key, &Violation::new(reason, "not verified"), now_ms);
                }
            }
        }
        let waiting = self.conn(key).and_then(|conn| conn.partial.take()).unwrap_or_default();
        packets::on_bytes(self, key, 0, waiting, now_ms)
    }

    /// Counts a verification out; whether its connection still waits for it.
    pub(super) fn verification_over(&mut self, key: ConnKey) -> bool {
        let Some(conn) = self.conns.get_mut(key.0 as usize) else { return false };
        let Some(Proof::Password { pending, .. }) =
            conn.access.as_mut().map(|access| &mut access.proof)
        else {
            return false;
        };
        if !std::mem::take(pending) {
            return false;
        }
        self.verifying -= 1;
        conn.phase == Phase::Authenticating
    }
}

impl ConnAccess {
    /// When an exchange on an open connection must have ended, if one is under way.
    pub fn further_by_ms(&self) -> Option<u64> {
        self.further_by_ms
    }
}

/// A further exchange is under way, and must end by then, or is not. Its steps do not move its
/// deadline.
fn limit_further(shard: &mut Shard, key: ConnKey, by_ms: Option<u64>) {
    let Some(access) = shard.conn(key).and_then(|conn| conn.access.as_mut()) else { return };
    access.further_by_ms = by_ms.map(|by_ms| access.further_by_ms.unwrap_or(by_ms));
    if let Some(by_ms) = access.further_by_ms {
        shard.arm_conn(key, by_ms);
    }
}

fn may_try(shard: &Shard, key: ConnKey, now_ms: u64) -> bool {
    let Some(conn) = shard.conns.get(key.0 as usize) else { return true };
    let per_min = shard.limits.max_failed_logins_per_min;
    shard.fabric.guesses.may_try(conn.origin, per_min, now_ms)
}

fn count_failure(shard: &Shard, key: ConnKey, now_ms: u64) {
    let Some(conn) = shard.conns.get(key.0 as usize) else { return };
    shard.fabric.guesses.failed(conn.origin, shard.limits.max_failed_logins_per_min, now_ms);
}

/// The client has proved itself: its CONNECT goes on. `data` ends the exchange.
fn let_in(shard: &mut Shard, key: ConnKey, data: Option<&[u8]>, now_ms: u64) {
    let Some(access) = shard.conn(key).and_then(|conn| conn.access.as_mut()) else { return };
    let raw = std::mem::take(&mut access.connect);
    let user = match &access.proof {
        Proof::Password { user, .. } => user,
        Proof::Exchange(exchange) => exchange.user().unwrap_or_default(),
    };
    tracing::debug!(user, "authenticated");
    // Both succeeded before, on the same bytes.
    if let Ok(Packet::Connect(request)) = decode_from_client(&raw, Version::V5)
        && let Ok((identity, accepted)) = accept(&request, &shard.rules)
    {
        connect::admit(shard, key, &request, &raw, identity, &accepted, data, now_ms);
    }
}

fn say_auth(
    shard: &mut Shard,
    key: ConnKey,
    reason: ReasonCode,
    data: Option<&[u8]>,
) -> Result<(), Violation> {
    let mut properties = PropertyBuf::new();
    properties.auth_method(SCRAM_SHA_256); // [MQTT-4.12.0-5]
    if let Some(data) = data {
        properties.auth_data(data);
    }
    let mut bytes = Vec::new();
    let auth = Disconnect { reason, properties: properties.as_properties() };
    encode(&Packet::Auth(auth), Version::V5, &mut bytes);
    if shard.conn(key).is_some_and(|conn| bytes.len() > conn.max_packet_size_bytes as usize) {
        return Err(Violation::new(ReasonCode::PacketTooLarge, "AUTH is too large for the client"));
    }
    if let Some(block) = shard.reply(key) {
        block.extend_from_slice(&bytes);
    }
    Ok(())
}
