//! What the cases share: starting a runtime, pairs of streams, recognizable bytes.

use std::future::{Future, poll_fn};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use crate::io::{AsyncRead, AsyncWrite};
use crate::net::{Address, Listener};
use crate::notify::Notify;
use crate::runtime::{Core, RunOptions, Runtime};
use crate::send::MaybeSend;

/// Runs `main` on `cores` cores and checks that no task is left when all mains have ended.
pub(super) fn run<R, F, Fut, T>(options: &RunOptions, cores: usize, main: F) -> Vec<T>
where
    R: Runtime,
    F: Fn(Core) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = T> + MaybeSend + 'static,
    T: Send + 'static,
{
    let options = RunOptions { cores, ..options.clone() };
    let results = R::run_cores(&options, move |core| {
        let main = main(core);
        async move {
            let result = main.await;
            all_tasks_ended::<R>().await;
            result
        }
    });
    results.expect("the cores run")
}

/// Runs one `main` on one core.
pub(super) fn run_one<R, F, Fut>(options: &RunOptions, main: F)
where
    R: Runtime,
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + MaybeSend + 'static,
{
    run::<R, _, _, _>(options, 1, move |_| main());
}

/// Waits, with a bound, until no task of this core is alive.
pub(super) async fn all_tasks_ended<R: Runtime>() {
    for _ in 0..5_000 {
        if R::live_tasks() == 0 {
            return;
        }
        R::sleep(Duration::from_millis(1)).await;
    }
    panic!("{} tasks are still alive", R::live_tasks());
}

/// Gives other tasks the time to get to their waiting point. No case depends on it.
pub(super) async fn pause<R: Runtime>() {
    R::sleep(Duration::from_millis(5)).await;
}

/// Any free loopback port.
pub(super) fn free_port() -> Address {
    Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

/// Listens on `address`; returns where.
pub(super) fn listen<R: Runtime>(address: &Address) -> (R::Listener, Address) {
    let listener = R::listener(R::bind(address, 128).expect("bind")).expect("listener");
    let address = listener.local_address().expect("local address");
    (listener, address)
}

/// The connecting and the accepting end of a stream over loopback.
pub(super) async fn pair_at<R: Runtime>(address: &Address) -> (R::Stream, R::Stream) {
    let (mut listener, address) = listen::<R>(address);
    let near = R::connect(&address).await.expect("connect");
    let (far, _) = listener.accept().await.expect("accept");
    (near, far)
}

/// Both ends of a TCP stream.
pub(super) async fn tcp_pair<R: Runtime>() -> (R::Stream, R::Stream) {
    pair_at::<R>(&free_port()).await
}

/// The byte that stands at `offset` of every test stream; has no short period.
fn byte_at(offset: usize) -> u8 {
    let mixed = (offset as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 56) as u8
}

/// `len` bytes of the test stream from `offset` on.
pub(super) fn pattern(offset: usize, len: usize) -> Vec<u8> {
    (offset..offset + len).map(byte_at).collect()
}

/// Checks that `bytes` are the test stream from `offset` on.
pub(super) fn check(offset: usize, bytes: &[u8]) {
    let wrong = bytes.iter().enumerate().find(|&(at, &byte)| byte != byte_at(offset + at));
    if let Some((at, byte)) = wrong {
        panic!("byte {} of the stream is {byte}, not {}", offset + at, byte_at(offset + at));
    }
}

/// Sends bytes `from..to` of the test stream in writes of `step` bytes.
pub(super) async fn send<W: AsyncWrite>(writer: &mut W, from: usize, to: usize, step: usize) {
    let mut at = from;
    while at < to {
        let len = step.min(to - at);
        let (result, buf) = writer.write_all(pattern(at, len)).await;
        result.expect("write");
        assert_eq!(buf.len(), len, "the buffer comes back whole");
        at += len;
    }
}

/// Reads and checks bytes `from..to` of the test stream through buffers of `step` bytes; never
/// takes a byte behind `to`.
pub(super) async fn expect<S: AsyncRead>(reader: &mut S, from: usize, to: usize, step: usize) {
    let mut at = from;
    while at < to {
        let (result, buf) = reader.read(Vec::with_capacity(step.min(to - at))).await;
        let count = result.expect("read");
        assert!(count > 0, "the stream ended at {at} instead of {to}");
        assert_eq!(count, buf.len());
        check(at, &buf);
        at += count;
    }
}

/// Expects the end of the stream.
pub(super) async fn expect_end<S: AsyncRead>(reader: &mut S) {
    let (result, buf) = reader.read(Vec::with_capacity(16)).await;
    assert_eq!(result.expect("end of stream"), 0, "unexpected bytes {buf:?}");
    assert_eq!(buf.capacity(), 16, "the buffer comes back");
}

/// Polls `future` until it is ready, or until `notify` fires: then `None`, and it can be polled
/// again later.
pub(super) async fn unless_notified<F: Future>(
    mut future: Pin<&mut F>,
    notify: &Notify,
) -> Option<F::Output> {
    let mut notified = pin!(notify.notified());
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        notified.as_mut().poll(cx).map(|()| None)
    })
    .await
}

/// Lends buffers and counts how many are out.
#[derive(Clone)]
pub(super) struct Lender {
    out: Arc<AtomicIsize>,
    capacity: usize,
}

impl Lender {
    pub(super) fn new(capacity: usize) -> Self {
        Self { out: Arc::default(), capacity }
    }

    /// Buffers taken and not given back.
    pub(super) fn out(&self) -> isize {
        self.out.load(Ordering::SeqCst)
    }

    /// The `get` of a lazy read.
    pub(super) fn get(&self) -> impl FnMut() -> Vec<u8> + Send + 'static {
        let this = self.clone();
        move || {
            this.out.fetch_add(1, Ordering::SeqCst);
            Vec::with_capacity(this.capacity)
        }
    }

    /// The `put` of a lazy read.
    pub(super) fn put(&self) -> impl FnMut(Vec<u8>) + Send + 'static {
        let this = self.clone();
        move |buf| this.back(buf)
    }

    /// Takes a buffer back.
    pub(super) fn back(&self, buf: Vec<u8>) {
        self.out.fetch_sub(1, Ordering::SeqCst);
        drop(buf);
    }
}

/// A folder of its own on the runtime's disk, removed at the end.
pub(super) struct TempDir(PathBuf);

impl TempDir {
    pub(super) async fn new<R: Runtime>() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("gearbox-suite-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        R::create_dir(&path).await.expect("temp dir");
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
