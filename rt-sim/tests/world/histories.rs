//! Determinism.

use std::path::Path;
use std::time::Duration;

use rt_abstract::{AsyncRead, AsyncWrite, File, Listener, OpenOptions, Runtime};
use rt_sim::{Config, Control, Coverage, Crash, NodeId, Sim};

use super::{ONE, TWO, address, in_world, listen};

/// Two nodes that talk, write and crash: something of everything.
async fn busy(control: Control) -> (u64, Coverage, Duration, u64) {
    for node in [ONE, TWO] {
        drop(control.start_node(node, 2, move |core| busy_core(node, core.index)));
    }
    Sim::sleep(Duration::from_millis(100)).await;
    control.partition(ONE, TWO);
    Sim::sleep(Duration::from_secs(1)).await;
    control.heal_all();
    control.crash(TWO, Crash::Power);
    Sim::sleep(Duration::from_secs(1)).await;
    drop(control.start_node(TWO, 2, move |core| busy_core(TWO, core.index)));
    control.reset_connections(ONE, TWO);
    Sim::sleep(Duration::from_secs(5)).await;
    control.crash(ONE, Crash::Process);
    (control.digest(), control.coverage(), control.now(), control.polls())
}

async fn busy_core(node: NodeId, core: usize) {
    let mut random = [0; 4];
    Sim::fill_random(&mut random);
    if core == 0 {
        let mut listener = listen(Control::current(), node);
        while let Ok((mut stream, _)) = listener.accept().await {
            drop(Sim::spawn(async move {
                loop {
                    let (result, buf) = stream.read(Vec::with_capacity(100)).await;
                    if !matches!(result, Ok(1..)) || stream.write_all(buf).await.0.is_err() {
                        return;
                    }
                }
            }));
        }
        return;
    }
    let peer = if node == ONE { TWO } else { ONE };
    let path = Path::new("/data/log");
    let options = OpenOptions { write: true, create: true, ..OpenOptions::READ };
    let file = Sim::open(path, options).await.expect("opens");
    for round in 0_u64.. {
        let Ok(mut stream) = Sim::connect(&address(peer, 1000)).await else { continue };
        for _ in 0..10 {
            if stream.write_all(vec![random[0]; 300]).await.0.is_err() {
                break;
            }
            let (result, buf) = stream.read(Vec::with_capacity(300)).await;
            if !matches!(result, Ok(1..)) {
                break;
            }
            file.write_at(buf, round * 300).await.0.expect("writes");
            file.sync_data().await.expect("syncs");
            Sim::sleep(Duration::from_millis(u64::from(random[1] % 16))).await;
        }
    }
}

#[test]
fn a_seed_has_one_history() {
    let mut digests = Vec::new();
    for seed in 1..=6 {
        let first = in_world(seed, Config::default(), busy);
        let second = in_world(seed, Config::default(), busy);
        assert_eq!(first, second, "seed {seed}");
        digests.push(first.0);
    }
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), 6, "each seed has another one");
}

#[test]
fn another_thread_sees_the_same() {
    let here = in_world(3, Config::default(), busy);
    let there = std::thread::spawn(|| in_world(3, Config::default(), busy));
    assert_eq!(there.join().expect("no panic"), here);
}

#[test]
fn what_a_test_observes_is_in_the_digest() {
    let digest = |observed: &'static [u8]| {
        in_world(1, Config::default(), |control| async move {
            control.observe(observed);
            control.digest()
        })
    };
    assert_eq!(digest(b"a"), digest(b"a"));
    assert_ne!(digest(b"a"), digest(b"b"));
}
