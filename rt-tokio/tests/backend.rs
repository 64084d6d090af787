//! What only this backend promises: its schedulers, its refusals, its sizes.

use std::io::ErrorKind;
use std::mem::{size_of, size_of_val};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rt_abstract::{AsyncRead, RunOptions, Runtime, Scheduler, Stream, if_single_threaded};
use rt_tokio::{ReadHalf, Tokio, WriteHalf};

fn thread_name() -> String {
    std::thread::current().name().unwrap_or_default().to_owned()
}

#[test]
fn cores_have_named_threads() {
    let options = RunOptions { cores: 2, ..RunOptions::default() };
    let names = Tokio::run_cores(&options, |_| async { thread_name() }).expect("runs");
    assert_eq!(names, ["gearbox-core-0", "gearbox-core-1"]);
}

#[test]
fn pinned_cores_run_where_they_were_put() {
    use rt_abstract::Pinning;
    let options = RunOptions { cores: 2, pinning: Pinning::Auto, ..RunOptions::default() };
    let allowed = Tokio::run_cores(&options, |_| async {
        rustix::thread::sched_getaffinity(None).expect("affinity").count()
    });
    assert_eq!(allowed.expect("runs"), [1, 1]);
    let options = RunOptions { pinning: Pinning::Cpus(vec![usize::MAX]), ..options };
    let error = Tokio::run_cores(&options, |_| async {}).expect_err("no such CPU");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn io_uring_is_refused() {
    let options = RunOptions { require_io_uring: true, ..RunOptions::default() };
    let error = Tokio::run_cores(&options, |_| async {}).expect_err("epoll only");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let options = RunOptions { cores: 0, ..RunOptions::default() };
    let error = Tokio::run_cores(&options, |_| async {}).expect_err("nothing to run");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn the_build_decides_about_work_stealing() {
    let options =
        RunOptions { cores: 2, scheduler: Scheduler::WorkStealing, ..RunOptions::default() };
    let ran = Tokio::run_cores(&options, |_| async { thread_name() });
    let probe = Tokio::probe();
    assert_eq!((probe.driver, probe.completion), ("epoll", false));
    if_single_threaded!({
        let error = ran.expect_err("futures are local");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(probe.schedulers, [Scheduler::ThreadPerCore]);
    } else {
        for name in ran.expect("runs") {
            assert!(["gearbox-core-0", "gearbox-core-1"].contains(&&*name), "{name}");
        }
        assert_eq!(probe.schedulers, [Scheduler::ThreadPerCore, Scheduler::WorkStealing]);
    });
}

#[test]
fn an_idle_connection_is_small() {
    assert_eq!(size_of::<ReadHalf>(), size_of::<usize>());
    assert_eq!(size_of::<WriteHalf>(), size_of::<usize>());
    let sizes = Tokio::run_cores(&RunOptions::default(), |_| async {
        let (near, _far) = UnixStream::pair().expect("pair");
        let (mut read, _write) =
            Tokio::adopt(OwnedFd::from(near).into()).expect("adopt").into_split();
        let plain = size_of_val(&read.read(Vec::with_capacity(1)));
        let lazy = size_of_val(&read.read_lazy(Vec::<u8>::new, drop));
        (plain, lazy)
    });
    let (plain, lazy) = sizes.expect("runs")[0];
    // A pointer to the socket; the plain read also holds its buffer, once.
    assert!(plain <= 4 * size_of::<usize>(), "a read's future has {plain} bytes");
    assert!(lazy <= 2 * size_of::<usize>(), "a lazy read's future has {lazy} bytes");
}
