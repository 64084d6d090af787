//! The cases, one file per client or concern.

mod auth;
mod backup;
mod bad_input;
mod cluster;
mod conformance;
mod disk;
mod durable;
mod hostile;
mod lifecycle;
mod messages;
mod metrics;
mod mosquitto;
mod paho;
mod queues;
mod rumqtt;
mod starts;
mod steps;
mod stopping;
mod sys;

use crate::Case;

/// All cases, the long ones first.
pub fn all() -> impl Iterator<Item = &'static Case> {
    [
        conformance::CASES,
        bad_input::CASES,
        cluster::CASES,
        disk::CASES,
        durable::CASES,
        hostile::CASES,
        messages::CASES,
        queues::CASES,
        lifecycle::CASES,
        starts::CASES,
        stopping::CASES,
        rumqtt::CASES,
        mosquitto::CASES,
        paho::CASES,
        auth::CASES,
        backup::CASES,
        sys::CASES,
        steps::CASES,
        metrics::CASES,
    ]
    .into_iter()
    .flatten()
}
