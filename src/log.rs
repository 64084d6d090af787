//! Logs to standard error.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;

use crate::config::{LogFormat, Settings};

/// Starts logging; a second call in one process does nothing.
pub fn start(settings: &Settings) {
    // The filter was checked with the rest of the configuration.
    let filter =
        EnvFilter::try_new(&settings.log.filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal());
    let _ = match settings.log.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().with_ansi(false).try_init(),
    };
}
