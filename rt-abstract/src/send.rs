//! The one place where the two builds differ in what a future must be.

/// `Send` in the Send build, nothing in the single-threaded build.
#[cfg(not(feature = "single-threaded"))]
pub trait MaybeSend: Send {}
#[cfg(not(feature = "single-threaded"))]
impl<T: Send + ?Sized> MaybeSend for T {}

/// `Send` in the Send build, nothing in the single-threaded build.
#[cfg(feature = "single-threaded")]
pub trait MaybeSend {}
#[cfg(feature = "single-threaded")]
impl<T: ?Sized> MaybeSend for T {}

/// `Sync` in the Send build, nothing in the single-threaded build.
#[cfg(not(feature = "single-threaded"))]
pub trait MaybeSync: Sync {}
#[cfg(not(feature = "single-threaded"))]
impl<T: Sync + ?Sized> MaybeSync for T {}

/// `Sync` in the Send build, nothing in the single-threaded build.
#[cfg(feature = "single-threaded")]
pub trait MaybeSync {}
#[cfg(feature = "single-threaded")]
impl<T: ?Sized> MaybeSync for T {}

/// Expands to its first block in the single-threaded build, to its second in the Send build.
///
/// A backend must not decide this by a feature of its own: cargo unifies features over the whole
/// build, so two crates that each own such a feature can end up disagreeing.
#[cfg(feature = "single-threaded")]
#[macro_export]
macro_rules! if_single_threaded {
    ({ $($local:tt)* } else { $($send:tt)* }) => { $($local)* };
}

/// Expands to its first block in the single-threaded build, to its second in the Send build.
#[cfg(not(feature = "single-threaded"))]
#[macro_export]
macro_rules! if_single_threaded {
    ({ $($local:tt)* } else { $($send:tt)* }) => { $($send)* };
}
