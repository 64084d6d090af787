//! Listening sockets.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Poll, Waker};

use rt_abstract::{Address, Peer, Simulated, Socket};

use super::end::EndId;
use super::stream::Stream;
use crate::world::nodes::NodeId;
use crate::world::tasks::here;
use crate::world::{State, try_with, with};

pub(crate) type ListenId = u64;

/// Where somebody listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Name {
    Port(NodeId, u16),
    Path(NodeId, PathBuf),
}

#[derive(Debug)]
pub(crate) struct Listen {
    pub name: Name,
    pub address: Address,
    /// Connected, and not accepted yet.
    pub backlog: VecDeque<EndId>,
    pub capacity: usize,
    pub killed: bool,
    waiting: Vec<Waker>,
}

/// A listening socket; the last one that is dropped closes it.
#[derive(Debug)]
pub(crate) struct ListenGuard {
    id: ListenId,
}

/// Accepts streams. All listeners on one socket accept from one queue.
#[derive(Debug)]
pub struct Listener {
    guard: Arc<ListenGuard>,
}

/// Ends a listening socket, for all who accept from it.
#[derive(Clone, Debug)]
pub struct ListenerCloser {
    guard: Arc<ListenGuard>,
}

impl Name {
    pub fn node(&self) -> NodeId {
        match self {
            Self::Port(node, _) | Self::Path(node, _) => *node,
        }
    }

    /// Where an address leads from a node.
    pub fn resolve(from: NodeId, address: &Address) -> io::Result<Self> {
        match address {
            Address::Unix(path) => Ok(Self::Path(from, path.clone())),
            Address::Tcp(tcp) if tcp.ip().is_loopback() || tcp.ip().is_unspecified() => {
                Ok(Self::Port(from, tcp.port()))
            }
            Address::Tcp(tcp) => match tcp.ip() {
                IpAddr::V4(ip) => NodeId::of(ip).map(|node| Self::Port(node, tcp.port())),
                IpAddr::V6(_) => None,
            }
            .ok_or_else(|| ErrorKind::NetworkUnreachable.into()),
        }
    }
}

/// Binds and listens where the calling code runs.
pub(crate) fn bind(address: &Address, backlog: i32) -> io::Result<Socket> {
    let node = here().node;
    with(|state| state.listen(node, address, backlog)).map(|id| {
        let guard = Arc::new(ListenGuard { id });
        Socket::simulated(guard)
    })
}

/// Takes over a listening socket.
pub(crate) fn listener(socket: Socket) -> io::Result<Listener> {
    Ok(Listener { guard: socket.into_simulated()? })
}

impl rt_abstract::Listener for Listener {
    type Stream = Stream;
    type Closer = ListenerCloser;

    async fn accept(&mut self) -> io::Result<(Stream, Peer)> {
        let id = self.guard.id;
        poll_fn(|cx| {
            with(|state| {
                let accepted = state.accept(id);
                match (accepted, state.net.listens.get_mut(&id)) {
                    (None, Some(listen)) => {
                        listen.waiting.push(cx.waker().clone());
                        Poll::Pending
                    }
                    (Some(accepted), _) => Poll::Ready(accepted),
                    (None, None) => Poll::Ready(Err(ErrorKind::InvalidInput.into())),
                }
            })
        })
        .await
        .map(|(end, peer)| (Stream::new(end), peer))
    }

    fn closer(&self) -> ListenerCloser {
        ListenerCloser { guard: self.guard.clone() }
    }

    fn local_address(&self) -> io::Result<Address> {
        self.guard.local_address()
    }
}

impl rt_abstract::Closer for ListenerCloser {
    fn kill(&self) {
        with(|state| state.kill_listener(self.guard.id));
    }
}

impl Simulated for ListenGuard {
    fn local_address(&self) -> io::Result<Address> {
        with(|state| state.net.listens.get(&self.id).map(|listen| listen.address.clone()))
            .ok_or_else(|| ErrorKind::NotConnected.into())
    }
}

impl Drop for ListenGuard {
    fn drop(&mut self) {
        try_with(|state| state.unlisten(self.id));
    }
}

impl State {
    fn listen(&mut self, node: NodeId, address: &Address, backlog: i32) -> io::Result<ListenId> {
        let mut address = address.clone();
        if let Address::Tcp(tcp) = &mut address {
            let own = tcp.ip().is_loopback()
                || tcp.ip().is_unspecified()
                || tcp.ip() == IpAddr::V4(node.ip());
            if !own {
                return Err(ErrorKind::AddrNotAvailable.into());
            }
            if tcp.port() == 0 {
                tcp.set_port(self.free_port(node));
            }
        }
        let name = Name::resolve(node, &address)?;
        if self.net.names.contains_key(&name) {
            return Err(ErrorKind::AddrInUse.into());
        }
        if let Name::Path(_, path) = &name {
            self.net.paths.insert((node, path.clone()));
        }
        let id = self.net.next_id();
        let listen = Listen {
            name: name.clone(),
            address,
            backlog: VecDeque::new(),
            capacity: usize::try_from(backlog).unwrap_or(0).max(1),
            killed: false,
            waiting: Vec::new(),
        };
        self.net.listens.insert(id, listen);
        self.net.names.insert(name, id);
        Ok(id)
    }

    /// A port that nobody listens on.
    pub fn free_port(&mut self, node: NodeId) -> u16 {
        loop {
            let machine = self.machines.get(node);
            let port = machine.next_port;
            machine.next_port = if port == u16::MAX { 32_768 } else { port + 1 };
            if !self.net.names.contains_key(&Name::Port(node, port)) {
                return port;
            }
        }
    }

    /// Where somebody comes from who connects from a node.
    pub fn local_address(&mut self, node: NodeId, to: &Name) -> Address {
        match to {
            Name::Path(_, path) => Address::Unix(path.clone()),
            Name::Port(..) => {
                let port = self.free_port(node);
                Address::Tcp(SocketAddr::from((node.ip(), port)))
            }
        }
    }

    fn accept(&mut self, id: ListenId) -> Option<io::Result<(EndId, Peer)>> {
        let listen = self.net.listens.get_mut(&id)?;
        if listen.killed {
            return Some(Err(ErrorKind::InvalidInput.into()));
        }
        let end = listen.backlog.pop_front()?;
        let peer = match self.net.ends.get(&end).map(|end| &end.peer_address) {
            Some(Address::Tcp(address)) => Peer::Tcp(*address),
            _ => Peer::Unix,
        };
        Some(Ok((end, peer)))
    }

    /// A new connection waits; `false` when there is no room.
    pub fn enqueue(&mut self, id: ListenId, end: EndId) -> bool {
        let Some(listen) = self.net.listens.get_mut(&id) else { return false };
        if listen.backlog.len() >= listen.capacity {
            return false;
        }
        listen.backlog.push_back(end);
        listen.waiting.drain(..).for_each(Waker::wake);
        true
    }

    fn kill_listener(&mut self, id: ListenId) {
        let Some(listen) = self.net.listens.get_mut(&id) else { return };
        listen.killed = true;
        listen.waiting.drain(..).for_each(Waker::wake);
        let (name, backlog) = (listen.name.clone(), std::mem::take(&mut listen.backlog));
        self.net.names.remove(&name);
        for end in backlog {
            self.close_end(end);
        }
    }

    pub fn unlisten(&mut self, id: ListenId) {
        self.kill_listener(id);
        self.net.listens.remove(&id);
    }
}
