//! Tasks of the whole node, beside its shards: each runs on a thread and an executor of its own, or on
//! the first shard's.

use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use rt_abstract::{MaybeSend, Pinning, RunOptions, Runtime, Scheduler, Shutdown};

use crate::config::TaskPlace;

/// How such a task is run, and how it is told to end.
#[derive(Debug)]
pub struct Beside {
    /// The name of its thread.
    name: &'static str,
    place: TaskPlace,
    options: RunOptions,
    stop: Shutdown,
}

/// The thread that runs one.
#[derive(Debug)]
pub struct Thread {
    name: &'static str,
    handle: JoinHandle<Result<(), String>>,
}

impl Beside {
    /// Not running yet. Its executor is of the shards' kind, alone, and not pinned.
    pub fn new(name: &'static str, place: TaskPlace, options: &RunOptions) -> Self {
        let options = RunOptions {
            cores: 1,
            pinning: Pinning::None,
            scheduler: Scheduler::ThreadPerCore,
            ..options.clone()
        };
        Self { name, place, options, stop: Shutdown::new() }
    }

    /// Runs `work` on a thread of its own, if it is to have one. It is told when to end; `node` ends
    /// when it does.
    ///
    /// # Errors
    /// One line for the operator.
    pub fn start_thread<R, F>(
        &self,
        node: Shutdown,
        work: impl FnOnce(Shutdown) -> F + Send + 'static,
    ) -> Result<Option<Thread>, String>
    where
        R: Runtime,
        F: Future<Output = Result<(), String>> + MaybeSend + 'static,
    {
        if self.place == TaskPlace::Shared {
            return Ok(None);
        }
        let name = self.name;
        let work = Mutex::new(Some(work));
        let (options, stop) = (self.options.clone(), self.stop.clone());
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            let _guard = EndNode(node);
            let results = R::run_cores(&options, move |_| {
                // Called once: there is one core.
                let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
                let work = work.map(|work| work(stop.clone()));
                async move {
                    match work {
                        Some(work) => work.await,
                        None => Ok(()),
                    }
                }
            });
            let results = results.map_err(|error| format!("cannot run the {name}: {error}"))?;
            results.into_iter().collect()
        });
        thread
            .map(|handle| Some(Thread { name, handle }))
            .map_err(|error| format!("cannot start the thread of the {name}: {error}"))
    }

    /// Runs `work` on the calling executor, if it is to run there; as above.
    pub fn start_task<R, F>(
        &self,
        node: Shutdown,
        work: impl FnOnce(Shutdown) -> F,
    ) -> Option<R::JoinHandle<Result<(), String>>>
    where
        R: Runtime,
        F: Future<Output = Result<(), String>> + MaybeSend + 'static,
    {
        if self.place == TaskPlace::Dedicated {
            return None;
        }
        let work = work(self.stop.clone());
        Some(R::spawn(async move {
            let _guard = EndNode(node);
            work.await
        }))
    }

    /// Ends it; to be called when no shard needs it any more.
    pub fn stop(&self) {
        self.stop.trigger();
    }
}

impl Thread {
    /// Waits for its end.
    ///
    /// # Errors
    /// Why it ended by itself.
    pub fn join(self) -> Result<(), String> {
        let Self { name, handle } = self;
        handle.join().unwrap_or_else(|_| Err(format!("the thread of the {name} panicked")))
    }
}

/// A node without such a task, for whatever reason, serves nobody any more.
struct EndNode(Shutdown);

impl Drop for EndNode {
    fn drop(&mut self) {
        self.0.trigger();
    }
}
