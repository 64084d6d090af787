//! SIGTERM and SIGINT: the first drains, the second ends at once. SIGHUP reads the users again.

use std::io;
use std::time::Duration;

use rt_abstract::Shutdown;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level;

/// What SIGHUP does.
pub type Reload = Box<dyn Fn() + Send>;

/// Watches for signals on a thread of its own, for the life of the process. A drain that takes
/// longer than `drain_limit` is given up with exit code 1. Without `reload` SIGHUP does nothing: it would
/// end the process without a drain, and who sends it wants files to be read.
pub fn watch(shutdown: Shutdown, drain_limit: Duration, reload: Option<Reload>) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let name = || std::thread::Builder::new().name("signals".into());
    name().spawn(move || {
        let mut draining = false;
        for signal in signals.forever() {
            if signal == SIGHUP {
                match &reload {
                    Some(reload) => reload(),
                    None => tracing::info!("SIGHUP: there is no users file to be read again"),
                }
                continue;
            }
            if draining {
                low_level::exit(128 + signal);
            }
            draining = true;
            tracing::info!("{}: draining, a second signal ends at once", signal_name(signal));
            shutdown.trigger();
            give_up_after(drain_limit);
        }
    })?;
    Ok(())
}

fn give_up_after(limit: Duration) {
    let thread = std::thread::Builder::new().name("drain-limit".into());
    let spawned = thread.spawn(move || {
        std::thread::sleep(limit);
        tracing::error!("not drained after {} s, giving up", limit.as_secs());
        low_level::exit(1);
    });
    if let Err(error) = spawned {
        tracing::warn!("the drain has no time limit: {error}");
    }
}

fn signal_name(signal: i32) -> &'static str {
    low_level::signal_name(signal).unwrap_or("signal")
}
