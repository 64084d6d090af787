//! Pairs of a publisher and a subscriber at full speed, with a bounded number of messages under
//! way per pair. Every payload carries its sequence number, so loss, repetition and disorder show.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use mqtt::wire::{
    AckKind, Connect, FilterBuf, Frame, Packet, PacketId, Properties, Publish, QoS, ReasonCode,
    Subscribe, SubscribeOptions, Version, decode_from_server, encode, encode_ack, peek,
};
use rustix::event::epoll;

use crate::LoadArgs;
use crate::broker::{cpu_time, resident_kib};

/// The longest wait for the broker before the run is given up.
const STALL: Duration = Duration::from_secs(10);
const READ_BYTES: usize = 64 << 10;

/// What one run showed.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Messages delivered in the measured time.
    pub delivered: u64,
    /// The measured time.
    pub elapsed: Duration,
    /// CPU time of the broker in that time.
    pub broker_cpu: Option<Duration>,
    /// Resident memory of the broker at the end, in KiB.
    pub resident_kib: Option<u64>,
    /// Messages that came out of turn, twice, or after a gap, over the whole run.
    pub misplaced: u64,
    /// Messages sent and never delivered, after waiting for them.
    pub lost: u64,
}

struct Pair {
    publisher: Conn,
    subscriber: Conn,
    topic: String,
    sent: u64,
    received: u64,
}

struct Conn {
    socket: TcpStream,
    output: Vec<u8>,
    input: Vec<u8>,
}

/// Runs the load against `address`.
pub fn run(address: SocketAddr, pid: Option<u32>, load: &LoadArgs) -> io::Result<Report> {
    let qos = if load.qos == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce };
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut pairs = Vec::new();
    for number in 0..load.pairs {
        let pair = Pair::open(address, number, qos)?;
        for (conn, side) in [(&pair.publisher, 0), (&pair.subscriber, 1)] {
            let data = epoll::EventData::new_u64(number as u64 * 2 + side);
            epoll::add(&poll, &conn.socket, data, epoll::EventFlags::IN)?;
        }
        pairs.push(pair);
    }
    let mut payload = vec![b'.'; load.size as usize];
    let mut report = Report::default();
    let mut buffer = vec![0; READ_BYTES];
    let mut events = Vec::with_capacity(256);
    let warm_up = Duration::from_secs_f64(load.seconds / 10.0);
    let mut start = Instant::now();
    let mut measure_from = None;
    let mut cpu_from = None;
    let mut last_progress = Instant::now();
    let mut sending = true;
    loop {
        let now = Instant::now();
        if measure_from.is_none() && now - start >= warm_up {
            measure_from = Some((now, total(&pairs)));
            cpu_from = pid.and_then(cpu_time);
            start = now;
        }
        if let Some((from, count)) = measure_from
            && sending
            && (now - from).as_secs_f64() >= load.seconds
        {
            sending = false;
            report.elapsed = now - from;
            report.delivered = total(&pairs) - count;
            let cpu_to = pid.and_then(cpu_time);
            report.broker_cpu = cpu_to.zip(cpu_from).map(|(to, from)| to - from);
            report.resident_kib = pid.and_then(resident_kib);
        }
        let open: u64 = pairs.iter().map(|pair| pair.sent - pair.received).sum();
        if !sending && (open == 0 || now - last_progress > STALL) {
            report.lost = open;
            return Ok(report);
        }
        if now - last_progress > STALL {
            return Err(io::Error::new(ErrorKind::TimedOut, "no message came for 10 seconds"));
        }
        for pair in &mut pairs {
            if sending {
                pair.send(u64::from(load.window), qos, &mut payload);
            }
            pair.publisher.flush()?;
            pair.subscriber.flush()?;
        }
        events.clear();
        let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), Some(&timeout))?;
        for event in &events {
            let number = event.data.u64();
            let pair = &mut pairs[number as usize / 2];
            let before = pair.received;
            match number % 2 {
                0 => pair.publisher.read(&mut buffer, |_, _| {})?,
                _ => {
                    let (received, misplaced) = (&mut pair.received, &mut report.misplaced);
                    pair.subscriber.read(&mut buffer, |packet, output| {
                        let Packet::Publish(publish) = packet else { return };
                        let number = publish.payload.get(..8).and_then(|head| head.try_into().ok());
                        *misplaced += u64::from(number.map(u64::from_le_bytes) != Some(*received));
                        *received += 1;
                        if let Some(id) = publish.packet_id {
                            let reason = ReasonCode::Success;
                            encode_ack(output, Version::V3_1_1, AckKind::PubAck, id, reason);
                        }
                    })?;
                }
            }
            if pair.received > before {
                last_progress = Instant::now();
            }
        }
    }
}

impl Report {
    /// Microseconds of broker CPU per delivered message.
    pub fn cpu_us_per_message(&self) -> Option<f64> {
        let cpu = self.broker_cpu?;
        (self.delivered > 0).then(|| cpu.as_secs_f64() * 1e6 / self.delivered as f64)
    }

    /// Delivered messages per second.
    pub fn messages_per_second(&self) -> f64 {
        self.delivered as f64 / self.elapsed.as_secs_f64()
    }

    /// An error when the broker lost, repeated or reordered anything.
    pub fn check(&self) -> Result<(), String> {
        match (self.lost, self.misplaced) {
            (0, 0) => Ok(()),
            (lost, misplaced) => Err(format!("{lost} messages lost, {misplaced} out of order")),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} messages/s", self.messages_per_second())?;
        if let Some(cpu) = self.cpu_us_per_message() {
            write!(f, ", broker {cpu:.2} us CPU per message")?;
        }
        if let Some(kib) = self.resident_kib {
            write!(f, ", {kib} KiB resident")?;
        }
        write!(f, ", lost {}, out of order {}", self.lost, self.misplaced)
    }
}

impl Pair {
    fn open(address: SocketAddr, number: usize, qos: QoS) -> io::Result<Self> {
        let topic = format!("bench/pair/{number}");
        let publisher = Conn::open(address, &format!("bench-pub-{number}"))?;
        let mut subscriber = Conn::open(address, &format!("bench-sub-{number}"))?;
        let mut filters = FilterBuf::for_subscribe();
        filters.push(&topic, SubscribeOptions { qos, ..SubscribeOptions::default() });
        subscriber.send(&Packet::Subscribe(Subscribe {
            packet_id: PacketId::MIN,
            properties: Properties::EMPTY,
            filters: filters.as_filters(),
        }));
        subscriber.expect(|packet| matches!(packet, Packet::SubAck(ack) if ack.codes[0] < 0x80))?;
        for conn in [&publisher, &subscriber] {
            conn.socket.set_nonblocking(true)?;
        }
        Ok(Self { publisher, subscriber, topic, sent: 0, received: 0 })
    }

    /// Fills the window up.
    fn send(&mut self, window: u64, qos: QoS, payload: &mut [u8]) {
        while self.sent - self.received < window {
            payload[..8].copy_from_slice(&self.sent.to_le_bytes());
            let packet_id = match qos {
                QoS::AtMostOnce => None,
                _ => PacketId::new((self.sent % 65_535 + 1) as u16),
            };
            let publish = Publish {
                dup: false,
                qos,
                retain: false,
                topic: &self.topic,
                packet_id,
                properties: Properties::EMPTY,
                payload,
            };
            self.publisher.send(&Packet::Publish(publish));
            self.sent += 1;
        }
    }
}

impl Conn {
    /// Connects and waits for CONNACK.
    fn open(address: SocketAddr, client_id: &str) -> io::Result<Self> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(STALL))?;
        let mut conn = Self { socket, output: Vec::new(), input: Vec::new() };
        conn.send(&Packet::Connect(Connect {
            version: Version::V3_1_1,
            clean_start: true,
            keep_alive_s: 0,
            client_id,
            will: None,
            username: None,
            password: None,
            properties: Properties::EMPTY,
        }));
        conn.expect(|packet| matches!(packet, Packet::ConnAck(ack) if !ack.reason.is_error()))?;
        Ok(conn)
    }

    fn send(&mut self, packet: &Packet<'_>) {
        encode(packet, Version::V3_1_1, &mut self.output);
    }

    /// Sends what is waiting and blocks for one packet, which must be as `wanted` says.
    fn expect(&mut self, wanted: impl Fn(&Packet<'_>) -> bool) -> io::Result<()> {
        self.socket.write_all(&self.output)?;
        self.output.clear();
        let mut buffer = [0; 512];
        let mut seen = None;
        while seen.is_none() {
            self.read(&mut buffer, |packet, _| seen = Some(wanted(packet)))?;
        }
        match seen {
            Some(true) => Ok(()),
            _ => Err(io::Error::new(ErrorKind::InvalidData, "the broker refused")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.output.is_empty() {
            return Ok(());
        }
        match self.socket.write(&self.output) {
            Ok(written) => drop(self.output.drain(..written)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Reads once and hands every complete packet to `found`, with the output for answers.
    fn read(
        &mut self,
        buffer: &mut [u8],
        mut found: impl FnMut(&Packet<'_>, &mut Vec<u8>),
    ) -> io::Result<()> {
        match self.socket.read(buffer) {
            Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the broker hung up")),
            Ok(read) => self.input.extend_from_slice(&buffer[..read]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
        let invalid = |error| io::Error::new(ErrorKind::InvalidData, error);
        let mut used = 0;
        while let Frame::Complete { total_bytes, .. } =
            peek(&self.input[used..], u32::MAX).map_err(invalid)?
        {
            let frame = &self.input[used..used + total_bytes];
            let packet = decode_from_server(frame, Version::V3_1_1).map_err(invalid)?;
            found(&packet, &mut self.output);
            used += total_bytes;
        }
        self.input.drain(..used);
        Ok(())
    }
}

fn total(pairs: &[Pair]) -> u64 {
    pairs.iter().map(|pair| pair.received).sum()
}
