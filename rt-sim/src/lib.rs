//! A deterministic backend: network, disk, time and randomness from a seed.
//!
//! [`Sim`] is a fourth implementation of [`rt_abstract::Runtime`], without threads, without a kernel
//! and without a clock of its own. Programs that are generic over the runtime run on it unchanged,
//! several machines in one process, and the same seed gives the same history to the last bit.
//!
//! ```
//! use std::time::Duration;
//! use rt_abstract::Runtime;
//! use rt_sim::{Config, Crash, NodeId, Sim, World};
//!
//! let world = World::new(7, Config::default());
//! let control = world.control();
//! let slept = world.block_on(async move {
//!     let server = control.start_node(NodeId(1), 2, |core| async move {
//!         Sim::sleep(Duration::from_secs(3600)).await;
//!         core.index
//!     });
//!     Sim::sleep(Duration::from_secs(10)).await;
//!     control.crash(NodeId(1), Crash::Power);
//!     server.join().await.is_err()
//! });
//! assert_eq!(slept, Ok(true));
//! ```
//!
//! * [`World`] is made from a seed and a [`Config`], and lets a future run to its end.
//! * [`Control`] steers it, from outside and from inside of tasks: starts and crashes nodes, cuts and
//!   heals links, breaks disks, moves clocks.
//! * What [`Config`] says happens all the time; what [`Control`] does, once. [`Control::coverage`]
//!   counts both when they take effect.
//!
//! `docs/simulation.md` says how the world works.

mod buf;
pub mod cli;
pub mod client;
mod config;
mod control;
mod coverage;
mod disk;
pub mod history;
mod net;
pub mod oracle;
pub mod record;
pub mod runner;
mod runtime;
mod task;
pub mod workload;
mod world;

pub use config::{Config, Disk, Latency, Link, Network};
pub use control::{Control, Cores};
pub use coverage::{Coverage, Fault};
pub use disk::File;
pub use net::{Closer, Listener, ListenerCloser, ReadHalf, Stream, WriteHalf};
pub use rt_abstract::faults::Op;
pub use runtime::Sim;
pub use task::JoinHandle;
pub use world::nodes::NodeId;
pub use world::{Crash, Stuck, World};
