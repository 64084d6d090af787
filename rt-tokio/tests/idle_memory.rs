//! What an idle connection costs in heap memory, its task included.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicIsize, Ordering};

use rt_abstract::{AsyncRead, AsyncWrite, Closer, RunOptions, Runtime, Stream};
use rt_tokio::Tokio;

struct Counting;

static LIVE_BYTES: AtomicIsize = AtomicIsize::new(0);

// SAFETY: passes every call on as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn an_idle_connection_stays_below_a_kib() {
    const COUNT: usize = 300;
    let bytes = Tokio::run_cores(&RunOptions::default(), |_| async {
        let pairs: Vec<_> = (0..COUNT).map(|_| UnixStream::pair().expect("pair")).collect();
        let mut closers = Vec::with_capacity(COUNT);
        let mut tasks = Vec::with_capacity(COUNT);
        let mut peers = Vec::with_capacity(COUNT);
        let before = LIVE_BYTES.load(Ordering::Relaxed);
        for (near, far) in pairs {
            let stream = Tokio::adopt(OwnedFd::from(near).into()).expect("adopt");
            closers.push(stream.closer());
            let (mut read, mut write) = stream.into_split();
            tasks.push(Tokio::spawn(async move {
                loop {
                    let (result, buf) =
                        read.read_lazy(|| Vec::<u8>::with_capacity(4_096), drop).await;
                    match (result, buf) {
                        (Ok(count), Some(buf)) if count > 0 => {
                            if write.write_all(buf).await.0.is_err() {
                                return;
                            }
                        }
                        _ => return,
                    }
                }
            }));
            peers.push(far);
        }
        // All tasks have begun to wait, and the driver has seen all sockets.
        for _ in 0..100 {
            Tokio::yield_now().await;
        }
        let bytes = LIVE_BYTES.load(Ordering::Relaxed) - before;
        closers.iter().for_each(Closer::kill);
        for task in tasks {
            task.await.expect("task");
        }
        bytes
    });
    let each = bytes.expect("runs")[0] / COUNT as isize;
    println!("{each} bytes per idle connection");
    assert!(each < 1_024, "an idle connection takes {each} bytes");
}
