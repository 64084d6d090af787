//! MQTT 3.1, 3.1.1 and 5.0 as plain functions over plain data.
//!
//! No I/O, no async, no clock: bytes and the time go in, decisions and bytes come out. A packet
//! walks through [`wire`] (bytes to packets), [`protocol`] (is it allowed now, what does it ask),
//! [`session`] (what survives the connection), [`topic`] and [`routing`] (who wants it). [`access`]
//! says who the client is.

pub mod access;
pub mod protocol;
pub mod routing;
pub mod session;
pub mod topic;
pub mod wire;
