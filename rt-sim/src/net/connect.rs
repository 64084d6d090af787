//! How a connection comes about: a knock, an answer.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::task::Poll;

use rt_abstract::Address;

use super::end::{End, EndId};
use super::listener::Name;
use super::stream::Stream;
use crate::coverage::Fault;
use crate::world::events::Event;
use crate::world::nodes::NodeId;
use crate::world::tasks::here;
use crate::world::{Seen, State, with};

/// The first wait before a knock is repeated, in nanoseconds; each later one is twice as long.
const FIRST_RETRY_NS: u64 = 1_000_000_000;
/// So many knocks without an answer, and nobody is there: after about two minutes.
const MAX_KNOCKS: u32 = 7;

/// Connects to a peer from where the calling code runs.
pub(crate) async fn connect(address: Address) -> io::Result<Stream> {
    let node = here().node;
    let target = Name::resolve(node, &address)?;
    let end = with(|state| state.begin_connect(node, target))?;
    // Dropped before its end, it closes what has come about so far.
    let stream = Stream::new(end);
    poll_fn(|cx| {
        with(|state| match state.net.ends.get_mut(&end) {
            None => Poll::Ready(Err(ErrorKind::ConnectionReset.into())),
            Some(it) => match it.connected {
                Some(result) => Poll::Ready(result.map_err(io::Error::from)),
                None => {
                    it.writer = Some(cx.waker().clone());
                    Poll::Pending
                }
            },
        })
    })
    .await?;
    Ok(stream)
}

impl State {
    fn begin_connect(&mut self, node: NodeId, target: Name) -> io::Result<EndId> {
        if let Name::Path(node, path) = &target
            && !self.net.paths.contains(&(*node, path.clone()))
        {
            return Err(ErrorKind::NotFound.into());
        }
        let local = self.local_address(node, &target);
        let id = self.net.next_id();
        let peer_node = target.node();
        let mut end = End::new(node, local, peer_node);
        end.target = Some(target);
        self.net.ends.insert(id, end);
        self.plan_knock(id, node, peer_node, 0);
        Ok(id)
    }

    fn plan_knock(&mut self, id: EndId, from: NodeId, to: NodeId, attempt: u32) {
        let link = self.net.links.get(from, to, &self.config);
        let wait_ns = if attempt == 0 { 0 } else { FIRST_RETRY_NS << (attempt - 1) };
        let at_ns = self.now_ns + wait_ns + self.latency(link);
        self.events.plan(at_ns, Event::Knock(id, attempt));
    }

    /// Somebody wants to connect, or wants it again.
    pub fn knock(&mut self, id: EndId, attempt: u32) {
        let Some(end) = self.net.ends.get(&id) else { return };
        if end.connected.is_some() {
            return;
        }
        let (from, to, local) = (end.node, end.peer_node, end.local.clone());
        let Some(target) = end.target.clone() else { return };
        let powered = self.machines.get(to).powered;
        let links = &self.net.links;
        let lost = links.is_blocked(from, to) || links.is_blocked(to, from) || !powered;
        if !lost {
            let Some(&listen) = self.net.names.get(&target) else {
                self.count(Fault::Refused);
                return self.plan_answer(id, to, from, Err(ErrorKind::ConnectionRefused));
            };
            let there = self.net.next_id();
            if self.enqueue(listen, there) {
                let address = self.net.listens.get(&listen).map(|it| it.address.clone());
                let mut end = End::new(to, address.unwrap_or_else(|| local.clone()), from);
                end.peer = Some(id);
                end.peer_address = local;
                end.connected = Some(Ok(()));
                self.net.ends.insert(there, end);
                if let Some(end) = self.net.ends.get_mut(&id) {
                    end.peer = Some(there);
                }
                self.saw(Seen::Connected, there, &[]);
                return self.plan_answer(id, to, from, Ok(()));
            }
        }
        if attempt + 1 >= MAX_KNOCKS {
            self.count(Fault::TimedOut);
            return self.answer(id, Err(ErrorKind::TimedOut));
        }
        if lost {
            self.count(Fault::Blocked);
        }
        self.plan_knock(id, from, to, attempt + 1);
    }

    fn plan_answer(&mut self, id: EndId, from: NodeId, to: NodeId, result: Result<(), ErrorKind>) {
        let link = self.net.links.get(from, to, &self.config);
        let at_ns = self.now_ns + self.latency(link);
        self.events.plan(at_ns, Event::Answer(id, result));
    }

    /// The answer is there.
    pub fn answer(&mut self, id: EndId, result: Result<(), ErrorKind>) {
        let Some(end) = self.net.ends.get_mut(&id) else { return };
        end.connected = Some(result);
        if let Err(kind) = result {
            end.failed = Some(kind);
        }
        end.writer.take().into_iter().for_each(std::task::Waker::wake);
    }
}
