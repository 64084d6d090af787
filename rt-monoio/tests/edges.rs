//! What is particular to monoio: its traps, and what this backend promises beyond the suite.

use std::cell::Cell;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use rt_abstract::{
    Address, AsyncRead, AsyncWrite, Listener, Pinning, RunOptions, Runtime, Scheduler, Socket,
    Stream, bind,
};
use rt_monoio::{Monoio, ReadHalf, WriteHalf};

fn on_both_drivers(test: impl AsyncFn() + Copy + Send + Sync + 'static) {
    for force_fallback in [false, true] {
        let options = RunOptions { force_fallback, ..RunOptions::default() };
        Monoio::run_cores(&options, move |_| async move { test().await }).expect("runs");
    }
}

async fn pair() -> (rt_monoio::Stream, rt_monoio::Stream) {
    let fd = bind(&Address::Tcp(([127, 0, 0, 1], 0).into()), 16).expect("bind");
    let mut listener = Monoio::listener(fd.into()).expect("listen");
    let address = listener.local_address().expect("address");
    let near = Monoio::connect(&address).await.expect("connect");
    let (far, _) = listener.accept().await.expect("accept");
    (near, far)
}

#[test]
fn halves_are_one_pointer() {
    assert_eq!(size_of::<ReadHalf>(), size_of::<usize>());
    assert_eq!(size_of::<WriteHalf>(), size_of::<usize>());
}

#[test]
fn an_idle_connection_takes_little_memory() {
    fn size_of_future<F: Future>(_: &F) -> usize {
        size_of::<F>()
    }
    on_both_drivers(async || {
        let (near, _far) = pair().await;
        let (mut reads, _writes) = near.into_split();
        let read = reads.read_lazy(Vec::<u8>::new, drop);
        assert!(size_of_future(&read) <= 256, "{}", size_of_future(&read));
    });
}

#[test]
fn both_ends_have_nodelay_and_close_on_exec() {
    on_both_drivers(async || {
        let (near, far) = pair().await;
        for stream in [near, far] {
            let fd = stream.into_socket().and_then(Socket::into_fd).expect("not shared");
            assert!(socket2::SockRef::from(&fd).tcp_nodelay().expect("getsockopt"));
            let flags = rustix::io::fcntl_getfd(fd.as_fd()).expect("fcntl");
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
    });
}

#[test]
fn writing_to_a_closed_peer_is_an_error() {
    on_both_drivers(async || {
        for vectored in [false, true] {
            let (mut near, far) = pair().await;
            drop(far);
            let error = loop {
                let result = match vectored {
                    false => near.write_all(vec![1; 1000]).await.0,
                    true => near.writev_all(vec![vec![1; 10], vec![2; 990]]).await.0,
                };
                if let Err(error) = result {
                    break error;
                }
            };
            let broken = matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset);
            assert!(broken, "{error}");
        }
    });
}

#[test]
fn a_task_that_only_yields_starves_neither_timers_nor_sockets() {
    on_both_drivers(async || {
        let stop = Rc::new(Cell::new(false));
        let spinner = Monoio::spawn({
            let stop = stop.clone();
            async move {
                while !stop.get() {
                    Monoio::yield_now().await;
                }
            }
        });
        Monoio::sleep(Duration::from_millis(5)).await;
        let (mut near, mut far) = pair().await;
        near.write_all(b"x".to_vec()).await.0.expect("write");
        assert_eq!(far.read(Vec::with_capacity(8)).await.0.expect("read"), 1);
        Monoio::spawn_blocking(|| ()).await.expect("no panic");
        stop.set(true);
        spinner.await.expect("no panic");
    });
}

#[test]
fn a_dropped_wait_leaves_the_descriptor_free_and_a_dropped_read_does_not() {
    on_both_drivers(async || {
        let (mut near, mut far) = pair().await;
        poll_once(near.read_lazy(|| Vec::with_capacity(8), drop)).await;
        let fd = near.into_socket().expect("only a wait was dropped");
        let mut near = Monoio::adopt(fd).expect("adopt");
        far.write_all(b"x".to_vec()).await.0.expect("write");
        assert_eq!(near.read(Vec::with_capacity(8)).await.0.expect("read"), 1);

        poll_once(near.read(Vec::with_capacity(8))).await;
        let error = near.into_socket().expect_err("a read was dropped");
        assert_eq!(error.kind(), ErrorKind::ResourceBusy);
    });
}

#[test]
fn a_port_is_free_as_soon_as_its_listener_is_dropped() {
    on_both_drivers(async || {
        let fd = bind(&Address::Tcp(([127, 0, 0, 1], 0).into()), 16).expect("bind");
        let listener = Monoio::listener(fd.into()).expect("listen");
        let address = listener.local_address().expect("address");
        drop(listener);
        bind(&address, 16).expect("free at once");
    });
}

#[test]
fn a_listener_that_is_dropped_leaves_its_duplicates_listening() {
    on_both_drivers(async || {
        let fd = bind(&Address::Tcp(([127, 0, 0, 1], 0).into()), 16).expect("bind");
        let other = fd.try_clone().expect("dup");
        let mut listener = Monoio::listener(fd.into()).expect("listen");
        let address = listener.local_address().expect("address");
        poll_once(listener.accept()).await;
        drop(listener);
        let mut other = Monoio::listener(other.into()).expect("listen");
        let _near = Monoio::connect(&address).await.expect("connect");
        other.accept().await.expect("accept");
    });
}

#[test]
fn a_full_queue_of_blocking_work_makes_callers_wait() {
    on_both_drivers(async || {
        let jobs: Vec<_> =
            (0..3000u64).map(|n| Monoio::spawn(Monoio::spawn_blocking(move || n))).collect();
        let mut sum = 0;
        for job in jobs {
            sum += job.await.expect("no panic").expect("no panic");
        }
        assert_eq!(sum, 3000 * 2999 / 2);
    });
}

#[test]
fn what_monoio_cannot_do_is_refused() {
    let stealing = RunOptions { scheduler: Scheduler::WorkStealing, ..RunOptions::default() };
    let both = RunOptions { require_io_uring: true, force_fallback: true, ..RunOptions::default() };
    for options in [stealing, both] {
        let error = Monoio::run_cores(&options, |_| async {}).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
    let none = RunOptions { cores: 0, ..RunOptions::default() };
    let error = Monoio::run_cores(&none, |_| async {}).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_core_that_cannot_start_stops_all() {
    let pinning = Pinning::Cpus(vec![0, 100_000]);
    for force_fallback in [false, true] {
        let pinning = pinning.clone();
        let options = RunOptions { cores: 2, pinning, force_fallback, ..RunOptions::default() };
        let error = Monoio::run_cores(&options, |_| async { panic!("must not run") });
        assert_eq!(error.expect_err("no such CPU").kind(), ErrorKind::InvalidInput);
    }
}

/// Polls a future once, or until it is ready, and drops it.
async fn poll_once<F: Future>(future: F) {
    let mut future = Box::pin(future);
    let pending =
        std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_pending()));
    assert!(pending.await, "nothing was there to be ready for");
}
