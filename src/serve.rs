//! `gearbox serve`: everything that must be true before the first client is accepted, then one
//! broker shard per core, with the admin address beside the first.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use broker_core::{Access, Node};
use meta::Server;
use rt_abstract::{
    Address, Core, MaybeSend, Pinning, Probe, RunOptions, Runtime, Scheduler, Shutdown,
    bound_address, remove_socket_file,
};
use tracing::{info, warn};

use crate::backend::{self, Backend, Visit};
use crate::beside::Beside;
use crate::cli::ServeArgs;
use crate::config::{self, BackendChoice, Settings, TaskPlace};
use crate::{data_dir, environment, log, metadata, print, process, signals, users_file};

/// Runs the broker until it is told to end.
///
/// # Errors
/// One line for the operator.
pub fn serve(args: &ServeArgs) -> Result<(), String> {
    let file = args.file.config.as_deref();
    let mut settings = config::load(file, environment()).map_err(|error| error.to_string())?;
    args.apply(&mut settings);
    settings.check().map_err(|invalid| format!("{}: {}", invalid.path, invalid.message))?;
    log::start(&settings);
    process::prepare(settings.limits.max_connections);
    check_pinning(&settings.runtime.pin.0)?;

    let (backend, probe) = choose(&settings, &backend::probe_all())?;
    warn_of_fallback(backend, &probe, &settings);
    backend
        .with(Run { settings, probe })
        .unwrap_or_else(|| Err(format!("this build has no backend '{}'", backend.name())))
}

struct Run {
    settings: Settings,
    probe: Probe,
}

impl Visit for Run {
    type Output = Result<(), String>;

    fn visit<R: Runtime>(self) -> Self::Output {
        let Self { settings, probe } = self;
        let _data_dir = match settings.data.ephemeral {
            true => None,
            false => Some(data_dir::lock(&settings.data.dir)?),
        };
        let options = RunOptions {
            cores: settings.shard_count(),
            pinning: settings.runtime.pin.0.clone(),
            scheduler: settings.runtime.scheduler.into(),
            ring_entries: settings.runtime.ring_entries,
            require_io_uring: settings.runtime.require_io_uring,
            force_fallback: settings.runtime.force_fallback,
        };
        let users_file = settings.auth.users_file().map(Path::to_owned);
        let mut config = settings.broker();
        config.auth.users = users_file.as_deref().map(users_file::load).transpose()?;
        let (meta, server) = metadata::open(&settings)?.unzip();
        let node =
            Node::bind::<R>(config, options.cores, meta).map_err(|error| error.to_string())?;
        broker_core::follow_metadata::<R>(&node);
        let admin = settings.admin.address.0.as_ref().map(bind_admin).transpose()?;

        // Longer than the broker's own bound, which is what normally ends a drain.
        let close_timeout = u64::from(settings.limits.close_timeout_ms);
        let drain_limit = Duration::from_millis(close_timeout) + Duration::from_secs(10);
        let reload = users_file.map(|path| reload_users(path, node.access().clone()));
        signals::watch(node.shutdown().clone(), drain_limit, reload)
            .map_err(|error| format!("cannot watch for signals: {error}"))?;

        let info = admin::ServerInfo {
            version: env!("CARGO_PKG_VERSION"),
            runtime: R::NAME,
            scheduler: options.scheduler.to_string(),
            driver: driver(&probe, &settings),
            started_ms: R::wall_clock_ms(),
        };
        let ready_line = ready_line(&info, options.cores, &node, admin.as_ref());
        let admin_address = admin.as_ref().map(|(_, address)| address.clone());
        let raft = Beside::new("metadata", settings.meta.raft, &options);
        let journal = Beside::new("journal", settings.journal.writer, &options);
        let server = Mutex::new(server);
        let kept = settings.meta.raft == TaskPlace::Shared;
        let taken = if kept { None } else { take(&server) };
        let raft_thread = taken
            .map(|server| raft.start_thread::<R, _>(node.shutdown().clone(), run_raft::<R>(server)))
            .transpose()?
            .flatten();
        let journal_thread = match node.config().journal {
            Some(_) => {
                let writer = run_journal::<R>(&node);
                journal.start_thread::<R, _>(node.shutdown().clone(), writer)?
            }
            None => None,
        };
        let assembly = Arc::new(Assembly {
            raft,
            server,
            journal,
            node,
            info,
            ready_line,
            admin: Mutex::new(admin.map(|(fd, _)| fd)),
            starting: AtomicUsize::new(options.cores),
            running: AtomicUsize::new(options.cores),
            stop_admin: Shutdown::new(),
        });
        let shards = assembly.clone();
        let results = R::run_cores(&options, move |core| shard::<R>(shards.clone(), core))
            .map_err(|error| format!("cannot run on {}: {error}", R::NAME));
        assembly.stop_tasks();
        let ends =
            [journal_thread, raft_thread].map(|thread| thread.map_or(Ok(()), |it| it.join()));
        ends.into_iter().collect::<Result<(), _>>()?;
        let results = results?;
        if let Some(address) = admin_address {
            remove_socket_file(&address);
        }
        results.into_iter().collect::<Result<Vec<()>, _>>()?;
        info!("stopped");
        Ok(())
    }
}

/// What the shards share besides the node.
struct Assembly {
    raft: Beside,
    /// The metadata's, until somebody runs it.
    server: Mutex<Option<Server>>,
    journal: Beside,
    node: Arc<Node>,
    info: admin::ServerInfo,
    ready_line: String,
    admin: Mutex<Option<OwnedFd>>,
    starting: AtomicUsize,
    running: AtomicUsize,
    // Apart from the node's switch: /health answers until the last shard has drained.
    stop_admin: Shutdown,
}

impl Assembly {
    /// Nobody records anything any more.
    fn stop_tasks(&self) {
        self.journal.stop();
        self.raft.stop();
    }
}

fn take(server: &Mutex<Option<Server>>) -> Option<Server> {
    server.lock().unwrap_or_else(PoisonError::into_inner).take()
}

fn run_raft<R: Runtime>(
    server: Server,
) -> impl FnOnce(Shutdown) -> Pin<Box<dyn TaskFuture>> + Send + 'static {
    move |stop| {
        Box::pin(async move { server.run::<R>(stop).await.map_err(|error| error.to_string()) })
    }
}

fn run_journal<R: Runtime>(
    node: &Arc<Node>,
) -> impl FnOnce(Shutdown) -> Pin<Box<dyn TaskFuture>> + Send + 'static {
    let node = node.clone();
    move |stop| Box::pin(broker_core::run_journal::<R>(node, stop))
}

/// What the node's tasks come to.
trait TaskFuture: Future<Output = Result<(), String>> + MaybeSend {}

impl<F: Future<Output = Result<(), String>> + MaybeSend> TaskFuture for F {}

/// Ends the other shards when this one ends, also by an error or a panic.
struct Running(Arc<Assembly>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.node.shutdown().trigger();
        if self.0.running.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.stop_admin.trigger();
            self.0.stop_tasks();
        }
    }
}

async fn shard<R: Runtime>(assembly: Arc<Assembly>, core: Core) -> Result<(), String> {
    let running = Running(assembly.clone());
    let mut admin = None;
    if core.index == 0
        && let Some(fd) = assembly.admin.lock().unwrap_or_else(PoisonError::into_inner).take()
    {
        let listener = R::listener(fd.into())
            .map_err(|error| format!("cannot serve the admin address: {error}"))?;
        admin = Some(R::spawn(admin::serve::<R>(
            listener,
            assembly.node.clone(),
            assembly.info.clone(),
            assembly.stop_admin.clone(),
        )));
    }
    let (mut raft, mut journal) = (None, None);
    if core.index == 0 {
        let node = &assembly.node;
        raft = take(&assembly.server).and_then(|server| {
            assembly.raft.start_task::<R, _>(node.shutdown().clone(), run_raft::<R>(server))
        });
        if node.config().journal.is_some() {
            let writer = run_journal::<R>(node);
            journal = assembly.journal.start_task::<R, _>(node.shutdown().clone(), writer);
        }
    }
    let ready = assembly.clone();
    let result = broker_core::serve::<R>(assembly.node.clone(), core, move || {
        if ready.starting.fetch_sub(1, Ordering::SeqCst) == 1 {
            print(&ready.ready_line);
        }
    })
    .await;
    drop(running);
    if let Some(journal) = journal {
        journal.await.map_err(|panicked| format!("the journal failed: {panicked}"))??;
    }
    if let Some(raft) = raft {
        raft.await.map_err(|panicked| format!("the metadata failed: {panicked}"))??;
    }
    if let Some(admin) = admin {
        admin.await.map_err(|panicked| format!("the admin address failed: {panicked}"))?;
    }
    result.map_err(|error| format!("shard {} failed: {error}", core.index))
}

/// Which backend runs, and what it can do here.
fn choose(
    settings: &Settings,
    probes: &[(Backend, Option<Probe>)],
) -> Result<(Backend, Probe), String> {
    let runtime = &settings.runtime;
    let backend = match runtime.backend {
        BackendChoice::Auto => backend::best(probes).ok_or("this build has no backend")?,
        BackendChoice::Tokio => Backend::Tokio,
        BackendChoice::Monoio => Backend::Monoio,
        BackendChoice::Compio => Backend::Compio,
    };
    let name = backend.name();
    let probe = probes.iter().find(|(other, _)| *other == backend);
    let Some(probe) = probe.and_then(|(_, probe)| probe.clone()) else {
        return Err(format!(
            "this build has no backend '{name}', it has: {}; build with --features rt-{name}",
            backend::compiled_in()
        ));
    };
    let scheduler = Scheduler::from(runtime.scheduler);
    if !probe.schedulers.contains(&scheduler) {
        let why = match backend {
            Backend::Tokio => "it takes a build with tokio alone",
            _ => "only tokio can have it",
        };
        return Err(format!("backend '{name}' has no {scheduler} scheduler in this build: {why}"));
    }
    if runtime.require_io_uring && !backend::uses_io_uring(&probe) {
        let why = match (&probe.fallback_reason, probe.completion) {
            (Some(reason), _) => reason.as_str(),
            (None, true) => "io_uring is not available",
            (None, false) => "this backend does not use it",
        };
        return Err(format!("io_uring is required, but backend '{name}' cannot: {why}"));
    }
    Ok((backend, probe))
}

/// Reads the users again; a file with a mistake changes nothing.
fn reload_users(path: PathBuf, access: Arc<Access>) -> signals::Reload {
    Box::new(move || match users_file::load(&path) {
        Ok(users) => {
            info!(users = users.len(), "users read again");
            access.replace_users(users);
        }
        Err(error) => warn!("users stay as they are: {error}"),
    })
}

fn warn_of_fallback(backend: Backend, probe: &Probe, settings: &Settings) {
    if probe.completion && !backend::uses_io_uring(probe) && !settings.runtime.force_fallback {
        let reason = probe.fallback_reason.as_deref().unwrap_or("not available");
        warn!(
            "io_uring cannot be used ({reason}): {} falls back to {}",
            backend.name(),
            probe.driver
        );
    }
}

fn driver(probe: &Probe, settings: &Settings) -> &'static str {
    if settings.runtime.force_fallback { "epoll" } else { probe.driver }
}

fn bind_admin(address: &Address) -> Result<(OwnedFd, Address), String> {
    rt_abstract::bind(address, ADMIN_BACKLOG)
        .and_then(|fd| Ok((bound_address(&fd)?, fd)))
        .map(|(address, fd)| (fd, address))
        .map_err(|error| format!("cannot listen on {address} (admin): {error}"))
}

const ADMIN_BACKLOG: i32 = 128;

/// The one line on standard output; its format is relied upon.
fn ready_line(
    info: &admin::ServerInfo,
    shards: usize,
    node: &Node,
    admin: Option<&(OwnedFd, Address)>,
) -> String {
    let mqtt: Vec<_> = node.addresses().iter().map(ToString::to_string).collect();
    format!(
        "gearbox {} ready runtime={} scheduler={} driver={} shards={shards} mqtt={} admin={}\n",
        info.version,
        info.runtime,
        info.scheduler,
        info.driver,
        mqtt.join(","),
        admin.map_or("off".into(), |(_, address)| address.to_string()),
    )
}

/// Before any shard starts, so that a wrong CPU is one clear error.
fn check_pinning(pinning: &Pinning) -> Result<(), String> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let Pinning::Cpus(cpus) = pinning else { return Ok(()) };
    let allowed = sched_getaffinity(None)
        .map_err(|error| format!("runtime.pin: cannot ask for the CPUs: {error}"))?;
    match cpus.iter().find(|&&cpu| cpu >= CpuSet::MAX_CPU || !allowed.is_set(cpu)) {
        Some(cpu) => Err(format!("runtime.pin: this process may not use CPU {cpu}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SchedulerName;

    fn probe(driver: &'static str, completion: bool, reason: Option<&str>) -> Option<Probe> {
        Some(Probe {
            driver,
            completion,
            fallback_reason: reason.map(Into::into),
            schedulers: vec![Scheduler::ThreadPerCore],
        })
    }

    fn chosen(change: impl FnOnce(&mut Settings)) -> Result<Backend, String> {
        let mut settings = Settings::default();
        change(&mut settings);
        let probes = [
            (Backend::Tokio, probe("epoll", false, None)),
            (Backend::Monoio, None),
            (Backend::Compio, probe("epoll", true, Some("seccomp"))),
        ];
        choose(&settings, &probes).map(|(backend, _)| backend)
    }

    #[test]
    fn chooses_or_says_why_not() {
        assert_eq!(chosen(|_| ()), Ok(Backend::Tokio));
        assert_eq!(chosen(|s| s.runtime.backend = BackendChoice::Compio), Ok(Backend::Compio));
        let error = chosen(|s| s.runtime.backend = BackendChoice::Monoio).unwrap_err();
        assert!(error.starts_with("this build has no backend 'monoio', it has: "), "{error}");
        let error = chosen(|s| s.runtime.scheduler = SchedulerName::WorkStealing).unwrap_err();
        assert!(error.contains("no work-stealing scheduler in this build"), "{error}");
        let error = chosen(|s| s.runtime.require_io_uring = true).unwrap_err();
        assert!(error.contains("does not use it"), "{error}");
        let error = chosen(|s| {
            s.runtime.backend = BackendChoice::Compio;
            s.runtime.require_io_uring = true;
        })
        .unwrap_err();
        assert!(error.ends_with("cannot: seccomp"), "{error}");
    }

    #[test]
    fn pinning_is_checked() {
        assert_eq!(check_pinning(&Pinning::Auto), Ok(()));
        let error = check_pinning(&Pinning::Cpus(vec![99_999])).unwrap_err();
        assert_eq!(error, "runtime.pin: this process may not use CPU 99999");
    }
}
