//! All connections of a run: publishers first, then subscribers.

use std::io;

use mqtt::wire::Packet;

use super::inflight::Inflight;
use super::publish::{Flows, OUTPUT_LIMIT_BYTES};
use crate::client::Client;
use crate::event::Poller;
use crate::plan::Plan;

/// Connections by token.
pub struct Links {
    /// What they wait on.
    pub poller: Poller,
    /// Messages under way of all publishers that are connected.
    pub unacked: u64,
    /// Connections that ended during the run.
    pub closed: u64,
    /// Why the first did.
    pub first_closed: Option<String>,
    links: Vec<Link>,
    dirty: Vec<usize>,
    unanswered: usize,
}

#[derive(Default)]
struct Link {
    client: Option<Client>,
    inflight: Inflight,
    /// Flows that wait for an identifier or for room in the output.
    blocked: Vec<usize>,
    dirty: bool,
    waits_to_write: bool,
    pinged: bool,
}

impl Links {
    /// Room for the connections of `plan`.
    pub fn new(poller: Poller, plan: &Plan) -> Self {
        let count = plan.publishers + plan.members.len();
        Self {
            poller,
            unacked: 0,
            closed: 0,
            first_closed: None,
            links: (0..count).map(|_| Link::default()).collect(),
            dirty: Vec::with_capacity(count),
            unanswered: 0,
        }
    }

    /// Takes a connection. A publisher may have `unacked` messages under way.
    pub fn attach(&mut self, token: usize, client: Client, unacked: u16) -> io::Result<()> {
        self.poller.add(&client, token, false)?;
        let inflight = Inflight::new(unacked.min(client.receive_maximum));
        self.links[token] = Link { client: Some(client), inflight, ..Link::default() };
        Ok(())
    }

    /// A connection and its messages under way; `None` when it has ended.
    #[inline]
    pub fn both(&mut self, token: usize) -> Option<(&mut Client, &mut Inflight)> {
        let link = &mut self.links[token];
        Some((link.client.as_mut()?, &mut link.inflight))
    }

    /// Whether it is connected.
    #[inline]
    pub fn is_open(&self, token: usize) -> bool {
        self.links[token].client.is_some()
    }

    /// Lets it be flushed in this turn.
    #[inline]
    pub fn make_dirty(&mut self, token: usize) {
        let link = &mut self.links[token];
        if !link.dirty {
            link.dirty = true;
            self.dirty.push(token);
        }
    }

    /// Keeps a flow until the connection can take messages again.
    pub fn block(&mut self, token: usize, flow: usize) {
        self.links[token].blocked.push(flow);
    }

    /// Offers at most `count` of the flows that wait for this connection.
    pub fn unblock(&mut self, token: usize, count: usize, flows: &mut Flows) {
        let blocked = &mut self.links[token].blocked;
        for flow in blocked.drain(..count.min(blocked.len())) {
            flows.unblocked(flow);
        }
    }

    /// Writes everything that the sockets take.
    pub fn flush(&mut self, flows: &mut Flows, plan: &Plan) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for token in dirty.drain(..) {
            let link = &mut self.links[token];
            link.dirty = false;
            let Some(client) = &mut link.client else { continue };
            let result = client.flush().and_then(|done| {
                if link.waits_to_write == done {
                    link.waits_to_write = !done;
                    self.poller.set(&*client, token, !done)?;
                }
                Ok(client.backlog_bytes())
            });
            match result {
                Ok(left) if left < OUTPUT_LIMIT_BYTES / 2 => {
                    let all = link.blocked.len();
                    self.unblock(token, all, flows);
                }
                Ok(_) => {}
                Err(error) => self.close(token, &error.to_string(), flows, plan),
            }
        }
        // The list keeps its memory.
        self.dirty = dirty;
    }

    /// Ends a connection. What its publisher still has to send is not waited for.
    pub fn close(&mut self, token: usize, reason: &str, flows: &mut Flows, plan: &Plan) {
        let link = &mut self.links[token];
        let Some(client) = link.client.take() else { return };
        // Closing the descriptor takes it out of epoll if this fails.
        let _ = self.poller.remove(&client);
        self.closed += 1;
        self.unacked -= link.inflight.len() as u64;
        self.unanswered -= usize::from(link.pinged);
        link.pinged = false;
        if token < plan.publishers {
            flows.publisher_gone(token, plan);
        }
        self.first_closed.get_or_insert_with(|| format!("connection {token}: {reason}"));
    }

    /// Asks every subscriber's connection for an answer.
    pub fn ping_members(&mut self, plan: &Plan) {
        for token in plan.publishers..self.links.len() {
            if let Some(client) = &mut self.links[token].client {
                client.send(&Packet::PingReq);
                self.links[token].pinged = true;
                self.unanswered += 1;
                self.make_dirty(token);
            }
        }
    }

    /// Notes the answer.
    pub fn answered(&mut self, token: usize) {
        let link = &mut self.links[token];
        self.unanswered -= usize::from(std::mem::take(&mut link.pinged));
    }

    /// Whether all have answered.
    pub fn all_answered(&self) -> bool {
        self.unanswered == 0
    }

    /// Says goodbye to all.
    pub fn close_all(&mut self) {
        self.links.iter_mut().filter_map(|link| link.client.take()).for_each(Client::close);
    }
}
