//! openraft on our runtime, our store and our link.
//!
//! `types` is what openraft is run with; `runtime` lends it the tasks, the clock and the channels
//! of any [`rt_abstract::Runtime`]; `log` and `machine` put its log and its state machine on a
//! [`crate::store::Store`], in the encoding of `entry`; `snapshot` is a state for a node that is far
//! behind.

pub mod entry;
pub mod log;
pub mod machine;
pub mod runtime;
pub mod snapshot;
mod timing;
pub mod types;
