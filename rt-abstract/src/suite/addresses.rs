//! Binding, connecting and their errors.

use std::io::ErrorKind;

use super::tools::{TempDir, expect, free_port, listen, pair_at, run_one, send, tcp_pair};
use crate::net::{Address, Listener, Peer, Stream};
use crate::runtime::{RunOptions, Runtime};
use crate::socket::Socket;

/// Nobody listens: `ConnectionRefused` over TCP, `NotFound` for a missing socket file.
pub fn connect_refused<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let (listener, address) = listen::<R>(&free_port());
        drop(listener);
        let error = R::connect(&address).await.err().expect("nobody listens");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");

        let dir = TempDir::new::<R>().await;
        let nowhere = Address::Unix(dir.join("missing.sock"));
        let error = R::connect(&nowhere).await.err().expect("no such file");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    });
}

/// A port or a socket file that somebody listens on cannot be bound again.
pub fn bind_busy<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let dir = TempDir::new::<R>().await;
        for address in [free_port(), Address::Unix(dir.join("busy.sock"))] {
            let (_listener, address) = listen::<R>(&address);
            let error = R::bind(&address, 16).expect_err("taken");
            assert_eq!(error.kind(), ErrorKind::AddrInUse, "{address}: {error}");
        }
        let file = dir.join("a-file");
        std::fs::write(&file, b"not a socket").expect("write");
        let error = R::bind(&Address::Unix(file.clone()), 16).expect_err("a file is in the way");
        assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error}");
        assert_eq!(std::fs::read(&file).expect("read"), b"not a socket");
    });
}

/// A socket file whose listener is gone is in nobody's way.
pub fn stale_unix_socket_is_replaced<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let dir = TempDir::new::<R>().await;
        let address = Address::Unix(dir.join("stale.sock"));
        let (listener, named) = listen::<R>(&address);
        assert_eq!(named, address);
        drop(listener);
        let error = R::connect(&address).await.err().expect("nobody listens");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
        let (mut near, mut far) = pair_at::<R>(&address).await;
        send(&mut near, 0, 100, 100).await;
        expect(&mut far, 0, 100, 100).await;
    });
}

/// An accepted stream comes with its peer's address, and a listener knows its own.
pub fn accept_names_the_peer<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let (mut listener, address) = listen::<R>(&free_port());
        let Address::Tcp(bound) = address else { panic!("a TCP address is expected: {address}") };
        assert_ne!(bound.port(), 0);
        // A plain socket, so that the test knows the address that must be named.
        let near = std::net::TcpStream::connect(bound).expect("connect");
        let (_far, peer) = listener.accept().await.expect("accept");
        assert_eq!(peer, Peer::Tcp(near.local_addr().expect("address")));

        let dir = TempDir::new::<R>().await;
        let path = dir.join("peer.sock");
        let (mut listener, address) = listen::<R>(&Address::Unix(path.clone()));
        assert_eq!(address, Address::Unix(path.clone()));
        let _near = std::os::unix::net::UnixStream::connect(path).expect("connect");
        let (_far, peer) = listener.accept().await.expect("accept");
        assert_eq!(peer, Peer::Unix);
    });
}

/// TCP streams do not wait to fill a segment, on either side.
pub fn tcp_streams_have_nodelay<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let (near, far) = tcp_pair::<R>().await;
        for stream in [near, far] {
            let fd = stream.into_socket().and_then(Socket::into_fd).expect("nothing is pending");
            let nodelay = socket2::SockRef::from(&fd).tcp_nodelay();
            assert!(nodelay.expect("getsockopt"));
        }
    });
}
