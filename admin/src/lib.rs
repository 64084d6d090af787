//! The admin address: health, metrics, the cluster, shared configuration and backups over HTTP/1.1, on
//! whichever runtime runs.
//!
//! hyper speaks HTTP and knows no runtime; a thin adapter feeds it from owned-buffer streams.
//! Everything is bounded: connections, header size, time per request, idle time.

mod adapter;
mod backup;
mod connection;
mod metadata;
mod metrics;
mod respond;
mod server;
mod steps;

pub use backup::{BackupState, BackupStatus};
pub use server::serve;
pub use steps::StepReport;

/// What does not change while the process runs.
#[derive(Clone, Debug)]
pub struct ServerInfo {
    /// The program's version.
    pub version: &'static str,
    /// The backend's name.
    pub runtime: &'static str,
    /// The scheduler's name.
    pub scheduler: String,
    /// The driver in use: `epoll` or `io_uring`.
    pub driver: &'static str,
    /// When the process started, in milliseconds since 1970.
    pub started_ms: u64,
}
