//! A node that is told to stop ends soon, whatever it waits for.

use std::io::Read;
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::Case;
use crate::broker::temporary_folder;
use crate::column::Column;
use crate::process::Process;
use crate::raw::{Raw, durable_connect, resume, subscribe};
use crate::wait::PATIENCE;

use super::cluster::Cluster;

pub const CASES: &[Case] = &[
    Case::new("stopping::without_a_majority", without_a_majority),
    Case::new("stopping::while_joining", while_joining),
];

/// About a second is meant; less than anything that is waited for: a proposal may take eight, a
/// connection that does not end six, joining two minutes.
const SOON: Duration = Duration::from_secs(4);

/// A subscription and a CONNECT wait for their commit, and the majority is gone.
fn without_a_majority(column: &Column) {
    let mut cluster = Cluster::start(column, &[]);
    let last = cluster.leader();
    let (mut subscriber, _) = resume(cluster.broker(last).mqtt, "subscriber", false, 3600, None);
    for node in (0..3).filter(|node| *node != last) {
        cluster.kill(node);
    }
    let mut broker = cluster.nodes[last].take().expect("the node runs");
    let received: u64 = broker.metric("bytes_received").iter().sum();
    let packet = subscribe(5, 9, "a/#", 1);
    subscriber.send(&packet);
    let mut late = Raw::open(broker.mqtt, 5);
    let connect = durable_connect("late", false, 3600, None);
    late.send(&connect);
    let sent = (packet.len() + connect.len()) as u64;
    broker.metric_until("bytes_received", |now| now >= received + sent);
    broker.terminate();
    let begun = Instant::now();
    drop((subscriber, late));
    assert!(broker.exit_status(PATIENCE).success());
    assert!(begun.elapsed() < SOON, "ended after {:?}", begun.elapsed());
}

/// The node to join through takes the connection and says nothing.
fn while_joining(column: &Column) {
    let folder = temporary_folder();
    let seed = TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = seed.local_addr().expect("is bound");
    let mut command = Command::new(&column.program);
    command
        .current_dir(&folder)
        .args(["serve", "--runtime", column.runtime, "--scheduler", column.scheduler])
        .args(["--shards", "1", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .args(["--data-dir", &folder.path().to_string_lossy()])
        .env("GEARBOX_CLUSTER__NODE_ID", "2")
        .env("GEARBOX_CLUSTER__LISTEN", "127.0.0.1:0")
        .env("GEARBOX_CLUSTER__SEEDS", format!("[\"{address}\"]"));
    let mut process = Process::start(&format!("joining [{}]", column.name), &mut command);
    let (mut peer, _) = seed.accept().expect("the node comes");
    peer.set_read_timeout(Some(PATIENCE)).expect("a deadline");
    peer.read_exact(&mut [0; 8]).expect("it says hello");
    process.terminate();
    let begun = Instant::now();
    let (status, _) = process.finish(PATIENCE);
    assert!(status.success(), "{status}");
    assert!(begun.elapsed() < SOON, "ended after {:?}", begun.elapsed());
}
