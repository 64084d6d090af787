//! What all shards of one process share.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rt_abstract::{Address, Core, Runtime, Shutdown, bind};

use crate::config::Config;
use crate::stats::{ShardStats, Snapshot};

/// One broker process: its configuration, its listening sockets, its counters, and the switch
/// that ends it. Made before the runtime starts, so that a busy port is a plain error.
#[derive(Debug)]
pub struct Node {
    config: Config,
    listeners: Vec<(Address, OwnedFd)>,
    stats: Vec<Arc<ShardStats>>,
    shutdown: Shutdown,
}

impl Node {
    /// Binds all listeners of `config` for `shards` shards (1 to 64).
    ///
    /// # Errors
    /// What binding said, with the address in its text.
    pub fn bind(config: Config, shards: usize) -> io::Result<Arc<Self>> {
        let mut listeners = Vec::new();
        for listener in &config.listeners {
            let fd = bind(&listener.address, listener.backlog).map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!("cannot listen on {}: {error}", listener.address),
                )
            })?;
            listeners.push((listener.address.clone(), fd));
        }
        let stats = (0..shards).map(|_| Arc::default()).collect();
        Ok(Arc::new(Self { config, listeners, stats, shutdown: Shutdown::new() }))
    }

    /// The bound MQTT addresses, with the ports that the kernel chose.
    pub fn addresses(&self) -> Vec<Address> {
        self.listeners.iter().map(|(address, _)| address.clone()).collect()
    }

    /// The counters of all shards, in shard order.
    pub fn stats(&self) -> Vec<Snapshot> {
        self.stats.iter().map(|stats| stats.snapshot()).collect()
    }

    /// The switch that ends the broker: stop accepting, tell clients, drain, return.
    pub fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }
}

/// Runs one shard until shutdown.
pub async fn serve<R: Runtime>(node: Arc<Node>, core: Core) -> io::Result<()> {
    let _ = core;
    node.shutdown().wait().await;
    Ok(())
}
