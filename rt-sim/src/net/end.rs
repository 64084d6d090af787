//! One end of a connection.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::task::Waker;

use rand::RngExt;
use rt_abstract::Address;

use crate::config::nanos;
use crate::coverage::Fault;
use crate::world::events::Event;
use crate::world::nodes::NodeId;
use crate::world::{Seen, State};

pub(crate) type EndId = u64;

/// The first wait before a segment is sent again, and the longest, in nanoseconds.
const RETRY_NS: (u64, u64) = (200_000_000, 5_000_000_000);

#[derive(Debug)]
pub(crate) struct End {
    pub node: NodeId,
    pub local: Address,
    /// Where its peer comes from.
    pub peer_address: Address,
    /// `None` while nobody has answered yet.
    pub peer: Option<EndId>,
    /// Where its peer is, or was.
    pub peer_node: NodeId,
    /// Where it wants to go, until it is connected.
    pub target: Option<super::Name>,
    pub connected: Option<Result<(), ErrorKind>>,
    /// Arrived and not read yet.
    pub inbox: VecDeque<u8>,
    /// The peer has said that no more comes.
    pub eof: bool,
    /// Why nothing works any more.
    pub failed: Option<ErrorKind>,
    /// Shut down by a closer.
    pub killed: bool,
    /// Its program holds it no more; it lives on for what it still has to send.
    pub closed: bool,
    /// Bytes that a dropped read takes with it.
    pub swallow: usize,
    pub reader: Option<Waker>,
    pub writer: Option<Waker>,
    out: VecDeque<Segment>,
    out_bytes: usize,
    /// Nothing more will be written.
    finished: bool,
    last_at_ns: u64,
    /// An arrival is planned.
    planned: bool,
    /// Since when nothing gets through, and how long the next wait is, in nanoseconds.
    stalled: Option<(u64, u64)>,
}

#[derive(Debug)]
struct Segment {
    at_ns: u64,
    body: Body,
}

#[derive(Debug)]
enum Body {
    Bytes(Vec<u8>),
    /// No more comes.
    Fin,
    /// Nothing works any more.
    Reset,
}

impl End {
    pub fn new(node: NodeId, local: Address, peer_node: NodeId) -> Self {
        Self {
            node,
            peer_address: local.clone(),
            local,
            peer: None,
            peer_node,
            target: None,
            connected: None,
            inbox: VecDeque::new(),
            eof: false,
            failed: None,
            killed: false,
            closed: false,
            swallow: 0,
            reader: None,
            writer: None,
            out: VecDeque::new(),
            out_bytes: 0,
            finished: false,
            last_at_ns: 0,
            planned: false,
            stalled: None,
        }
    }

    fn wake(&mut self) {
        self.reader.take().into_iter().chain(self.writer.take()).for_each(Waker::wake);
    }
}

impl State {
    /// Reads from what has arrived: `None` when nothing has, and more may come.
    pub fn read_end(&mut self, id: EndId, room: usize) -> Option<io::Result<Vec<u8>>> {
        let Some(end) = self.net.ends.get_mut(&id) else {
            return Some(Err(ErrorKind::ConnectionReset.into()));
        };
        if end.inbox.is_empty() {
            if let Some(kind) = end.failed {
                return Some(Err(kind.into()));
            }
            return (end.eof || end.killed).then(|| Ok(Vec::new()));
        }
        let mut count = end.inbox.len().min(room);
        if count > 1 && self.chance_in_network(self.config.network.partial_reads) {
            count = self.random.network.random_range(1..count);
            self.count(Fault::PartialRead);
        }
        let end = self.net.ends.get_mut(&id)?;
        let bytes = end.inbox.drain(..count).collect();
        let peer = end.peer;
        self.wake_writer(peer);
        Some(Ok(bytes))
    }

    /// Whether a read would end now.
    pub fn is_readable(&self, id: EndId) -> bool {
        self.net.ends.get(&id).is_none_or(|end| {
            !end.inbox.is_empty() || end.eof || end.killed || end.failed.is_some()
        })
    }

    /// A read that was dropped takes the next bytes with it.
    pub fn swallow(&mut self, id: EndId, room: usize) {
        if let Some(end) = self.net.ends.get_mut(&id) {
            end.swallow = room;
            if !end.inbox.is_empty() {
                self.swallow_now(id);
            }
        }
    }

    fn swallow_now(&mut self, id: EndId) {
        if let Some(end) = self.net.ends.get_mut(&id) {
            let count = end.inbox.len().min(std::mem::take(&mut end.swallow));
            end.inbox.drain(..count);
            let peer = end.peer;
            self.count(Fault::SwallowedRead);
            self.wake_writer(peer);
        }
    }

    /// Takes bytes to be sent: `None` when there is no room now.
    pub fn write_end(&mut self, id: EndId, bytes: &[u8]) -> Option<io::Result<usize>> {
        let window = self.config.network.window_bytes.max(1);
        let Some(end) = self.net.ends.get(&id) else {
            return Some(Err(ErrorKind::BrokenPipe.into()));
        };
        if let Some(kind) = end.failed {
            return Some(Err(kind.into()));
        }
        if end.killed || end.finished {
            return Some(Err(ErrorKind::BrokenPipe.into()));
        }
        if bytes.is_empty() {
            return Some(Ok(0));
        }
        let unread = end.peer.and_then(|peer| self.net.ends.get(&peer));
        let held = end.out_bytes + unread.map_or(0, |peer| peer.inbox.len());
        let mut count = bytes.len().min(window.saturating_sub(held));
        if count == 0 {
            return None;
        }
        if count > 1 && self.chance_in_network(self.config.network.partial_writes) {
            count = self.random.network.random_range(1..count);
            self.count(Fault::PartialWrite);
        }
        self.send(id, Body::Bytes(bytes[..count].to_vec()));
        Some(Ok(count))
    }

    /// Says that no more comes.
    pub fn finish_end(&mut self, id: EndId) -> io::Result<()> {
        let Some(end) = self.net.ends.get_mut(&id) else {
            return Err(ErrorKind::NotConnected.into());
        };
        if let Some(kind) = end.failed {
            return Err(kind.into());
        }
        if !std::mem::replace(&mut end.finished, true) {
            self.send(id, Body::Fin);
        }
        Ok(())
    }

    /// Shuts both directions down.
    pub fn kill_end(&mut self, id: EndId) {
        let Some(end) = self.net.ends.get_mut(&id) else { return };
        end.killed = true;
        end.wake();
        if end.failed.is_none() {
            let _ = self.finish_end(id);
        }
    }

    /// Its program holds it no more. With bytes that were never read, the peer is told by a reset.
    pub fn close_end(&mut self, id: EndId) {
        let Some(end) = self.net.ends.get_mut(&id) else { return };
        if std::mem::replace(&mut end.closed, true) {
            return;
        }
        let (unread, failed) = (!end.inbox.is_empty(), end.failed.is_some());
        end.inbox.clear();
        self.saw(Seen::Closed, id, &[]);
        if failed || self.net.ends.get(&id).is_none_or(|end| end.peer.is_none()) {
            self.net.ends.remove(&id);
        } else if unread {
            if let Some(end) = self.net.ends.get_mut(&id) {
                end.out.clear();
                end.out_bytes = 0;
                end.finished = true;
            }
            self.send(id, Body::Reset);
        } else {
            let _ = self.finish_end(id);
            self.bury(id);
        }
    }

    /// Removes an end without a word.
    pub fn forget_end(&mut self, id: EndId) {
        if let Some(mut end) = self.net.ends.remove(&id) {
            end.wake();
        }
    }

    /// Nothing works any more.
    pub fn reset_end(&mut self, id: EndId, kind: ErrorKind) {
        let Some(end) = self.net.ends.get_mut(&id) else { return };
        if end.closed {
            self.net.ends.remove(&id);
            return;
        }
        end.failed.get_or_insert(kind);
        end.inbox.clear();
        end.out.clear();
        end.out_bytes = 0;
        end.wake();
    }

    fn send(&mut self, id: EndId, body: Body) {
        let Some(end) = self.net.ends.get(&id) else { return };
        let link = self.net.links.get(end.node, end.peer_node, &self.config);
        let latency = self.latency(link);
        let len = if let Body::Bytes(bytes) = &body { bytes.len() } else { 0 };
        let takes = link
            .bytes_per_second
            .map_or(0, |rate| (len as u64).saturating_mul(1_000_000_000) / rate.max(1));
        let now_ns = self.now_ns;
        let Some(end) = self.net.ends.get_mut(&id) else { return };
        let at_ns = (now_ns + latency).max(end.last_at_ns) + takes;
        end.last_at_ns = at_ns;
        end.out_bytes += len;
        end.out.push_back(Segment { at_ns, body });
        if !std::mem::replace(&mut end.planned, true) {
            self.events.plan(at_ns, Event::Arrive(id));
        }
    }

    pub fn latency(&mut self, link: crate::config::Link) -> u64 {
        let drawn = link.latency.draw(&mut self.random.network);
        if drawn > nanos(link.latency.max) {
            self.count(Fault::LatencySpike);
        }
        drawn
    }

    /// Delivers what is due; called by the event that was planned for the first segment.
    pub fn arrive(&mut self, id: EndId) {
        let now_ns = self.now_ns;
        let Some(end) = self.net.ends.get_mut(&id) else { return };
        end.planned = false;
        let Some(peer) = end.peer else { return };
        let (from, to) = (end.node, end.peer_node);
        let powered = self.machines.get(to).powered;
        let answers = !self.net.links.is_blocked(to, from);
        let known = self.net.ends.contains_key(&peer);
        if self.net.links.is_blocked(from, to) || !powered || !(known || answers) {
            return self.stall(id);
        }
        if answers {
            if let Some(end) = self.net.ends.get_mut(&id) {
                end.stalled = None;
            }
        } else {
            // It arrives, but no acknowledgement comes back.
            self.stall(id);
        }
        loop {
            let Some(end) = self.net.ends.get_mut(&id) else { return };
            let Some(segment) = end.out.front() else { break };
            if segment.at_ns > now_ns {
                let at_ns = segment.at_ns;
                if !std::mem::replace(&mut end.planned, true) {
                    self.events.plan(at_ns, Event::Arrive(id));
                }
                return;
            }
            let Some(segment) = end.out.pop_front() else { break };
            if let Body::Bytes(bytes) = &segment.body {
                end.out_bytes -= bytes.len();
            }
            self.deliver(id, peer, segment.body);
        }
        self.bury(id);
    }

    fn deliver(&mut self, from: EndId, to: EndId, body: Body) {
        let bytes = if let Body::Bytes(bytes) = &body { bytes.as_slice() } else { &[] };
        self.saw(Seen::Delivered, to, bytes);
        let Some(end) = self.net.ends.get_mut(&to) else {
            return self.answer_with_reset(from);
        };
        match body {
            Body::Bytes(bytes) => {
                if end.closed || end.failed.is_some() {
                    return self.answer_with_reset(from);
                }
                if end.killed {
                    return;
                }
                end.inbox.extend(bytes);
                if end.swallow > 0 {
                    self.swallow_now(to);
                }
                if let Some(end) = self.net.ends.get_mut(&to)
                    && !end.inbox.is_empty()
                    && let Some(reader) = end.reader.take()
                {
                    reader.wake();
                }
            }
            Body::Fin => {
                end.eof = true;
                end.reader.take().into_iter().for_each(Waker::wake);
                self.bury(to);
            }
            Body::Reset => self.reset_end(to, ErrorKind::ConnectionReset),
        }
    }

    /// The node does not know the connection, and says so.
    fn answer_with_reset(&mut self, end: EndId) {
        let Some(to) = self.net.ends.get(&end) else { return };
        let link = self.net.links.get(to.peer_node, to.node, &self.config);
        let at_ns = self.now_ns + self.latency(link);
        self.events.plan(at_ns, Event::Reset(end));
    }

    /// Nothing got through: later again, or never more.
    fn stall(&mut self, id: EndId) {
        let (now_ns, timeout) = (self.now_ns, nanos(self.config.network.timeout));
        self.count(Fault::Blocked);
        let Some(end) = self.net.ends.get_mut(&id) else { return };
        let (since, wait) = end.stalled.unwrap_or((now_ns, RETRY_NS.0));
        if now_ns - since >= timeout {
            self.count(Fault::TimedOut);
            return self.reset_end(id, ErrorKind::TimedOut);
        }
        end.stalled = Some((since, (wait * 2).min(RETRY_NS.1)));
        end.planned = true;
        self.events.plan(now_ns + wait, Event::Arrive(id));
    }

    /// Removes an end that has nothing to do any more.
    fn bury(&mut self, id: EndId) {
        let Some(end) = self.net.ends.get(&id) else { return };
        if end.closed && end.out.is_empty() {
            self.net.ends.remove(&id);
        }
    }

    fn wake_writer(&mut self, id: Option<EndId>) {
        let end = id.and_then(|id| self.net.ends.get_mut(&id));
        if let Some(writer) = end.and_then(|end| end.writer.take()) {
            writer.wake();
        }
    }
}
