//! The scenarios, and what they share.

pub mod conn;
pub mod idle;
pub mod pubsub;
pub mod replay;
pub mod stream;
pub mod subs;

use std::time::{SystemTime, UNIX_EPOCH};

use mqtt::wire::QoS;

use crate::client::Target;
use crate::event::{Clock, Poller};
use crate::fleet::{Arrivals, Ask, Fleet};
use crate::plan::Plan;
use crate::process::Watched;
use crate::traffic::{Load, Outcome, Traffic};

/// How subscribers' sessions are.
#[derive(Clone, Copy, Debug)]
pub enum Sessions {
    /// They end with the connection.
    Transient,
    /// They outlive it, in version 5 by so many seconds.
    Durable(u32),
}

/// A number that no other run has, as far as chance goes.
pub fn new_run() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() as u64 ^ u64::from(std::process::id()) << 16) as u32
}

/// Subscribers first, then publishers, then the load.
pub fn run_traffic(
    target: &Target,
    plan: &Plan,
    load: &Load,
    broker: Option<Watched>,
    sessions: Sessions,
) -> Result<Outcome, String> {
    let asks = subscribers(plan, load, sessions, true);
    let members = open_all(target, &asks)?;
    let mut traffic = Traffic::new(plan, load, broker).map_err(|error| error.to_string())?;
    let publishers = open_all(target, &publishers(plan, load))?;
    traffic.attach_publishers(publishers).map_err(|error| error.to_string())?;
    if !plan.members.is_empty() {
        traffic.attach_members(members).map_err(|error| error.to_string())?;
    }
    traffic.publish().map_err(|error| error.to_string())?;
    let outcome = traffic.finish();
    if matches!(sessions, Sessions::Durable(_)) {
        forget(target, asks);
    }
    Ok(outcome)
}

/// The subscribing clients of a plan. Without `filters` they only come back to their sessions.
pub fn subscribers(plan: &Plan, load: &Load, sessions: Sessions, filters: bool) -> Vec<Ask> {
    let (clean, expiry_s) = match sessions {
        Sessions::Transient => (true, 0),
        Sessions::Durable(expiry_s) => (false, expiry_s),
    };
    let ask = |(number, member): (usize, &crate::plan::Member)| Ask {
        client_id: plan.member_name(load.run, number),
        clean,
        expiry_s,
        filters: if filters { member.filters.clone() } else { Vec::new() },
        qos: load.qos,
    };
    plan.members.iter().enumerate().map(ask).collect()
}

/// The publishing clients of a plan.
pub fn publishers(plan: &Plan, load: &Load) -> Vec<Ask> {
    let ask = |number| Ask {
        client_id: plan.publisher_name(load.run, number),
        clean: true,
        ..Ask::default()
    };
    (0..plan.publishers).map(ask).collect()
}

/// Opens clients to use them.
pub fn open_all(target: &Target, asks: &[Ask]) -> Result<Vec<crate::client::Client>, String> {
    Fleet::open(target, asks, Arrivals::SETUP).map_err(|error| error.to_string())?.all()
}

/// Leaves no session behind, as far as the broker answers.
pub fn forget(target: &Target, asks: Vec<Ask>) {
    let clean = |ask: Ask| Ask { clean: true, expiry_s: 0, filters: Vec::new(), ..ask };
    let asks: Vec<Ask> = asks.into_iter().map(clean).collect();
    match Fleet::open(target, &asks, Arrivals::SETUP) {
        Ok(fleet) => fleet.close(),
        Err(error) => eprintln!("sessions of this run may be left at the broker: {error}"),
    }
}

/// Keeps connections for a time and counts those that end meanwhile.
pub fn hold(fleet: &mut Fleet, duration_s: f64) -> Result<u64, String> {
    let text = |error: std::io::Error| error.to_string();
    let mut poller = Poller::new().map_err(text)?;
    for (token, client) in fleet.clients.iter().enumerate() {
        if let Some(client) = client {
            poller.add(client, token, false).map_err(text)?;
        }
    }
    let clock = Clock::start();
    let end_ns = (duration_s * 1e9) as u64;
    let mut scratch = vec![0; 4_096];
    let mut ready = Vec::new();
    let mut ended = 0;
    loop {
        let left_ns = end_ns.saturating_sub(clock.now_ns());
        poller.wait(left_ns, &mut ready).map_err(text)?;
        for event in &ready {
            let slot = &mut fleet.clients[event.token];
            let Some(client) = slot else { continue };
            let read = client.read(&mut scratch, |_, _| std::ops::ControlFlow::Continue(()));
            if read.is_err() {
                poller.remove(&*client).map_err(text)?;
                *slot = None;
                ended += 1;
            }
        }
        if left_ns == 0 {
            for client in fleet.clients.iter().flatten() {
                poller.remove(client).map_err(text)?;
            }
            return Ok(ended);
        }
    }
}

/// The QoS of its number, which the command line has checked.
pub fn qos(number: u8) -> QoS {
    QoS::from_u8(number).unwrap_or_default()
}
