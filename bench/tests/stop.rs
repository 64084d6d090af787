//! The program against a process of its own that it stops on purpose: the stop must appear in the
//! latencies as arithmetic says.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use bench::{File, Latencies, Quote};

const PROGRAM: &str = env!("CARGO_BIN_EXE_gearbox-bench");

struct Peer {
    child: Child,
    address: String,
}

impl Peer {
    fn start() -> Self {
        let mut child = Command::new(PROGRAM)
            .args(["peer", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output"))
            .read_line(&mut line)
            .expect("a line");
        let address = line.split(' ').find_map(|field| field.strip_prefix("mqtt="));
        let address = address.expect("its address").to_owned();
        Self { child, address }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ns(latencies: &Latencies, parts: u64) -> u64 {
    match latencies.quote(parts) {
        Quote::Ns(ns) => ns,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_stop_of_500_ms_appears_as_450_ms_in_p99() {
    let peer = Peer::start();
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("run.json");
    // 5 000 messages to two subscribers: of 10 000 deliveries the slowest hundred are those of the 50
    // messages that fell due in the first 50 ms of the stop.
    let line = "pubsub --publishers 1 --subscribers 2 --rate 1000 --seconds 5 --warm-up 0.1 \
                --stop-ms 500 --quiet 20";
    let status = Command::new(PROGRAM)
        .args(line.split_whitespace())
        .args(["--address", &peer.address, "--pid", &peer.child.id().to_string(), "--json"])
        .arg(&json)
        .stdout(Stdio::null())
        .status()
        .expect("runs");
    assert!(status.success(), "nothing lost, doubled or reordered");
    let Ok(Some(File::Run(run))) = File::read(&json) else { panic!("no result") };
    let of = |name: &str| run.latencies(name).expect("is there").expect("can be read");
    let (predicted, measured) = (of("delivery by arithmetic"), of("delivery"));
    assert_eq!((predicted.count(), measured.count(), measured.missing), (10_000, 10_000, 0));

    // The stop lasts as long as the generator needed to end it: 500 ms or a little more.
    let expected_ns = ns(&predicted, 99_000);
    assert!(expected_ns >= 448_000_000, "{expected_ns}");
    let found_ns = ns(&measured, 99_000);
    // Messages are 1 ms apart, and the histogram has three digits.
    let step_ns = 2_000_000;
    assert!(found_ns + step_ns >= expected_ns, "{found_ns} of {expected_ns}");
    // A tenth of the messages fell due in the stop: what the next slower one took is what this machine
    // adds to any of them.
    let added_ns = ns(&measured, 90_000);
    assert!(found_ns <= expected_ns + 2 * added_ns + step_ns, "{found_ns} of {expected_ns}");
}
