//! The command line.

use std::path::PathBuf;

use broker_core::MAX_SHARDS;
use clap::{Args, Parser, Subcommand};
use mqtt::access::{DEFAULT_ITERATIONS, MAX_ITERATIONS, MIN_ITERATIONS};
use rt_abstract::Address;

use crate::backend::Backend;
use crate::config::{AdminAddr, Listener, SchedulerName, Settings};

/// An MQTT broker that runs on tokio, monoio or compio.
#[derive(Debug, Parser)]
#[command(name = "gearbox", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the broker
    Serve(ServeArgs),
    /// List the backends and what each can do on this machine
    Runtimes,
    /// Set or remove a user of a users file
    Passwd(PasswdArgs),
    /// Check or show the configuration
    Config {
        /// Which of the two.
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Ask a running broker, or have it do something, through its admin address
    Ctl(CtlArgs),
    /// Say whether a data directory is sound, and cut a damaged journal
    Repair(RepairArgs),
    /// Make a data directory from a backup
    Restore(RestoreArgs),
}

/// Arguments of `gearbox repair`.
#[derive(Debug, Args)]
pub struct RepairArgs {
    /// The data directory; no broker may run on it
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Cut the journal at its first damage; what is cut off is kept in files called *.damaged
    #[arg(long)]
    pub write: bool,
}

/// Arguments of `gearbox restore`.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The backup, as `gearbox ctl backup` wrote it
    #[arg(long, value_name = "DIR")]
    pub from: PathBuf,
    /// The new data directory; it must be empty or not there
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
}

/// Arguments of `gearbox ctl`.
#[derive(Debug, Args)]
pub struct CtlArgs {
    /// The broker's admin address, HOST:PORT
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9883", global = true)]
    pub admin: String,
    /// What to ask or do.
    #[command(subcommand)]
    pub command: CtlCommand,
}

/// What to ask a running broker, or have it do.
#[derive(Debug, Subcommand)]
pub enum CtlCommand {
    /// The cluster
    Cluster {
        /// Which of the two.
        #[command(subcommand)]
        command: ClusterCommand,
    },
    /// Print where the time of CONNECTs and of applying changes goes, step by step
    Steps {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// The configuration that all nodes of the cluster share
    Config {
        /// Which of the three.
        #[command(subcommand)]
        command: ConfigKeyCommand,
    },
    /// Have the broker write a backup of its data directory
    Backup {
        /// Where, on the broker's machine: an absolute path, empty or not there
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
}

/// What to do with the cluster.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Print the members, the leader and how far each is
    Status {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a node from the cluster
    Leave {
        /// Its number
        #[arg(value_name = "NODE")]
        node: u64,
    },
}

/// What to do with the cluster's configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigKeyCommand {
    /// Print a value
    Get {
        /// The key
        key: String,
    },
    /// Set a value
    Set {
        /// The key
        key: String,
        /// The value
        value: String,
        /// Only if the key has this version; 0: only if it is not set
        #[arg(long, value_name = "N")]
        if_version: Option<u64>,
    },
    /// Remove a key
    Unset {
        /// The key
        key: String,
        /// Only if the key has this version
        #[arg(long, value_name = "N")]
        if_version: Option<u64>,
    },
}

/// Arguments of `gearbox passwd`.
#[derive(Debug, Args)]
pub struct PasswdArgs {
    /// The users file, made when missing; auth.users_file names it to the broker
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// User name
    #[arg(value_name = "USER")]
    pub user: String,
    /// Remove the user instead of setting its password
    #[arg(long, conflicts_with = "iterations")]
    pub delete: bool,
    /// Cost of verifying the password; more make guessing slower, and every CONNECT
    #[arg(long, value_name = "N", default_value_t = DEFAULT_ITERATIONS,
        value_parser = clap::value_parser!(u32).range(i64::from(MIN_ITERATIONS)..=i64::from(MAX_ITERATIONS)))]
    pub iterations: u32,
}

/// What to do with the configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Say whether the configuration is correct
    Check(ConfigArgs),
    /// Print the configuration that applies: defaults, file and environment
    Show(ConfigArgs),
}

/// Which configuration.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// TOML file; gearbox.example.toml describes every key
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Flags of `gearbox serve`; each overrides its key of the file.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The file.
    #[command(flatten)]
    pub file: ConfigArgs,
    /// Backend [default: the best one here, see `gearbox runtimes`]
    #[arg(long, value_name = "NAME")]
    pub runtime: Option<Backend>,
    /// How tokio places tasks on threads [default: thread-per-core]
    #[arg(long, value_name = "NAME")]
    pub scheduler: Option<SchedulerName>,
    /// Number of shards, 1 to 64 [default: one per available CPU]
    #[arg(long, value_name = "N", value_parser = shards)]
    pub shards: Option<usize>,
    /// Address for MQTT clients, IP:PORT or unix:PATH; may be repeated [default: 127.0.0.1:1883]
    #[arg(long, value_name = "ADDR")]
    pub listen: Vec<Address>,
    /// Address for health and metrics, or off [default: 127.0.0.1:9883]
    #[arg(long, value_name = "ADDR|off")]
    pub admin: Option<AdminAddr>,
    /// Data directory [default: ./gearbox-data]
    #[arg(long, value_name = "DIR", conflicts_with = "ephemeral")]
    pub data_dir: Option<PathBuf>,
    /// Keep everything in memory, touch no directory
    #[arg(long)]
    pub ephemeral: bool,
    /// Names this node in a cluster [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub node_id: Option<u64>,
    /// Address for other nodes, IP:PORT or off [default: off]
    #[arg(long, value_name = "ADDR|off")]
    pub cluster_listen: Option<AdminAddr>,
    /// Node to join through at the first start, IP:PORT; may be repeated
    #[arg(long, value_name = "ADDR")]
    pub cluster_seed: Vec<String>,
}

impl ServeArgs {
    /// Puts the flags that were given over `settings`.
    pub fn apply(&self, settings: &mut Settings) {
        if let Some(backend) = self.runtime {
            settings.runtime.backend = backend.into();
        }
        if let Some(scheduler) = self.scheduler {
            settings.runtime.scheduler = scheduler;
        }
        if let Some(shards) = self.shards {
            settings.runtime.shards = shards;
        }
        if !self.listen.is_empty() {
            settings.listeners.0 = self.listen.iter().cloned().map(Listener::at).collect();
        }
        if let Some(admin) = &self.admin {
            settings.admin.address = admin.clone();
        }
        if let Some(dir) = &self.data_dir {
            settings.data.dir = dir.clone();
            settings.data.ephemeral = false;
        }
        if self.ephemeral {
            settings.data.ephemeral = true;
        }
        if let Some(id) = self.node_id {
            settings.cluster.node_id = id;
        }
        if let Some(listen) = &self.cluster_listen {
            settings.cluster.listen = listen.clone();
        }
        if !self.cluster_seed.is_empty() {
            settings.cluster.seeds = self.cluster_seed.clone();
        }
    }
}

fn shards(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(shards) if (1..=MAX_SHARDS).contains(&shards) => Ok(shards),
        _ => Err(format!("must be a number from 1 to {MAX_SHARDS}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn settings(args: &[&str]) -> Settings {
        let cli = Cli::try_parse_from([&["gearbox", "serve"], args].concat()).unwrap();
        let Command::Serve(args) = cli.command else { panic!("not serve") };
        let mut settings = Settings::default();
        args.apply(&mut settings);
        settings
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_override() {
        assert_eq!(settings(&[]), Settings::default());
        let settings = settings(&[
            "--runtime=compio",
            "--scheduler=work-stealing",
            "--shards=7",
            "--listen=[::1]:1",
            "--listen=unix:/x",
            "--admin=off",
            "--data-dir=/y",
            "--node-id=3",
            "--cluster-listen=127.0.0.1:4",
            "--cluster-seed=127.0.0.1:5",
        ]);
        assert_eq!(settings.cluster.node_id, 3);
        assert_eq!(settings.cluster.seeds, ["127.0.0.1:5"]);
        assert_eq!(settings.runtime.backend, Backend::Compio.into());
        assert_eq!(settings.runtime.scheduler, SchedulerName::WorkStealing);
        assert_eq!(settings.runtime.shards, 7);
        assert_eq!(settings.listeners.0.len(), 2);
        assert_eq!(settings.admin.address, AdminAddr(None));
        assert_eq!(settings.data.dir, PathBuf::from("/y"));
    }

    #[test]
    fn wrong_flags_are_refused() {
        for flag in ["--shards=0", "--shards=65", "--listen=localhost", "--runtime=x", "--nope"] {
            assert!(Cli::try_parse_from(["gearbox", "serve", flag]).is_err(), "{flag}");
        }
        assert!(
            Cli::try_parse_from(["gearbox", "serve", "--ephemeral", "--data-dir", "x"]).is_err()
        );
    }
}
