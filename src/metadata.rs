//! The metadata of this node, opened before anything runs.

use broker_core::backup::META_DIR;
use meta::store::StoreError;
use meta::{ApplyMode, ClusterOptions, Handle, LogLimits, Options, Server};
use rt_abstract::{Address, bind, bound_address};

use crate::config::{ApplyName, Settings};

const CLUSTER_BACKLOG: i32 = 128;

/// Opens the metadata in the data directory; `None` when nothing is kept.
///
/// # Errors
/// One line for the operator.
pub fn open(settings: &Settings) -> Result<Option<(Handle, Server)>, String> {
    if settings.data.ephemeral {
        return Ok(None);
    }
    let cluster = &settings.cluster;
    let cluster_options = match &cluster.listen.0 {
        None => None,
        Some(address) => {
            let failed = |error| format!("cannot listen on {address} (cluster): {error}");
            let listener = bind(address, CLUSTER_BACKLOG).map_err(failed)?;
            let bound = bound_address(&listener).map_err(failed)?;
            Some(ClusterOptions {
                name: cluster.name.clone(),
                listener: listener.into(),
                advertise: advertised(&cluster.advertise, &bound),
                seeds: cluster.seeds.clone(),
            })
        }
    };
    let options = Options {
        node: cluster.node_id,
        dir: settings.data.dir.join(META_DIR),
        apply: match settings.meta.apply {
            ApplyName::Inline => ApplyMode::Inline,
            ApplyName::Thread => ApplyMode::Thread,
            ApplyName::Each => ApplyMode::Each,
            ApplyName::PositionApart => ApplyMode::PositionApart,
        },
        log: LogLimits {
            snapshot_entries: settings.meta.snapshot_entries,
            kept_entries: settings.meta.kept_entries,
            max_lag_entries: settings.meta.max_lag_entries,
        },
        steps: settings.steps.options(settings.steps.slow_apply_ms),
        cluster: cluster_options,
    };
    meta::open(options).map(Some).map_err(|error| match error {
        StoreError::Damaged(_) => {
            let dir = settings.data.dir.display();
            format!("{error}; `gearbox repair --data-dir {dir}` says what is left")
        }
        error => error.to_string(),
    })
}

/// What others are told, with the port that the kernel chose.
fn advertised(advertise: &str, bound: &Address) -> String {
    if advertise.is_empty() { bound.to_string() } else { advertise.to_owned() }
}
