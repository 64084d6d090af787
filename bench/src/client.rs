//! One MQTT connection without blocking and without a state machine: bytes in, packets out, and the
//! reverse. Its buffers keep their size, so a message costs no allocation.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use mqtt::wire::{
    AckKind, Connect, Frame, Packet, PacketId, Properties, PropertyBuf, PublishHead, QoS,
    ReasonCode, Version, decode_from_server, encode, encode_ack, encode_publish_head, peek,
};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use crate::payload::{MAX_PAYLOAD_BYTES, STAMP_BYTES, Stamp};

/// Bytes read at once.
pub const READ_BYTES: usize = 256 << 10;
/// The largest packet taken: the largest payload, topic and properties.
const MAX_PACKET_BYTES: u32 = MAX_PAYLOAD_BYTES as u32 + (256 << 10);

/// The broker, and how to come in.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its address.
    pub address: SocketAddr,
    /// MQTT version.
    pub version: Version,
    /// User name.
    pub username: Option<String>,
    /// Password.
    pub password: Option<String>,
    /// Local addresses, taken in turn. One address has some 28 000 free ports.
    pub sources: Vec<IpAddr>,
    /// How long one client may take to connect and subscribe.
    pub timeout_ns: u64,
}

/// A connection. Its output is bounded by who fills it (see `traffic`), its input by the largest
/// packet.
pub struct Client {
    socket: OwnedFd,
    version: Version,
    /// Unacknowledged messages that the broker takes [MQTT-3.3.4-7].
    pub receive_maximum: u16,
    output: Vec<u8>,
    written: usize,
    input: Vec<u8>,
}

impl Client {
    /// Begins to connect; the socket gets writable when it is.
    pub fn connect(target: &Target, number: usize) -> io::Result<Self> {
        let family = match target.address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        if !target.sources.is_empty() {
            let source = target.sources[number % target.sources.len()];
            net::bind(&socket, &SocketAddr::new(source, 0))?;
        }
        match net::connect(&socket, &target.address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Self {
            socket,
            version: target.version,
            receive_maximum: u16::MAX,
            output: Vec::new(),
            written: 0,
            input: Vec::new(),
        })
    }

    /// Whether connecting has gone well; to be asked once it is writable.
    pub fn connected(&self) -> io::Result<()> {
        Ok(sockopt::socket_error(&self.socket)??)
    }

    /// Appends CONNECT. `expiry_s` is how long the session outlives the connection.
    pub fn greet(&mut self, target: &Target, client_id: &str, clean: bool, expiry_s: u32) {
        let mut properties = PropertyBuf::new();
        if self.version == Version::V5 && expiry_s > 0 {
            properties.session_expiry_interval_s(expiry_s);
        }
        let connect = Packet::Connect(Connect {
            version: self.version,
            clean_start: clean,
            keep_alive_s: 0,
            client_id,
            will: None,
            username: target.username.as_deref(),
            password: target.password.as_deref().map(str::as_bytes),
            properties: properties.as_properties(),
        });
        self.send(&connect);
    }

    /// Appends any packet.
    pub fn send(&mut self, packet: &Packet<'_>) {
        encode(packet, self.version, &mut self.output);
    }

    /// Appends a stamped PUBLISH: the stamp, then `filler` up to `size`.
    #[inline]
    pub fn publish(
        &mut self,
        topic: &str,
        qos: QoS,
        packet_id: Option<PacketId>,
        stamp: Stamp,
        size: usize,
        filler: &[u8],
    ) {
        let head = PublishHead {
            dup: false,
            qos,
            retain: false,
            topic,
            packet_id,
            message_expiry_s: None,
            topic_alias: None,
            subscription_ids: &[],
            forwarded: &[],
            payload_len: size,
        };
        encode_publish_head(&mut self.output, self.version, &head);
        self.output.extend_from_slice(&stamp.to_bytes());
        self.output.extend_from_slice(&filler[..size - STAMP_BYTES]);
    }

    /// Bytes that wait to be written.
    pub fn backlog_bytes(&self) -> usize {
        self.output.len() - self.written
    }

    /// Writes once; true when nothing is left.
    pub fn flush(&mut self) -> io::Result<bool> {
        if self.output.is_empty() {
            return Ok(true);
        }
        match rustix::io::write(&self.socket, &self.output[self.written..]) {
            Ok(written) => self.written += written,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let done = self.written == self.output.len();
        if done {
            self.output.clear();
            self.written = 0;
        } else if self.written > self.output.len() / 2 {
            self.output.drain(..self.written);
            self.written = 0;
        }
        Ok(done)
    }

    /// Reads once and hands every complete packet to `found`, until that breaks off; the rest is
    /// kept for [`pending`](Self::pending). `found` may append answers to this client's output.
    pub fn read(
        &mut self,
        scratch: &mut [u8],
        found: impl FnMut(&Packet<'_>, &mut Answers<'_>) -> ControlFlow<()>,
    ) -> io::Result<()> {
        let count = match rustix::io::read(&self.socket, &mut *scratch) {
            Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the broker hung up")),
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if !self.input.is_empty() {
            self.input.extend_from_slice(&scratch[..count]);
            return self.pending(found);
        }
        let used = packets(&scratch[..count], self.version, &mut self.output, found)?;
        self.input.extend_from_slice(&scratch[used..count]);
        Ok(())
    }

    /// Hands the packets to `found` that have been read and not handed out.
    pub fn pending(
        &mut self,
        found: impl FnMut(&Packet<'_>, &mut Answers<'_>) -> ControlFlow<()>,
    ) -> io::Result<()> {
        let used = packets(&self.input, self.version, &mut self.output, found)?;
        self.input.drain(..used);
        Ok(())
    }

    /// Says goodbye as well as the socket takes it, and closes.
    pub fn close(mut self) {
        let reason = ReasonCode::Success;
        let properties = Properties::EMPTY;
        self.send(&Packet::Disconnect(mqtt::wire::Disconnect { reason, properties }));
        let _ = self.flush();
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Where answers to a packet go.
pub struct Answers<'a> {
    output: &'a mut Vec<u8>,
    version: Version,
}

impl Answers<'_> {
    /// Appends an acknowledgement.
    #[inline]
    pub fn acknowledge(&mut self, kind: AckKind, packet_id: PacketId) {
        encode_ack(self.output, self.version, kind, packet_id, ReasonCode::Success);
    }
}

#[inline]
fn packets(
    input: &[u8],
    version: Version,
    output: &mut Vec<u8>,
    mut found: impl FnMut(&Packet<'_>, &mut Answers<'_>) -> ControlFlow<()>,
) -> io::Result<usize> {
    let invalid = |error| io::Error::new(ErrorKind::InvalidData, error);
    let mut answers = Answers { output, version };
    let mut used = 0;
    while let Frame::Complete { total_bytes, .. } =
        peek(&input[used..], MAX_PACKET_BYTES).map_err(invalid)?
    {
        let frame = &input[used..used + total_bytes];
        let packet = decode_from_server(frame, version).map_err(invalid)?;
        used += total_bytes;
        if found(&packet, &mut answers).is_break() {
            break;
        }
    }
    Ok(used)
}
