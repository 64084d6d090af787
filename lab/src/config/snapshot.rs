//! A value that everybody reads without waiting and that changes as a whole.

use std::sync::Arc;

use arc_swap::ArcSwap;

/// The value of the moment.
#[derive(Debug)]
pub struct Snapshot<T> {
    current: ArcSwap<T>,
}

impl<T> Snapshot<T> {
    /// The first value.
    pub fn new(value: T) -> Self {
        Self { current: ArcSwap::from_pointee(value) }
    }

    /// The value of the moment, for a short use.
    #[inline]
    pub fn load(&self) -> arc_swap::Guard<Arc<T>> {
        self.current.load()
    }

    /// Replaces `seen` by `next`, unless somebody else has replaced it before.
    pub fn replace(&self, seen: &Arc<T>, next: Arc<T>) -> bool {
        Arc::ptr_eq(&self.current.compare_and_swap(seen, next), seen)
    }

    /// Changes the value; what others change meanwhile is not lost: `change` is asked again, with
    /// theirs. Each attempt that fails is a change of somebody else that has succeeded.
    pub fn update(&self, change: impl Fn(&T) -> T) {
        loop {
            let seen = self.current.load_full();
            if self.replace(&seen, Arc::new(change(&seen))) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn of_two_changes_from_the_same_value_one_must_be_made_again() {
        let snapshot = Snapshot::new(vec![0]);
        let seen = snapshot.load().clone();
        assert!(snapshot.replace(&seen, Arc::new(vec![0, 1])));
        assert!(!snapshot.replace(&seen, Arc::new(vec![0, 2])), "it would undo the first");
        assert_eq!(**snapshot.load(), [0, 1]);
        snapshot.update(|value| [&value[..], &[2]].concat());
        assert_eq!(**snapshot.load(), [0, 1, 2]);
    }

    #[test]
    fn concurrent_changes_are_all_there() {
        const THREADS: usize = 4;
        const CHANGES: u64 = 5_000;
        let snapshot = Snapshot::new([0u64; THREADS]);
        thread::scope(|scope| {
            for mine in 0..THREADS {
                let snapshot = &snapshot;
                scope.spawn(move || {
                    for _ in 0..CHANGES {
                        snapshot.update(|counts| {
                            let mut counts = *counts;
                            counts[mine] += 1;
                            counts
                        });
                    }
                });
            }
        });
        assert_eq!(**snapshot.load(), [CHANGES; THREADS]);
    }
}
