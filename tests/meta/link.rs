//! The link between nodes: requests, hellos, loss and silence, snapshots.

mod appends;
mod calls;
mod hellos;
mod loss;
mod peer;
mod service;
mod snapshots;
