//! Where io_uring is refused, the epoll driver is chosen by itself and says why.
//!
//! A seccomp filter stays for the life of a thread and all that it starts, so each case runs in a
//! process of its own: this test binary again, told by a variable to go behind the filter.

use std::io::ErrorKind;
use std::process::Command;

use rt_abstract::{
    Address, AsyncRead, AsyncWrite, Listener, OpenOptions, Probe, RunOptions, Runtime, bind,
};
use rt_abstract::{File, Stream};
use rt_monoio::Monoio;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

const BEHIND_FILTER: &str = "RT_MONOIO_BEHIND_FILTER";
const IO_URING_SETUP: i64 = 425;
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

#[test]
fn falls_back_where_forbidden() {
    behind_filter("falls_back_where_forbidden", EPERM, || {
        let Probe { driver, fallback_reason, .. } = Monoio::probe();
        assert_eq!(driver, "epoll");
        let reason = fallback_reason.expect("a fallback has a reason");
        assert!(reason.contains("io_uring_setup") && reason.contains("seccomp"), "{reason}");
        let sums = Monoio::run_cores(&RunOptions::default(), |_| echo_and_file());
        assert_eq!(sums.expect("runs on epoll"), [10]);
    });
}

#[test]
fn falls_back_where_missing() {
    behind_filter("falls_back_where_missing", ENOSYS, || {
        let reason = Monoio::probe().fallback_reason.expect("a fallback has a reason");
        assert!(reason.contains("this kernel has none"), "{reason}");
        let sums = Monoio::run_cores(&RunOptions::default(), |_| echo_and_file());
        assert_eq!(sums.expect("runs on epoll"), [10]);
    });
}

#[test]
fn a_required_io_uring_is_an_error() {
    behind_filter("a_required_io_uring_is_an_error", EPERM, || {
        let options = RunOptions { require_io_uring: true, ..RunOptions::default() };
        let error = Monoio::run_cores(&options, |_| async {}).expect_err("there is none");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = error.to_string();
        assert!(text.contains("required") && text.contains("seccomp"), "{text}");
    });
}

async fn echo_and_file() -> usize {
    let fd = bind(&Address::Tcp(([127, 0, 0, 1], 0).into()), 16).expect("bind");
    let mut listener = Monoio::listener(fd.into()).expect("listen");
    let address = listener.local_address().expect("address");
    let server = Monoio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("accept");
        let (mut reads, mut writes) = stream.into_split();
        let (read, buf) = reads.read(Vec::with_capacity(64)).await;
        assert_eq!(read.expect("read"), 5);
        writes.write_all(buf).await.0.expect("write");
    });
    let mut client = Monoio::connect(&address).await.expect("connect");
    client.write_all(b"hello".to_vec()).await.0.expect("write");
    let (read, buf) = client.read_lazy(|| Vec::with_capacity(64), drop).await;
    assert_eq!(buf.as_deref(), Some(&b"hello"[..]));
    server.await.expect("no panic");

    let path = std::env::temp_dir().join(format!("rt-monoio-refused-{}", std::process::id()));
    let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
    let file = Monoio::open(&path, options).await.expect("open");
    let written = file.write_at(b"12345".to_vec(), 0).await.0.expect("write");
    file.sync_data().await.expect("sync");
    Monoio::remove_file(&path).await.expect("remove");
    read.expect("read") + written
}

fn behind_filter(test: &str, errno: u32, body: impl FnOnce()) {
    if std::env::var_os(BEHIND_FILTER).is_some() {
        let filter: BpfProgram = SeccompFilter::new(
            [(IO_URING_SETUP, vec![])].into_iter().collect(),
            SeccompAction::Allow,
            SeccompAction::Errno(errno),
            std::env::consts::ARCH.try_into().expect("a known architecture"),
        )
        .and_then(TryInto::try_into)
        .expect("a filter");
        seccompiler::apply_filter(&filter).expect("the filter is taken");
        return body();
    }
    let child = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", test, "--nocapture"])
        .env(BEHIND_FILTER, "1")
        .output()
        .expect("the child starts");
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "behind the filter:\n{said}");
}
