//! A broker without features, for two ends: its figures are the best that this generator can show
//! on a machine, and the faults that it makes on purpose must be found.
//!
//! One thread. No retained messages, wills, expiry, keep-alive, retransmission or access rules;
//! filters with wildcards are searched one after the other.

mod routes;
mod session;

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use mqtt::wire::{
    AckKind, ConnAck, Connect, Frame, Packet, Properties, Publish, QoS, ReasonCode, SubAck,
    Subscribe, Version, connect_version, decode_from_client, encode, encode_ack, encode_pingresp,
    peek,
};

use crate::client::READ_BYTES;
use crate::event::{Poller, Ready};
use crate::process;
use routes::Routes;
use session::Session;

/// The largest packet that it takes.
const MAX_PACKET_BYTES: u32 = 2 << 20;
/// Wait between two looks at the switch.
const WAIT_NS: u64 = 20_000_000;
const LISTENER: usize = 0;

/// Arguments of `peer`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Where it listens.
    #[arg(long, default_value = "127.0.0.1:1899")]
    pub listen: SocketAddr,
    /// CPU that it is confined to.
    #[arg(long)]
    pub cpu: Option<usize>,
    #[command(flatten)]
    pub faults: Faults,
}

/// Faults made on purpose; 0 is never. The deliveries of all subscribers are counted together.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Loses every Nth delivery.
    #[arg(long, default_value_t = 0)]
    pub drop_every: u64,
    /// Sends every Nth delivery twice.
    #[arg(long, default_value_t = 0)]
    pub double_every: u64,
    /// Sends every Nth delivery after the next one of its subscriber.
    #[arg(long, default_value_t = 0)]
    pub swap_every: u64,
}

/// What it did on purpose, or because a queue was full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// Deliveries, with those that were then lost.
    pub deliveries: u64,
    /// Lost ones.
    pub dropped: u64,
    /// Doubled ones.
    pub doubled: u64,
    /// Ones that came after a later one.
    pub swapped: u64,
}

/// Runs until the process is ended.
pub fn run(args: &Args) -> Result<(), String> {
    if let Some(cpu) = args.cpu {
        process::pin(cpu)?;
    }
    process::raise_descriptor_limit();
    let text = |error: io::Error| error.to_string();
    let mut peer = Peer::bind(args.listen, args.faults).map_err(text)?;
    let pid = std::process::id();
    println!("gearbox-bench peer ready mqtt={} pid={pid}", peer.address().map_err(text)?);
    peer.run(&AtomicBool::new(false)).map_err(text)?;
    Ok(())
}

/// The broker.
pub struct Peer {
    listener: TcpListener,
    poller: Poller,
    conns: Vec<Option<Conn>>,
    free: Vec<usize>,
    sessions: Vec<Session>,
    names: HashMap<String, usize>,
    routes: Routes,
    faults: Faults,
    made: Made,
    dirty: Vec<usize>,
    scratch: Vec<u8>,
}

struct Conn {
    socket: TcpStream,
    version: Version,
    session: Option<usize>,
    input: Vec<u8>,
}

impl Peer {
    /// Listens.
    pub fn bind(address: SocketAddr, faults: Faults) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        // The library's backlog of 128 is short for storms.
        rustix::net::listen(&listener, 4_096)?;
        let poller = Poller::new()?;
        poller.add(&listener, LISTENER, false)?;
        Ok(Self {
            listener,
            poller,
            conns: Vec::new(),
            free: Vec::new(),
            sessions: Vec::new(),
            names: HashMap::new(),
            routes: Routes::default(),
            faults,
            made: Made::default(),
            dirty: Vec::new(),
            scratch: vec![0; READ_BYTES],
        })
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is set.
    pub fn run(&mut self, stop: &AtomicBool) -> io::Result<Made> {
        let mut ready: Vec<Ready> = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            self.poller.wait(WAIT_NS, &mut ready)?;
            for event in &ready {
                if event.token == LISTENER {
                    self.accept()?;
                    continue;
                }
                let token = event.token - 1;
                if event.writable
                    && let Some(session) = self.session_of(token)
                {
                    self.make_dirty(session);
                }
                if event.readable && self.read(token).is_err() {
                    self.end(token);
                }
            }
            self.flush();
        }
        Ok(self.made)
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let socket = match self.listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // The client is gone already.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error),
            };
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
            let token = self.free.pop().unwrap_or(self.conns.len());
            self.poller.add(&socket, token + 1, false)?;
            let conn = Conn { socket, version: Version::V3_1_1, session: None, input: Vec::new() };
            if token == self.conns.len() {
                self.conns.push(None);
            }
            self.conns[token] = Some(conn);
        }
    }

    /// Reads once. An error of any kind ends the connection.
    fn read(&mut self, token: usize) -> Result<(), ()> {
        let Some(conn) = &mut self.conns[token] else { return Ok(()) };
        let mut scratch = std::mem::take(&mut self.scratch);
        let result = match conn.socket.read(&mut scratch) {
            Ok(0) => Err(()),
            Ok(count) if conn.input.is_empty() => self.packets(token, &scratch[..count]),
            Ok(count) => {
                let mut input = std::mem::take(&mut conn.input);
                input.extend_from_slice(&scratch[..count]);
                self.packets(token, &input)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(_) => Err(()),
        };
        self.scratch = scratch;
        result
    }

    /// Takes all complete packets and keeps the rest.
    fn packets(&mut self, token: usize, input: &[u8]) -> Result<(), ()> {
        let mut used = 0;
        while let Frame::Complete { total_bytes, .. } =
            peek(&input[used..], MAX_PACKET_BYTES).map_err(drop)?
        {
            let frame = &input[used..used + total_bytes];
            used += total_bytes;
            let Some(conn) = &mut self.conns[token] else { return Ok(()) };
            if conn.session.is_none()
                && let Some(version) = connect_version(frame)
            {
                conn.version = version;
            }
            let packet = decode_from_client(frame, conn.version).map_err(drop)?;
            self.take(token, &packet, frame)?;
        }
        if let Some(conn) = &mut self.conns[token] {
            conn.input.extend_from_slice(&input[used..]);
        }
        Ok(())
    }

    fn take(&mut self, token: usize, packet: &Packet<'_>, frame: &[u8]) -> Result<(), ()> {
        if let Packet::Connect(connect) = packet {
            return self.connect(token, connect);
        }
        let session = self.session_of(token).ok_or(())?;
        let output = &mut self.sessions[session].output;
        match packet {
            Packet::Publish(publish) => {
                if let Some(id) = publish.packet_id {
                    let exactly = publish.qos == QoS::ExactlyOnce;
                    let kind = if exactly { AckKind::PubRec } else { AckKind::PubAck };
                    encode_ack(output, Version::V3_1_1, kind, id, ReasonCode::Success);
                    self.make_dirty(session);
                }
                self.publish(publish, frame);
                return Ok(());
            }
            Packet::Ack(ack) => {
                let answer = match ack.kind {
                    AckKind::PubRel => AckKind::PubComp,
                    AckKind::PubRec => AckKind::PubRel,
                    AckKind::PubAck | AckKind::PubComp => return Ok(()),
                };
                encode_ack(output, Version::V3_1_1, answer, ack.packet_id, ReasonCode::Success);
            }
            Packet::Subscribe(subscribe) => self.subscribe(session, subscribe),
            Packet::PingReq => encode_pingresp(output),
            // DISCONNECT, and what it has no answer for.
            _ => return Err(()),
        }
        self.make_dirty(session);
        Ok(())
    }

    fn connect(&mut self, token: usize, connect: &Connect<'_>) -> Result<(), ()> {
        let Some(conn) = &mut self.conns[token] else { return Err(()) };
        if conn.session.is_some() {
            return Err(());
        }
        let known = self.names.get(connect.client_id).copied();
        if let Some(other) = known.and_then(|session| self.sessions[session].conn) {
            self.end(other);
        }
        let known = self.names.get(connect.client_id).copied();
        if let Some(session) = known.filter(|_| connect.clean_start) {
            self.routes.remove_session(session);
            self.sessions[session].reset();
        }
        let session = known.unwrap_or_else(|| {
            self.sessions.push(Session::default());
            self.names.insert(connect.client_id.to_owned(), self.sessions.len() - 1);
            self.sessions.len() - 1
        });
        let present = known.is_some() && !connect.clean_start;
        let it = &mut self.sessions[session];
        it.conn = Some(token);
        it.version = connect.version;
        it.durable = match connect.version {
            Version::V5 => connect.properties.session_expiry_interval_s().is_some_and(|s| s > 0),
            _ => !connect.clean_start,
        };
        let connack = Packet::ConnAck(ConnAck {
            session_present: present,
            reason: ReasonCode::Success,
            properties: Properties::EMPTY,
        });
        // Before what has been waiting.
        let mut output = Vec::new();
        encode(&connack, connect.version, &mut output);
        output.append(&mut it.output);
        it.output = output;
        if let Some(conn) = &mut self.conns[token] {
            conn.session = Some(session);
        }
        self.make_dirty(session);
        Ok(())
    }

    fn subscribe(&mut self, session: usize, subscribe: &Subscribe<'_>) {
        let codes: Vec<u8> = subscribe
            .filters
            .iter()
            .map(|(filter, options)| match self.routes.add(filter, session, options.qos) {
                Ok(()) => options.qos as u8,
                Err(()) => 0x80,
            })
            .collect();
        let it = &mut self.sessions[session];
        let packet_id = subscribe.packet_id;
        let suback = SubAck { packet_id, properties: Properties::EMPTY, codes: &codes };
        encode(&Packet::SubAck(suback), it.version, &mut it.output);
    }

    fn publish(&mut self, publish: &Publish<'_>, frame: &[u8]) {
        let Self { routes, sessions, faults, made, dirty, .. } = self;
        routes.find(publish.topic, |session, granted| {
            made.deliveries += 1;
            let every = |n: u64| n > 0 && made.deliveries.is_multiple_of(n);
            let it = &mut sessions[session];
            if every(faults.drop_every) || it.is_full() {
                made.dropped += 1;
                return;
            }
            let held = it.held.take();
            if every(faults.swap_every) && held.is_none() {
                let mut later = Vec::new();
                it.write(publish, granted, frame, &mut later);
                it.held = Some(later);
                return;
            }
            let mut output = std::mem::take(&mut it.output);
            it.write(publish, granted, frame, &mut output);
            if every(faults.double_every) {
                it.write(publish, granted, frame, &mut output);
                made.doubled += 1;
            }
            if let Some(held) = held {
                output.extend_from_slice(&held);
                made.swapped += 1;
            }
            it.output = output;
            if !it.dirty {
                it.dirty = true;
                dirty.push(session);
            }
        });
    }

    fn flush(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for session in dirty.drain(..) {
            let it = &mut self.sessions[session];
            it.dirty = false;
            let Some(token) = it.conn else { continue };
            let Some(conn) = &self.conns[token] else { continue };
            let waited = it.waits_to_write;
            let result = it.flush(&conn.socket).and_then(|()| {
                if it.waits_to_write != waited {
                    self.poller.set(&conn.socket, token + 1, it.waits_to_write)?;
                }
                Ok(())
            });
            if result.is_err() {
                self.end(token);
            }
        }
        self.dirty = dirty;
    }

    /// Ends a connection, and its session if that does not outlive it.
    fn end(&mut self, token: usize) {
        let Some(conn) = self.conns[token].take() else { return };
        // Closing takes it out as well.
        let _ = self.poller.remove(&conn.socket);
        self.free.push(token);
        let Some(session) = conn.session else { return };
        let it = &mut self.sessions[session];
        it.conn = None;
        self.made.dropped += u64::from(it.held.take().is_some());
        it.forget_output();
        if !it.durable {
            self.routes.remove_session(session);
        }
    }

    fn session_of(&self, token: usize) -> Option<usize> {
        self.conns.get(token)?.as_ref()?.session
    }

    fn make_dirty(&mut self, session: usize) {
        let it = &mut self.sessions[session];
        if !it.dirty {
            it.dirty = true;
            self.dirty.push(session);
        }
    }
}
