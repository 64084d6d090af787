//! The column of a run: backend and scheduler by name, and the way to their type.

use clap::ValueEnum;
use rt_abstract::{Pinning, Probe, RunOptions, Runtime, Scheduler};
use serde::Serialize;

#[cfg(not(any(feature = "rt-tokio", feature = "rt-monoio", feature = "rt-compio")))]
compile_error!("switch on at least one of the features rt-tokio, rt-monoio, rt-compio");

/// A backend by name, compiled in or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// Readiness I/O.
    Tokio,
    /// io_uring.
    Monoio,
    /// io_uring.
    Compio,
}

/// A scheduler by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// One executor per core.
    ThreadPerCore,
    /// One pool; tokio alone in its own build.
    WorkStealing,
}

/// Which column.
#[derive(clap::Args, Clone, Copy, Debug, Serialize)]
pub struct Column {
    /// The backend.
    #[arg(long, value_enum, default_value_t = Backend::Tokio)]
    pub runtime: Backend,
    /// How tasks are placed.
    #[arg(long, value_enum, default_value_t = Placement::ThreadPerCore)]
    pub scheduler: Placement,
}

/// Something to do with a backend's type.
pub trait Visit {
    /// What comes out.
    type Output;
    /// Does it.
    fn visit<R: Runtime>(self) -> Self::Output;
}

impl Column {
    /// Runs `visitor` with the backend's type.
    ///
    /// # Errors
    /// This program was built without the backend.
    #[cfg_attr(
        not(all(feature = "rt-tokio", feature = "rt-monoio", feature = "rt-compio")),
        allow(unused_variables)
    )]
    pub fn with<V: Visit>(&self, visitor: V) -> Result<V::Output, String> {
        match self.runtime {
            #[cfg(feature = "rt-tokio")]
            Backend::Tokio => Ok(visitor.visit::<rt_tokio::Tokio>()),
            #[cfg(feature = "rt-monoio")]
            Backend::Monoio => Ok(visitor.visit::<rt_monoio::Monoio>()),
            #[cfg(feature = "rt-compio")]
            Backend::Compio => Ok(visitor.visit::<rt_compio::Compio>()),
            #[allow(unreachable_patterns)]
            missing => Err(format!("this program was built without {missing:?}")),
        }
    }

    /// What the backend can do here.
    ///
    /// # Errors
    /// This program was built without it, or without the scheduler.
    pub fn probe(&self) -> Result<Probe, String> {
        struct Ask;
        impl Visit for Ask {
            type Output = Probe;
            fn visit<R: Runtime>(self) -> Probe {
                R::probe()
            }
        }
        let probe = self.with(Ask)?;
        match probe.schedulers.contains(&self.scheduler.into()) {
            true => Ok(probe),
            false => Err(format!("this program's {:?} has no {:?}", self.runtime, self.scheduler)),
        }
    }

    /// Options to run it on `cores` executors, each on a CPU of its own where that is possible.
    pub fn options(&self, cores: usize) -> RunOptions {
        let scheduler = self.scheduler.into();
        RunOptions { cores, scheduler, pinning: Pinning::Auto, ..RunOptions::default() }
    }

    /// The name in tables.
    pub fn label(&self) -> &'static str {
        match (self.runtime, self.scheduler) {
            (Backend::Tokio, Placement::WorkStealing) => "tokio work-stealing",
            (Backend::Tokio, Placement::ThreadPerCore) => "tokio thread-per-core",
            (Backend::Monoio, _) => "monoio",
            (Backend::Compio, _) => "compio",
        }
    }

    /// The names of backend and scheduler in flags.
    pub fn names(&self) -> (&'static str, &'static str) {
        let runtime = match self.runtime {
            Backend::Tokio => "tokio",
            Backend::Monoio => "monoio",
            Backend::Compio => "compio",
        };
        let scheduler = match self.scheduler {
            Placement::ThreadPerCore => "thread-per-core",
            Placement::WorkStealing => "work-stealing",
        };
        (runtime, scheduler)
    }

    /// Its flags.
    pub fn flags(&self) -> [String; 4] {
        let (runtime, scheduler) = self.names();
        ["--runtime", runtime, "--scheduler", scheduler].map(str::to_owned)
    }
}

impl From<Placement> for Scheduler {
    fn from(placement: Placement) -> Self {
        match placement {
            Placement::ThreadPerCore => Self::ThreadPerCore,
            Placement::WorkStealing => Self::WorkStealing,
        }
    }
}
