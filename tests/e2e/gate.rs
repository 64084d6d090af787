//! A link that can be cut in one direction.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A relay before a node's cluster address, which can stop to let anything in.
pub struct Gate {
    /// Where other nodes reach it.
    pub front: SocketAddr,
    /// Where it listens.
    pub back: SocketAddr,
    shut: Arc<AtomicBool>,
}

impl Gate {
    /// Before a node that listens, or will, at `back`.
    pub fn new(back: SocketAddr) -> Self {
        let listener = TcpListener::bind((back.ip(), 0)).expect("an address of this test's own");
        let front = listener.local_addr().expect("bound");
        let shut = Arc::new(AtomicBool::new(false));
        let gate = Self { front, back, shut: shut.clone() };
        // Ends with the process: it waits in accept.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let Ok(node) = TcpStream::connect(back) else { continue };
                let _ = (stream.set_nodelay(true), node.set_nodelay(true));
                let copy = |from: &TcpStream, to: &TcpStream, shut: Option<Arc<AtomicBool>>| {
                    let (mut from, mut to) =
                        (from.try_clone().expect("cloned"), to.try_clone().expect("cloned"));
                    std::thread::spawn(move || {
                        let mut bytes = [0; 16 * 1024];
                        while let Ok(read @ 1..) = from.read(&mut bytes) {
                            while shut.as_ref().is_some_and(|shut| shut.load(Ordering::SeqCst)) {
                                std::thread::sleep(Duration::from_millis(2));
                            }
                            if to.write_all(&bytes[..read]).is_err() {
                                break;
                            }
                        }
                        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                    });
                };
                copy(&stream, &node, Some(shut.clone()));
                copy(&node, &stream, None);
            }
        });
        gate
    }

    /// Stops to let anything in, or goes on.
    pub fn shut(&self, shut: bool) {
        self.shut.store(shut, Ordering::SeqCst);
    }
}
