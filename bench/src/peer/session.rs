//! A session of the featureless broker: its output, written now or when the client is back.

use std::io::{self, Write};
use std::net::TcpStream;

use mqtt::wire::{PacketId, Publish, PublishHead, QoS, Version, encode_publish_head};

/// Unwritten bytes of one session; what comes on top is lost and counted.
const OUTPUT_LIMIT_BYTES: usize = 64 << 20;

/// A session. It is kept for as long as the process lives.
pub struct Session {
    /// Its connection.
    pub conn: Option<usize>,
    /// The client's version.
    pub version: Version,
    /// Whether it outlives its connection.
    pub durable: bool,
    /// What is still to be written; see [`is_full`](Self::is_full).
    pub output: Vec<u8>,
    /// A delivery that goes out after the next one.
    pub held: Option<Vec<u8>>,
    /// Whether it is to be flushed in this turn.
    pub dirty: bool,
    /// Whether the socket took less than there is.
    pub waits_to_write: bool,
    written: usize,
    next_id: u16,
}

impl Default for Session {
    fn default() -> Self {
        Self {
            conn: None,
            version: Version::V3_1_1,
            durable: false,
            output: Vec::new(),
            held: None,
            dirty: false,
            waits_to_write: false,
            written: 0,
            next_id: 0,
        }
    }
}

impl Session {
    /// Begins anew.
    pub fn reset(&mut self) {
        let (conn, dirty) = (self.conn, self.dirty);
        *self = Self { conn, dirty, ..Self::default() };
    }

    /// Whether nothing more is taken.
    pub fn is_full(&self) -> bool {
        self.output.len() - self.written > OUTPUT_LIMIT_BYTES
    }

    /// Appends a delivery to `output`; `frame` is the PUBLISH as it came.
    pub fn write(
        &mut self,
        publish: &Publish<'_>,
        granted: QoS,
        frame: &[u8],
        output: &mut Vec<u8>,
    ) {
        let qos = publish.qos.min(granted);
        // Without an identifier it is the same on the wire, if both speak one version; clients of
        // two versions are not for this broker.
        if publish.qos == QoS::AtMostOnce && !publish.retain {
            output.extend_from_slice(frame);
            return;
        }
        let packet_id = (qos != QoS::AtMostOnce).then(|| {
            self.next_id = self.next_id % u16::MAX + 1;
            PacketId::new(self.next_id).unwrap_or(PacketId::MIN)
        });
        let head = PublishHead {
            dup: false,
            qos,
            retain: false,
            topic: publish.topic,
            packet_id,
            message_expiry_s: None,
            topic_alias: None,
            subscription_ids: &[],
            forwarded: &[],
            payload_len: publish.payload.len(),
        };
        encode_publish_head(output, self.version, &head);
        output.extend_from_slice(publish.payload);
    }

    /// Writes once.
    pub fn flush(&mut self, mut socket: &TcpStream) -> io::Result<()> {
        if !self.output.is_empty() {
            match socket.write(&self.output[self.written..]) {
                Ok(written) => self.written += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        self.waits_to_write = self.written < self.output.len();
        if !self.waits_to_write {
            self.output.clear();
            self.written = 0;
        } else if self.written > self.output.len() / 2 {
            self.output.drain(..self.written);
            self.written = 0;
        }
        Ok(())
    }

    /// The connection took what it took; the next one begins at a packet.
    pub fn forget_output(&mut self) {
        self.output.clear();
        self.written = 0;
        self.waits_to_write = false;
    }
}
