//! The broker, generic over its runtime.

pub mod config;
mod node;
pub mod stats;

pub use config::Config;
pub use node::{Node, serve};
