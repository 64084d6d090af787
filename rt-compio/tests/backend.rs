//! What this backend promises beyond the suite.

use std::future::poll_fn;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::mpsc;
use std::task::Poll;

use rt_abstract::{
    Address, AsyncRead, Listener, Pinning, RunOptions, Runtime, Scheduler, Stream, bind,
};
use rt_compio::Compio;

fn both_drivers() -> [RunOptions; 2] {
    [false, true].map(|force_fallback| RunOptions { force_fallback, ..RunOptions::default() })
}

#[test]
fn an_idle_connection_is_small() {
    type Halves =
        (<rt_compio::Stream as Stream>::ReadHalf, <rt_compio::Stream as Stream>::WriteHalf);
    assert_eq!(size_of::<Halves>(), 2 * size_of::<usize>());
    for options in both_drivers() {
        let run = Compio::run_cores(&options, |_| async {
            let (near, _far) = std::os::unix::net::UnixStream::pair().expect("pair");
            let mut near = Compio::adopt(OwnedFd::from(near).into()).expect("adopt");
            let read = near.read_lazy(|| Vec::with_capacity(64), drop);
            size_of_val(&read)
        });
        let bytes = run.expect("runs")[0];
        assert!(bytes <= 192, "a lazy read's future takes {bytes} bytes of its task");
    }
}

#[test]
fn a_dropped_accept_loses_no_connection() {
    for options in both_drivers() {
        let run = Compio::run_cores(&options, |_| async {
            let address = Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
            let mut listener =
                Compio::listener(bind(&address, 16).expect("bind").into()).expect("fd");
            let address = listener.local_address().expect("address");
            {
                let mut accept = pin!(listener.accept());
                poll_fn(|cx| {
                    assert!(accept.as_mut().poll(cx).is_pending());
                    Poll::Ready(())
                })
                .await;
            }
            let _near = Compio::connect(&address).await.expect("connect");
            Compio::yield_now().await;
            listener.accept().await.expect("the connection is still there");
        });
        run.expect("runs");
    }
}

#[test]
fn cores_are_threads_with_names_and_their_cpu() {
    let allowed = std::thread::available_parallelism().expect("CPUs").get();
    for options in both_drivers() {
        let options = RunOptions { cores: 2, pinning: Pinning::Auto, ..options };
        let run = Compio::run_cores(&options, |_| async {
            let name = std::thread::current().name().map(str::to_owned);
            let cpus = || std::thread::available_parallelism().expect("CPUs").get();
            (name, cpus(), Compio::spawn_blocking(cpus).await.expect("blocking"))
        });
        let name = |index| Some(format!("gearbox-core-{index}"));
        let expected = [0, 1].map(|index| (name(index), 1, allowed));
        assert_eq!(run.expect("runs"), expected, "blocking work is not pinned with the core");
    }
}

#[test]
fn blocking_work_starts_without_being_awaited() {
    for options in both_drivers() {
        let run = Compio::run_cores(&options, |_| async {
            let (sender, receiver) = mpsc::channel();
            drop(Compio::spawn_blocking(move || sender.send(7)));
            while receiver.try_recv() != Ok(7) {
                Compio::yield_now().await;
            }
        });
        run.expect("runs");
    }
}

#[test]
fn unknown_ways_of_running_are_refused() {
    let run = |options: RunOptions| Compio::run_cores(&options, |_| async {});
    let stealing = RunOptions { scheduler: Scheduler::WorkStealing, ..RunOptions::default() };
    assert_eq!(run(stealing).expect_err("unknown").kind(), ErrorKind::Unsupported);
    let none = RunOptions { cores: 0, ..RunOptions::default() };
    assert_eq!(run(none).expect_err("nothing to run").kind(), ErrorKind::InvalidInput);
    let nowhere = Pinning::Cpus(vec![1_000_000]);
    let nowhere = RunOptions { cores: 2, pinning: nowhere, ..RunOptions::default() };
    run(nowhere).expect_err("no such CPU, and nobody hangs");
}
