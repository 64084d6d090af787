//! State shared by the tasks of one shard.

#[cfg(not(feature = "single-threaded"))]
use std::sync::{Arc, Mutex, PoisonError};
#[cfg(feature = "single-threaded")]
use std::{cell::RefCell, rc::Rc};

/// A handle on state that several tasks of one shard use.
///
/// `Rc<RefCell<T>>` in the single-threaded build, `Arc<Mutex<T>>` in the Send build. The only way
/// in is [`Shared::with`], whose closure is synchronous: no borrow or lock can live across an
/// await.
#[derive(Debug)]
pub struct Shared<T> {
    #[cfg(feature = "single-threaded")]
    inner: Rc<RefCell<T>>,
    #[cfg(not(feature = "single-threaded"))]
    inner: Arc<Mutex<T>>,
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<T> Shared<T> {
    /// Wraps `value`.
    pub fn new(value: T) -> Self {
        #[cfg(feature = "single-threaded")]
        return Self { inner: Rc::new(RefCell::new(value)) };
        #[cfg(not(feature = "single-threaded"))]
        return Self { inner: Arc::new(Mutex::new(value)) };
    }

    /// Runs `f` on the state. Calls must not nest on the same handle: that panics in the
    /// single-threaded build and deadlocks in the Send build.
    ///
    /// A panic inside `f` leaves the state as `f` left it; later calls go on with it.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        #[cfg(feature = "single-threaded")]
        return f(&mut self.inner.borrow_mut());
        #[cfg(not(feature = "single-threaded"))]
        return f(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
