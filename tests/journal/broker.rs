//! The whole broker on a disk that fails: what it acknowledged before is there after a restart, and it
//! acknowledges nothing after.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use broker_core::config::ListenerConfig;
use broker_core::{Config, Node};
use meta::steps::StepOptions;
use meta::{ApplyMode, LogLimits};
use mqtt::wire::{
    Ack, AckKind, Connect, FilterBuf, Frame, Packet, PacketId, Properties, PropertyBuf, Publish,
    QoS, ReasonCode, Subscribe, SubscribeOptions, Version, decode_from_server, encode, peek,
};
use rt_abstract::faults::{Disk, Faulty, Keep, Op};
use rt_abstract::{Address, Core, RunOptions, Runtime, Shutdown};
use tempfile::TempDir;

use crate::column::{in_each_column, run};
use crate::tools::small;

in_each_column!(an_error_of_a_sync_ends_the_broker, an_error_of_a_write_ends_the_broker);

/// A client waits so long for what must come.
const PATIENCE: Duration = Duration::from_secs(60);
/// Published and acknowledged before the disk fails.
const GOOD: u16 = 40;

fn an_error_of_a_sync_ends_the_broker<R: Runtime>(options: &RunOptions) {
    an_error_ends_the_broker::<R>(options, Op::Sync, "sync");
}

fn an_error_of_a_write_ends_the_broker<R: Runtime>(options: &RunOptions) {
    an_error_ends_the_broker::<R>(options, Op::Write, "write");
}

fn an_error_ends_the_broker<R: Runtime>(options: &RunOptions, op: Op, action: &'static str) {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().to_owned();
    run::<R, _, _>(options, move || {
        let path = path.clone();
        async move {
            let disk = Arc::new(Disk::new(path.join("journal")));
            let failing = disk.clone();
            let error = serve::<Faulty<R>>(&path, move |address, _| {
                subscribe_and_leave(address);
                let mut talker = Client::connect(address, "talker", 0).0;
                for number in 1..=GOOD {
                    assert_eq!(talker.publish(number), Some(ReasonCode::Success));
                }
                failing.fail(op, ".log", 0, ErrorKind::Other);
                assert_eq!(talker.publish(GOOD + 1), None, "acknowledged after an error");
            })
            .await
            .expect_err("the journal ends with it");
            assert!(error.contains(action) && error.contains(".log"), "{error}");
            disk.cut_power(Keep::Nothing).await;
            serve::<Faulty<R>>(&path, |address, stop| {
                let (mut sleeper, present) = Client::connect(address, "sleeper", 3600);
                assert!(present, "its session is there");
                for number in 1..=GOOD {
                    assert_eq!(sleeper.message(), number, "acknowledged, and lost");
                }
                stop.trigger();
            })
            .await
            .expect("ends well");
        }
    });
}

/// Runs a broker with one shard on the data in `dir` until it ends by itself, or `clients`, on a thread
/// of their own, trigger its end. What its journal comes to.
async fn serve<R: Runtime>(
    dir: &Path,
    clients: impl FnOnce(&Address, &Shutdown) + Send + 'static,
) -> Result<(), String> {
    let options = meta::Options {
        node: 1,
        dir: dir.join("meta"),
        apply: ApplyMode::Inline,
        log: LogLimits::default(),
        steps: StepOptions::default(),
        cluster: None,
    };
    let (handle, server) = meta::open(options).expect("the metadata opens");
    let address = "127.0.0.1:0".parse().expect("an address");
    let config = Config {
        listeners: vec![ListenerConfig { address, ..ListenerConfig::default() }],
        journal: Some(small(&dir.join("journal"))),
        ..Config::default()
    };
    let node = Node::bind::<R>(config, 1, Some(handle)).expect("a free port");
    broker_core::follow_metadata::<R>(&node);
    let stop = Shutdown::new();
    let metadata = R::spawn(server.run::<R>(stop.clone()));
    let journal = {
        let (node, stop) = (node.clone(), stop.clone());
        R::spawn(async move {
            let result = broker_core::run_journal::<R>(node.clone(), stop).await;
            node.shutdown().trigger(); // as the program does
            result
        })
    };
    let (address, shutdown) = (node.addresses()[0].clone(), node.shutdown().clone());
    let clients = thread::spawn(move || {
        let _end = EndNode(shutdown.clone());
        clients(&address, &shutdown);
    });
    let served = broker_core::serve::<R>(node, Core { index: 0, count: 1 }, || ()).await;
    served.expect("the shard ends in order");
    stop.trigger();
    let result = journal.await.expect("no panic");
    metadata.await.expect("no panic").expect("the metadata ends well");
    clients.join().expect("the clients are content");
    result
}

/// Ends the node also when a client panics: nobody else would.
struct EndNode(Shutdown);

impl Drop for EndNode {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.trigger();
        }
    }
}

fn subscribe_and_leave(address: &Address) {
    let (mut sleeper, present) = Client::connect(address, "sleeper", 3600);
    assert!(!present);
    let mut filters = FilterBuf::for_subscribe();
    let options = SubscribeOptions { qos: QoS::AtLeastOnce, ..SubscribeOptions::default() };
    filters.push("t", options);
    let (packet_id, properties) = (PacketId::MIN, Properties::EMPTY);
    let filters = filters.as_filters();
    sleeper.send(&Packet::Subscribe(Subscribe { packet_id, properties, filters }));
    let granted = sleeper.next(|packet| match packet {
        Packet::SubAck(suback) => suback.codes.to_vec(),
        other => panic!("instead of SUBACK: {other:?}"),
    });
    assert_eq!(granted, Some(vec![1]));
}

/// A blocking client of version 5.
struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Client {
    /// Whether its session was there comes with it.
    fn connect(address: &Address, client_id: &str, expiry_s: u32) -> (Self, bool) {
        let stream = TcpStream::connect(address.to_string()).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        let mut client = Self { stream, received: Vec::new() };
        let mut properties = PropertyBuf::new();
        properties.session_expiry_interval_s(expiry_s);
        client.send(&Packet::Connect(Connect {
            version: Version::V5,
            clean_start: false,
            keep_alive_s: 0,
            client_id,
            will: None,
            username: None,
            password: None,
            properties: properties.as_properties(),
        }));
        let present = client.next(|packet| match packet {
            Packet::ConnAck(connack) => {
                assert_eq!(connack.reason, ReasonCode::Success);
                connack.session_present
            }
            other => panic!("instead of CONNACK: {other:?}"),
        });
        (client, present.expect("a CONNACK"))
    }

    /// Publishes its number to "t" at QoS 1. `None` when the connection ends without a PUBACK, or says
    /// that it ends.
    fn publish(&mut self, number: u16) -> Option<ReasonCode> {
        let payload = number.to_string();
        let packet_id = PacketId::new(number);
        self.send(&Packet::Publish(Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: "t",
            packet_id,
            properties: Properties::EMPTY,
            payload: payload.as_bytes(),
        }));
        self.next(|packet| match packet {
            Packet::Ack(ack) => {
                assert_eq!((ack.kind, Some(ack.packet_id)), (AckKind::PubAck, packet_id));
                Some(ack.reason)
            }
            Packet::Disconnect(_) => None,
            other => panic!("instead of PUBACK: {other:?}"),
        })
        .flatten()
    }

    /// The number of the next message, which is acknowledged.
    fn message(&mut self) -> u16 {
        let next = self.next(|packet| match packet {
            Packet::Publish(publish) => {
                let text = std::str::from_utf8(publish.payload).expect("text");
                (text.parse().expect("a number"), publish.packet_id.expect("QoS 1"))
            }
            other => panic!("instead of PUBLISH: {other:?}"),
        });
        let (number, packet_id) = next.expect("the connection is open");
        let (kind, reason, properties) = (AckKind::PubAck, ReasonCode::Success, Properties::EMPTY);
        self.send(&Packet::Ack(Ack { kind, packet_id, reason, properties }));
        number
    }

    /// An error is no news: the next read tells.
    fn send(&mut self, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        encode(packet, Version::V5, &mut bytes);
        drop(self.stream.write_all(&bytes));
    }

    /// `None` when the connection has ended.
    fn next<T>(&mut self, look: impl FnOnce(Packet<'_>) -> T) -> Option<T> {
        loop {
            if let Ok(Frame::Complete { total_bytes, .. }) = peek(&self.received, u32::MAX) {
                let frame: Vec<u8> = self.received.drain(..total_bytes).collect();
                let packet = decode_from_server(&frame, Version::V5);
                return Some(look(packet.expect("the broker's packets are sound")));
            }
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(count) => self.received.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("nothing comes"),
                Err(_) => return None,
            }
        }
    }
}
