//! Publishers of retained messages at QoS 1, each with a window of unacknowledged ones.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::metadata::figures::{MAX_NS, Percentiles};

/// Topics of one publisher, in turn.
const TOPICS: u64 = 1_000;
const PAYLOAD_BYTES: usize = 64;
const CONNACK: [u8; 4] = [0x20, 2, 0, 0];
const PUBACK: u8 = 0x40;

/// Prints how many were acknowledged per second, and after what time.
pub fn run(address: &str, publishers: u64, in_flight: u64, limit: Duration) {
    let start = Instant::now();
    let threads: Vec<_> = (0..publishers)
        .map(|publisher| {
            let address = address.to_owned();
            thread::spawn(move || publish(&address, publisher, in_flight, limit))
        })
        .collect();
    let mut all =
        Histogram::<u64>::new_with_bounds(1, MAX_NS, 2).expect("constants that are right");
    for thread in threads {
        let times = thread.join().expect("no panic").expect("the broker answers");
        for time in times {
            all.saturating_record(time.as_nanos() as u64);
        }
    }
    let rate = all.len() as f64 / start.elapsed().as_secs_f64();
    println!(
        "{publishers} publishers, {in_flight} in flight: {rate:.0} acknowledged/s, ms {}",
        Percentiles(&all)
    );
}

fn publish(
    address: &str,
    publisher: u64,
    in_flight: u64,
    limit: Duration,
) -> io::Result<Vec<Duration>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(&connect(&format!("retain-{publisher}")))?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer)?;
    assert_eq!(answer, CONNACK, "the broker accepts");

    let (start, mut sent_at) = (Instant::now(), VecDeque::new());
    let (mut out, mut received, mut times) = (Vec::new(), Vec::new(), Vec::new());
    let mut number = 0;
    let mut chunk = [0; 4096];
    loop {
        out.clear();
        let now = Instant::now();
        while now - start < limit && (sent_at.len() as u64) < in_flight {
            let id = (number % u64::from(u16::MAX)) as u16 + 1;
            let topic = format!("retain/{publisher}/{}", number % TOPICS);
            publish_packet(&mut out, &topic, id);
            sent_at.push_back(now);
            number += 1;
        }
        stream.write_all(&out)?;
        if sent_at.is_empty() {
            return Ok(times);
        }
        let count = stream.read(&mut chunk)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        received.extend_from_slice(&chunk[..count]);
        let now = Instant::now();
        let whole = received.len() / CONNACK.len() * CONNACK.len();
        for ack in received.drain(..whole).as_slice().chunks(CONNACK.len()) {
            assert_eq!(ack[..2], [PUBACK, 2], "PUBACKs alone come");
            times.extend(sent_at.pop_front().map(|sent| now - sent));
        }
    }
}

/// MQTT 3.1.1, a clean session, no keep alive.
fn connect(client_id: &str) -> Vec<u8> {
    let mut packet = vec![0x10, (12 + client_id.len()) as u8];
    packet.extend_from_slice(b"\x00\x04MQTT\x04\x02\x00\x00");
    string(&mut packet, client_id);
    packet
}

/// QoS 1, retained. Short enough for one byte of length.
fn publish_packet(out: &mut Vec<u8>, topic: &str, id: u16) {
    out.extend_from_slice(&[0x33, (4 + topic.len() + PAYLOAD_BYTES) as u8]);
    string(out, topic);
    out.extend_from_slice(&id.to_be_bytes());
    out.extend_from_slice(&[b'x'; PAYLOAD_BYTES]);
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}
