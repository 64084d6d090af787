//! What only a process of its own can show: io_uring refused by a seccomp filter, which cannot be
//! taken off again, and SIGPIPE in its default disposition.
//!
//! Each case runs in a child: this very test binary, asked for one test and told by a variable to
//! play the child.
#![allow(unsafe_code)]

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::process::Command;

use rt_abstract::{
    Address, AsyncRead, AsyncWrite, Closer, Listener, RunOptions, Runtime, Stream, bind,
};
use rt_compio::Compio;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

const CHILD: &str = "RT_COMPIO_CHILD";
/// `io_uring_setup`, the same number on all architectures.
const IO_URING_SETUP: i64 = 425;
const EPERM: u32 = 1;

#[test]
fn falls_back_with_a_reason() {
    in_child("falls_back_with_a_reason", || {
        refuse_io_uring();
        let probe = Compio::probe();
        assert_eq!(probe.driver, "epoll");
        assert!(probe.completion, "the backend could, were it allowed");
        let reason = probe.fallback_reason.expect("a fallback has a reason");
        assert!(reason.contains("seccomp"), "{reason}");
        let options = RunOptions { cores: 2, ..RunOptions::default() };
        let echoed = Compio::run_cores(&options, |_| echo()).expect("runs without io_uring");
        assert_eq!(echoed, [true, true]);
    });
}

#[test]
fn a_required_ring_is_an_error() {
    in_child("a_required_ring_is_an_error", || {
        refuse_io_uring();
        let options = RunOptions { require_io_uring: true, ..RunOptions::default() };
        let error = Compio::run_cores(&options, |_| async {}).expect_err("io_uring is refused");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = error.to_string();
        assert!(text.contains("required") && text.contains("seccomp"), "{text}");
    });
}

#[test]
fn writing_to_a_closed_peer_is_an_error_and_no_signal() {
    in_child("writing_to_a_closed_peer_is_an_error_and_no_signal", || {
        // SAFETY: sets the disposition that programs not in Rust have; installs no handler.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        for force_fallback in [false, true] {
            let options = RunOptions { force_fallback, ..RunOptions::default() };
            Compio::run_cores(&options, |_| async {
                let (near, far) = std::os::unix::net::UnixStream::pair().expect("pair");
                let mut near = Compio::adopt(OwnedFd::from(near).into()).expect("adopt");
                drop(far);
                let errors = [
                    near.write(&b"lost"[..]).await.0.expect_err("no peer"),
                    near.writev_all(vec![&b"lost"[..]; 2]).await.0.expect_err("no peer"),
                ];
                assert!(errors.iter().all(|error| error.kind() == ErrorKind::BrokenPipe));
            })
            .expect("no signal");
        }
    });
}

/// Runs `child` in a process of its own.
fn in_child(test: &str, child: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        child();
        return;
    }
    let output = Command::new(std::env::current_exe().expect("the test binary"))
        .args([test, "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .expect("the child starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the child failed ({}):\n{said}", output.status);
}

fn refuse_io_uring() {
    let arch = std::env::consts::ARCH.try_into().expect("an architecture with seccomp");
    let filter = SeccompFilter::new(
        [(IO_URING_SETUP, Vec::new())].into(),
        SeccompAction::Allow,
        SeccompAction::Errno(EPERM),
        arch,
    );
    let program: BpfProgram = filter.expect("a filter").try_into().expect("a program");
    seccompiler::apply_filter_all_threads(&program).expect("the kernel takes it");
}

async fn echo() -> bool {
    let address = Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let mut listener =
        Compio::listener(bind(&address, 16).expect("bind").into()).expect("listener");
    let address = listener.local_address().expect("address");
    let server = Compio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("accept");
        let (result, buf) = stream.read_lazy(|| Vec::with_capacity(64), drop).await;
        result.expect("read");
        stream.write_all(buf.expect("a buffer")).await.0.expect("write");
        stream.closer().kill();
    });
    let mut stream = Compio::connect(&address).await.expect("connect");
    stream.write_all(&b"over epoll"[..]).await.0.expect("write");
    let (result, buf) = stream.read(Vec::with_capacity(64)).await;
    result.expect("read");
    server.await.expect("server");
    buf == b"over epoll"
}
