//! A simulated MQTT client: it keeps its side of the protocol, remembers its session across
//! connections, and writes down what it sees.

mod machine;
mod packets;
mod task;

pub use machine::Machine;
pub use task::{Phase, Place, Remote, run, see};
