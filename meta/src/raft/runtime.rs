//! Any [`rt_abstract::Runtime`] as the runtime that openraft asks for.
//!
//! Tasks, sleeps and the clock are the runtime's own. Channels and the mutex are tokio's `sync`
//! ones, which are plain shared memory with wakers: they need no tokio runtime and wake across
//! threads on every backend.

use std::cmp::Ordering;
use std::fmt;
use std::future::Future;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use openraft::async_runtime::mpsc::{SendError, TryRecvError};
use openraft::async_runtime::{
    Mpsc, MpscReceiver, MpscSender, MpscWeakSender, Oneshot, OneshotSender, Watch, WatchReceiver,
    WatchSender, watch,
};
use openraft::base::BoxFuture;
use openraft::{AsyncRuntime, Instant, OptionalSend, OptionalSync};
use pin_project_lite::pin_project;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rt_abstract::{RunOptions, Runtime, TaskPanicked};
use tokio::sync::{mpsc, oneshot};

/// How far the clock that openraft sees runs before the runtime's, whose zero may be the start of
/// the process: openraft subtracts time-outs from "now".
const CLOCK_LEAD: Duration = Duration::from_secs(24 * 60 * 60);

/// openraft's runtime, on `R`. Everything but a value made for a test acts on the executor of the
/// thread that calls it.
pub struct RaftRuntime<R> {
    /// How [`AsyncRuntime::block_on`] starts the executor.
    options: RunOptions,
    runtime: PhantomData<fn() -> R>,
}

/// A point on the runtime's monotonic clock.
pub struct RaftInstant<R> {
    at: rt_abstract::Instant,
    runtime: PhantomData<fn() -> R>,
}

pin_project! {
    /// A future with a deadline. Dropping the future is how it ends early, so what it waits for
    /// must bear that: the link's calls wait for a channel, never for a read of a socket.
    pub struct Timeout<F> {
        #[pin]
        future: F,
        sleep: BoxFuture<'static>,
    }
}

/// The deadline came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("timed out")]
pub struct TimedOut;

/// The channels, all of them bounded or of one value.
#[derive(Clone, Copy, Debug)]
pub struct Channels;

/// The receiving end of a bounded queue.
#[derive(Debug)]
pub struct Receiver<T>(mpsc::Receiver<T>);

/// The sending end of a channel for one value.
#[derive(Debug)]
pub struct OnceSender<T>(oneshot::Sender<T>);

/// A mutex whose lock is awaited.
#[derive(Debug)]
pub struct Mutex<T>(tokio::sync::Mutex<T>);

impl<R: Runtime> RaftRuntime<R> {
    /// A runtime whose `block_on` starts its executor in this way.
    pub fn with_options(options: RunOptions) -> Self {
        Self { options, runtime: PhantomData }
    }
}

impl<R: Runtime> AsyncRuntime for RaftRuntime<R> {
    type JoinError = TaskPanicked;
    type JoinHandle<T: OptionalSend + 'static> = R::JoinHandle<T>;
    type Sleep = BoxFuture<'static>;
    type Instant = RaftInstant<R>;
    type TimeoutError = TimedOut;
    type Timeout<T, F: Future<Output = T> + OptionalSend> = Timeout<F>;
    type ThreadLocalRng = SmallRng;
    type Mpsc = Channels;
    type Watch = Channels;
    type Oneshot = Channels;
    type Mutex<T: OptionalSend + 'static> = Mutex<T>;

    fn spawn<F>(future: F) -> Self::JoinHandle<F::Output>
    where
        F: Future + OptionalSend + 'static,
        F::Output: OptionalSend + 'static,
    {
        R::spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        Box::pin(R::sleep(duration))
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        Self::sleep(deadline - Self::Instant::now())
    }

    fn timeout<T, F>(duration: Duration, future: F) -> Self::Timeout<T, F>
    where
        F: Future<Output = T> + OptionalSend,
    {
        Timeout { future, sleep: Self::sleep(duration) }
    }

    fn timeout_at<T, F>(deadline: Self::Instant, future: F) -> Self::Timeout<T, F>
    where
        F: Future<Output = T> + OptionalSend,
    {
        Timeout { future, sleep: Self::sleep_until(deadline) }
    }

    /// Always: a task of ours ends early by a panic only, or with its executor.
    fn is_panic(_: &TaskPanicked) -> bool {
        true
    }

    /// Seeded by the runtime, so that a simulated one decides what is drawn.
    fn thread_rng() -> SmallRng {
        let mut seed = <SmallRng as SeedableRng>::Seed::default();
        R::fill_random(&mut seed);
        SmallRng::from_seed(seed)
    }

    /// Thread-per-core on the calling thread, whatever `threads` says.
    fn new(_threads: usize) -> Self {
        Self::with_options(RunOptions::default())
    }

    /// For tests. Each call has an executor of its own; what it left running ends with it.
    ///
    /// # Panics
    /// When the future panics, or when the machine refuses the executor: the trait knows no error.
    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        match R::block_on(&self.options, future) {
            Ok(result) => result,
            Err(error) => panic!("{error}"),
        }
    }
}

impl<R> fmt::Debug for RaftRuntime<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RaftRuntime").field("options", &self.options).finish_non_exhaustive()
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, TimedOut>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(result) = this.future.poll(cx) {
            return Poll::Ready(Ok(result));
        }
        this.sleep.as_mut().poll(cx).map(|()| Err(TimedOut))
    }
}

impl<F> fmt::Debug for Timeout<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeout").finish_non_exhaustive()
    }
}

impl<R: Runtime> Instant for RaftInstant<R> {
    fn now() -> Self {
        Self::at(R::now() + CLOCK_LEAD)
    }
}

impl<R> RaftInstant<R> {
    fn at(at: rt_abstract::Instant) -> Self {
        Self { at, runtime: PhantomData }
    }
}

impl<R> Add<Duration> for RaftInstant<R> {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self::at(self.at + by)
    }
}

impl<R> AddAssign<Duration> for RaftInstant<R> {
    fn add_assign(&mut self, by: Duration) {
        self.at = self.at + by;
    }
}

impl<R> Sub<Duration> for RaftInstant<R> {
    type Output = Self;

    fn sub(self, by: Duration) -> Self {
        let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        Self::at(rt_abstract::Instant::from_nanos(self.at.as_nanos().saturating_sub(nanos)))
    }
}

impl<R> SubAssign<Duration> for RaftInstant<R> {
    fn sub_assign(&mut self, by: Duration) {
        *self = *self - by;
    }
}

impl<R> Sub for RaftInstant<R> {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.at - earlier.at
    }
}

impl<R> Clone for RaftInstant<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for RaftInstant<R> {}

impl<R> fmt::Debug for RaftInstant<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Duration::from_nanos(self.at.as_nanos()))
    }
}

impl<R> PartialEq for RaftInstant<R> {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl<R> Eq for RaftInstant<R> {}

impl<R> PartialOrd for RaftInstant<R> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<R> Ord for RaftInstant<R> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at)
    }
}

impl<R> Hash for RaftInstant<R> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.at.hash(state);
    }
}

impl Mpsc for Channels {
    type Sender<T: OptionalSend> = mpsc::Sender<T>;
    type Receiver<T: OptionalSend> = Receiver<T>;
    type WeakSender<T: OptionalSend> = mpsc::WeakSender<T>;

    fn channel<T: OptionalSend>(buffer: usize) -> (mpsc::Sender<T>, Receiver<T>) {
        let (sender, receiver) = mpsc::channel(buffer);
        (sender, Receiver(receiver))
    }
}

impl<T: OptionalSend> MpscSender<Channels, T> for mpsc::Sender<T> {
    async fn send(&self, message: T) -> Result<(), SendError<T>> {
        mpsc::Sender::send(self, message).await.map_err(|error| SendError(error.0))
    }

    fn downgrade(&self) -> mpsc::WeakSender<T> {
        mpsc::Sender::downgrade(self)
    }
}

impl<T: OptionalSend> MpscReceiver<T> for Receiver<T> {
    async fn recv(&mut self) -> Option<T> {
        self.0.recv().await
    }

    fn try_recv(&mut self) -> Result<T, TryRecvError> {
        self.0.try_recv().map_err(|error| match error {
            mpsc::error::TryRecvError::Empty => TryRecvError::Empty,
            mpsc::error::TryRecvError::Disconnected => TryRecvError::Disconnected,
        })
    }
}

impl<T: OptionalSend> MpscWeakSender<Channels, T> for mpsc::WeakSender<T> {
    fn upgrade(&self) -> Option<mpsc::Sender<T>> {
        mpsc::WeakSender::upgrade(self)
    }
}

impl Watch for Channels {
    type Sender<T: OptionalSend + OptionalSync> = tokio::sync::watch::Sender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = tokio::sync::watch::Receiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = tokio::sync::watch::Ref<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(init: T) -> (Self::Sender<T>, Self::Receiver<T>) {
        tokio::sync::watch::channel(init)
    }
}

impl<T: OptionalSend + OptionalSync> WatchSender<Channels, T> for tokio::sync::watch::Sender<T> {
    fn send(&self, value: T) -> Result<(), watch::SendError<T>> {
        tokio::sync::watch::Sender::send(self, value).map_err(|error| watch::SendError(error.0))
    }

    fn send_if_modified<F>(&self, modify: F) -> bool
    where
        F: FnOnce(&mut T) -> bool,
    {
        tokio::sync::watch::Sender::send_if_modified(self, modify)
    }

    fn borrow_watched(&self) -> tokio::sync::watch::Ref<'_, T> {
        self.borrow()
    }

    fn subscribe(&self) -> tokio::sync::watch::Receiver<T> {
        tokio::sync::watch::Sender::subscribe(self)
    }
}

impl<T> WatchReceiver<Channels, T> for tokio::sync::watch::Receiver<T>
where
    T: OptionalSend + OptionalSync,
{
    async fn changed(&mut self) -> Result<(), watch::RecvError> {
        tokio::sync::watch::Receiver::changed(self).await.map_err(|_| watch::RecvError(()))
    }

    fn borrow_watched(&self) -> tokio::sync::watch::Ref<'_, T> {
        self.borrow()
    }

    fn borrow_and_update(&mut self) -> tokio::sync::watch::Ref<'_, T> {
        tokio::sync::watch::Receiver::borrow_and_update(self)
    }
}

impl Oneshot for Channels {
    type Sender<T: OptionalSend> = OnceSender<T>;
    type Receiver<T: OptionalSend> = oneshot::Receiver<T>;
    type ReceiverError = oneshot::error::RecvError;

    fn channel<T: OptionalSend>() -> (OnceSender<T>, oneshot::Receiver<T>) {
        let (sender, receiver) = oneshot::channel();
        (OnceSender(sender), receiver)
    }
}

impl<T: OptionalSend> OneshotSender<T> for OnceSender<T> {
    fn send(self, value: T) -> Result<(), T> {
        self.0.send(value)
    }
}

impl<T: OptionalSend + 'static> openraft::async_runtime::Mutex<T> for Mutex<T> {
    type Guard<'a> = tokio::sync::MutexGuard<'a, T>;

    fn new(value: T) -> Self {
        Self(tokio::sync::Mutex::new(value))
    }

    async fn lock(&self) -> Self::Guard<'_> {
        self.0.lock().await
    }
}
