//! Which threads this process has.

use std::fs;

/// Threads by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Threads {
    /// Neither the main one, nor an executor's, nor the kernel's.
    pub pool: usize,
    /// The kernel's, for what a ring cannot do without blocking.
    pub ring: usize,
}

impl Threads {
    /// Now.
    pub fn now() -> Self {
        let main = std::process::id().to_string();
        let Ok(tasks) = fs::read_dir("/proc/self/task") else { return Self::default() };
        let names = tasks.flatten().filter(|task| *task.file_name() != *main).map(|task| {
            // A thread may end while the list is read.
            fs::read_to_string(task.path().join("comm")).unwrap_or_default()
        });
        Self::of(names)
    }

    /// The larger of each.
    pub fn max(self, other: Self) -> Self {
        Self { pool: self.pool.max(other.pool), ring: self.ring.max(other.ring) }
    }

    fn of(names: impl Iterator<Item = String>) -> Self {
        let mut threads = Self::default();
        for name in names {
            if name.starts_with("iou-") {
                threads.ring += 1;
            } else if !name.is_empty() && !name.starts_with("gearbox-core-") {
                threads.pool += 1;
            }
        }
        threads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_told_apart_by_name() {
        let names = ["gearbox-core-0\n", "gearbox-blockin\n", "iou-wrk-12\n", "", "x\n"];
        let threads = Threads::of(names.map(str::to_owned).into_iter());
        assert_eq!(threads, Threads { pool: 2, ring: 1 });
    }

    #[test]
    fn sees_a_thread_that_waits() {
        let before = Threads::now().pool;
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let (begun, is_there) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            drop(begun);
            wait.recv()
        });
        assert!(is_there.recv().is_err(), "it runs");
        // Other tests' threads come and go; the harness has this one's at least.
        assert!(Threads::now().pool >= 1, "{before} before");
        drop(end);
        assert!(thread.join().is_ok());
    }
}
