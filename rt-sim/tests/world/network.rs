//! Faults of the network.

use std::io::ErrorKind;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use rt_abstract::{AsyncRead, AsyncWrite, Runtime};
use rt_sim::{Config, Control, Fault, Latency, Link, NodeId, Sim, Stream};

use super::{ONE, TWO, address, in_world, in_worlds, listen, pair};

const CLIENTS: NodeId = NodeId::CLIENTS;

/// Sends `count` bytes and returns how many reads it takes to get them.
async fn send(near: &mut Stream, far: &mut Stream, count: usize) -> usize {
    near.write_all(vec![7; count]).await.0.expect("writes");
    let (mut got, mut reads) = (0, 0);
    while got < count {
        got += far.read(Vec::with_capacity(count)).await.0.expect("reads");
        reads += 1;
    }
    reads
}

#[test]
fn reads_and_writes_are_cut_anywhere() {
    in_worlds(|control| async move {
        let (mut near, mut far) = pair(control, ONE).await;
        let mut reads = 0;
        for _ in 0..50 {
            reads += send(&mut near, &mut far, 1_000).await;
        }
        assert!(reads > 50);
        let coverage = control.coverage();
        assert!(coverage.count(Fault::PartialRead) > 0 && coverage.count(Fault::PartialWrite) > 0);
    });
}

#[test]
fn a_partition_holds_back_and_heals() {
    in_worlds(|control| async move {
        let (mut near, mut far) = pair(control, ONE).await;
        for one_way in [false, true] {
            control.block(CLIENTS, ONE);
            if !one_way {
                control.block(ONE, CLIENTS);
            }
            near.write_all(vec![1; 10]).await.0.expect("writes");
            assert!(is_silent(&mut far, Duration::from_secs(3)).await);
            control.heal_all();
            let (result, _) = far.read(Vec::with_capacity(100)).await;
            assert!(result.expect("arrives") > 0);
            while !is_silent(&mut far, Duration::from_secs(10)).await {
                let _ = far.read(Vec::with_capacity(100)).await;
            }
        }
        // The other direction of a one-way partition works.
        control.block(CLIENTS, ONE);
        far.write_all(vec![1; 10]).await.0.expect("writes");
        let (result, _) = near.read(Vec::with_capacity(100)).await;
        assert!(result.expect("arrives") > 0);
        assert!(control.coverage().count(Fault::Blocked) > 0);
    });
}

/// Whether nothing can be read for so long. Reads lazily: a wait that is dropped takes nothing.
async fn is_silent(stream: &mut Stream, duration: Duration) -> bool {
    let mut read = pin!(stream.read_lazy(|| Vec::with_capacity(1), drop));
    let mut sleep = pin!(Sim::sleep(duration));
    std::future::poll_fn(|cx| {
        if read.as_mut().poll(cx).is_ready() {
            return Poll::Ready(false);
        }
        sleep.as_mut().poll(cx).map(|()| true)
    })
    .await
}

#[test]
fn a_long_partition_ends_connections() {
    in_worlds(|control| async move {
        let (mut near, _far) = pair(control, ONE).await;
        control.partition(CLIENTS, ONE);
        near.write_all(vec![1; 10]).await.0.expect("writes");
        let (result, _) = near.read(Vec::with_capacity(8)).await;
        assert_eq!(result.expect_err("gone").kind(), ErrorKind::TimedOut);
        let error = Sim::connect(&address(ONE, 1000)).await.expect_err("nobody answers");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    });
}

#[test]
fn a_connection_attempt_outlasts_a_short_partition() {
    in_worlds(|control| async move {
        let _listener = listen(control, ONE);
        control.partition(CLIENTS, ONE);
        drop(Sim::spawn(async move {
            Sim::sleep(Duration::from_secs(4)).await;
            control.heal(CLIENTS, ONE);
        }));
        let begin = control.now();
        Sim::connect(&address(ONE, 1000)).await.expect("connects in the end");
        assert!(control.now() - begin >= Duration::from_secs(4));
    });
}

#[test]
fn a_reset_reaches_both_sides() {
    in_worlds(|control| async move {
        let (mut near, mut far) = pair(control, ONE).await;
        let (_other, _) = pair(control, TWO).await;
        near.write_all(vec![1; 10]).await.0.expect("writes");
        assert_eq!(control.reset_connections(CLIENTS, ONE), 1);
        for end in [&mut near, &mut far] {
            let (result, _) = end.read(Vec::with_capacity(8)).await;
            assert_eq!(result.expect_err("reset").kind(), ErrorKind::ConnectionReset);
            end.write_all(vec![1]).await.0.expect_err("reset");
        }
        assert_eq!(control.connections(CLIENTS, TWO), 1);
    });
}

#[test]
fn one_side_may_be_forgotten() {
    in_worlds(|control| async move {
        let (near, mut far) = pair(control, ONE).await;
        assert_eq!(control.half_open(CLIENTS, ONE), 1);
        drop(near);
        assert!(is_silent(&mut far, Duration::from_secs(600)).await, "nobody has told it");
        far.write_all(vec![1; 10]).await.0.expect("it believes that somebody listens");
        let (result, _) = far.read(Vec::with_capacity(8)).await;
        assert_eq!(result.expect_err("unknown").kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn bytes_that_nobody_read_turn_a_close_into_a_reset() {
    in_worlds(|control| async move {
        let (mut near, far) = pair(control, ONE).await;
        near.write_all(vec![1; 10]).await.0.expect("writes");
        Sim::sleep(Duration::from_millis(50)).await;
        drop(far);
        let (result, _) = near.read(Vec::with_capacity(8)).await;
        assert_eq!(result.expect_err("reset").kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn a_dropped_read_takes_bytes_with_it() {
    in_worlds(|control| async move {
        let (mut near, mut far) = pair(control, ONE).await;
        {
            let mut read = pin!(far.read(Vec::with_capacity(4)));
            std::future::poll_fn(|cx| {
                assert!(read.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
        }
        near.write_all(b"lostrest".to_vec()).await.0.expect("writes");
        near.shutdown().await.expect("shuts down");
        let mut all = Vec::with_capacity(64);
        loop {
            let (result, back) = far.read(all).await;
            all = back;
            if result.expect("reads") == 0 {
                break;
            }
        }
        assert!(all.len() < 8 && b"lostrest".ends_with(&all), "{all:?}");
        assert_eq!(control.coverage().count(Fault::SwallowedRead), 1);
    });
}

#[test]
fn a_link_is_as_slow_as_it_is_set() {
    in_worlds(|control: Control| async move {
        let (mut near, mut far) = pair(control, ONE).await;
        let latency = Latency::between(Duration::from_millis(50), Duration::from_millis(60));
        let link = Link { latency, bytes_per_second: Some(10_000) };
        control.set_link(CLIENTS, ONE, Some(link));
        let begin = control.now();
        send(&mut near, &mut far, 20_000).await;
        let took = control.now() - begin;
        assert!(took >= Duration::from_millis(2_050), "{took:?}");
        control.set_link(CLIENTS, ONE, None);
        let begin = control.now();
        send(&mut near, &mut far, 20_000).await;
        assert!(control.now() - begin < Duration::from_millis(100));
    });
}

#[test]
fn a_receiver_that_does_not_read_stops_its_sender() {
    let mut config = Config::default();
    config.network.window_bytes = 1_000;
    in_world(1, config, |control| async move {
        let (mut near, mut far) = pair(control, ONE).await;
        let writing = Sim::spawn(async move {
            near.write_all(vec![1; 1_500]).await.0.expect("writes");
            control.now()
        });
        Sim::sleep(Duration::from_secs(60)).await;
        let begin = control.now();
        let mut got = 0;
        while got < 1_500 {
            got += far.read(Vec::with_capacity(100)).await.0.expect("reads");
        }
        assert!(writing.await.expect("no panic") >= begin);
    });
}

#[test]
fn connections_overtake_each_other() {
    let mut config = Config::default();
    config.link.latency = Latency::between(Duration::from_millis(1), Duration::from_millis(50));
    let mut orders = Vec::new();
    for seed in 1..=20 {
        orders.push(in_world(seed, config.clone(), |control| async move {
            let (mut first, mut far_first) = pair(control, ONE).await;
            let (mut second, mut far_second) = pair(control, TWO).await;
            first.write_all(vec![1]).await.0.expect("writes");
            second.write_all(vec![2]).await.0.expect("writes");
            let first = Sim::spawn(async move {
                far_first.read(Vec::with_capacity(1)).await.0.expect("reads");
                control.now()
            });
            let second = Sim::spawn(async move {
                far_second.read(Vec::with_capacity(1)).await.0.expect("reads");
                control.now()
            });
            first.await.expect("no panic") < second.await.expect("no panic")
        }));
    }
    assert!(orders.contains(&true) && orders.contains(&false));
}
