//! Nodes to speak to: real ones, and such as a thread plays on a plain socket.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use meta::link::Settings;
use meta::link::hello::{self, Answer, Hello, Purpose};
use meta::link::server::serve;
use rt_abstract::{Address, Runtime, Shutdown, bind, bound_address};

use super::service::Answers;

/// The node that asks.
pub const ASKING: u64 = 1;
/// The node that answers.
pub const ANSWERING: u64 = 2;

/// Settings that find a peer soon, and that a busy machine does not make give one up.
pub fn settings(node: u64) -> Settings {
    Settings {
        ping_interval: Duration::from_millis(50),
        silence: Duration::from_secs(20),
        min_backoff: Duration::from_millis(5),
        max_backoff: Duration::from_millis(50),
        ..Settings::new("a test", node)
    }
}

/// A node that answers.
pub struct Node<R: Runtime> {
    pub address: SocketAddr,
    stop: Shutdown,
    task: R::JoinHandle<()>,
}

impl<R: Runtime> Node<R> {
    pub fn start(settings: Settings, service: Answers) -> Self {
        Self::start_at("127.0.0.1:0".parse().expect("an address"), settings, service)
    }

    pub fn start_at(address: SocketAddr, settings: Settings, service: Answers) -> Self {
        let fd = bind(&Address::Tcp(address), 16).expect("binds");
        let Ok(Address::Tcp(address)) = bound_address(&fd) else { panic!("a TCP address") };
        let listener = R::listener(fd.into()).expect("listens");
        let stop = Shutdown::new();
        let task = R::spawn(serve::<R, _>(settings, listener, service, stop.clone()));
        Self { address, stop, task }
    }

    /// Ends it with all its connections.
    pub async fn kill(self) {
        self.stop.trigger();
        self.task.await.expect("ends");
    }
}

/// A listener for a node that a thread plays.
pub fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = listener.local_addr().expect("is bound");
    (listener, address)
}

/// Connects by hand. Reads have a deadline.
pub fn dial(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connects");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a deadline");
    stream.set_nodelay(true).expect("no delay");
    stream
}

/// A right hello.
pub fn hello() -> Hello {
    Hello { cluster: "a test".into(), from: ASKING, to: ANSWERING, purpose: Purpose::Requests }
}

/// Hears a hello out and welcomes whoever it is.
pub fn welcome(stream: &mut TcpStream) {
    read_body(stream);
    let answer = hello::encode(&Answer::Welcome { node: ANSWERING }).expect("short");
    stream.write_all(&answer).expect("writes");
}

/// The body of the next hello or answer.
pub fn read_body(stream: &mut TcpStream) -> Vec<u8> {
    let mut head = [0; hello::HEAD_BYTES];
    stream.read_exact(&mut head).expect("a head");
    let mut body = vec![0; hello::body_bytes(&head).expect("a good head")];
    stream.read_exact(&mut body).expect("a body");
    body
}

/// Reads until the other side ends; gives what came.
pub fn read_rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the connection lives on: {error}"),
    }
    rest
}
