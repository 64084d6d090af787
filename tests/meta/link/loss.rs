//! Connections that are lost, and such as only seem to live.

use std::io::{Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use meta::link::Settings;
use meta::link::client::{CallError, Client};
use meta::link::hello;
use meta::link::message::{Proposed, Redirect, Request};
use meta::status::Status;
use rt_abstract::{RunOptions, Runtime};

use super::peer::{
    ANSWERING, ASKING, Node, dial, hello, listen, read_body, read_rest, settings, welcome,
};
use super::service::{Answers, endless};
use crate::column::{in_each_column, run};

in_each_column!(
    a_killed_peer_is_found_again,
    a_peer_that_was_never_there_is_found,
    a_peer_that_answers_nothing_is_given_up,
    a_peer_that_takes_nothing_is_given_up,
    a_peer_that_asks_nothing_is_given_up,
    pings_keep_an_idle_connection,
);

const LONG: Duration = Duration::from_secs(60);

fn impatient(node: u64) -> Settings {
    Settings {
        ping_interval: Duration::from_millis(20),
        silence: Duration::from_millis(200),
        ..settings(node)
    }
}

fn a_killed_peer_is_found_again<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let mut node = Node::<R>::start(settings(ANSWERING), Answers::default());
        let address = node.address;
        let client = Client::<R>::new(settings(ASKING), ANSWERING, address.to_string());
        for _ in 0..5 {
            reached(&client).await;
            let stuck = R::spawn({
                let client = client.clone();
                async move {
                    let request = Request::Propose(endless());
                    client.call::<Result<Proposed, Redirect>>(&request, LONG).await
                }
            });
            // Is on its way when what was asked later is answered: it is written in order.
            R::yield_now().await;
            reached(&client).await;
            node.kill().await;
            let error = stuck.await.expect("ends").expect_err("lost");
            assert!(
                matches!(error, CallError::Lost { .. } | CallError::Unreachable { .. }),
                "{error:?}"
            );
            while client.is_connected() {
                R::sleep(Duration::from_millis(1)).await;
            }
            // Known to be gone: told at once.
            let error = client.call::<Status>(&Request::Status, LONG).await.expect_err("gone");
            assert!(matches!(error, CallError::Unreachable { .. }), "{error:?}");
            node = Node::<R>::start_at(address, settings(ANSWERING), Answers::default());
        }
        reached(&client).await;
        client.close().await;
        node.kill().await;
    });
}

fn a_peer_that_was_never_there_is_found<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let (listener, address) = listen();
        drop(listener);
        let name = format!("localhost:{}", address.port());
        let client = Client::<R>::new(settings(ASKING), ANSWERING, name);
        let error = client.call::<Status>(&Request::Status, LONG).await.expect_err("not there");
        assert!(matches!(error, CallError::Unreachable { .. }), "{error:?}");
        let node = Node::<R>::start_at(address, settings(ANSWERING), Answers::default());
        reached(&client).await;
        client.close().await;
        node.kill().await;
        // A name that is none.
        let client = Client::<R>::new(settings(ASKING), ANSWERING, "no port at all");
        let error = client.call::<Status>(&Request::Status, LONG).await.expect_err("no address");
        assert!(matches!(error, CallError::Unreachable { .. }), "{error:?}");
        client.close().await;
    });
}

/// One direction is dead: requests arrive, nothing comes back, and nothing is reset.
fn a_peer_that_answers_nothing_is_given_up<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let (listener, address) = listen();
        let played = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("accepts");
            let begun = Instant::now();
            welcome(&mut stream);
            read_rest(&mut stream);
            begun.elapsed()
        });
        let client = Client::<R>::new(impatient(ASKING), ANSWERING, address.to_string());
        let error = client.call::<Status>(&Request::Status, LONG).await.expect_err("silent");
        let CallError::Lost { reason, .. } = &error else { panic!("{error:?}") };
        assert!(reason.contains("nothing came"), "{reason}");
        let lived = played.join().expect("plays");
        assert!(lived >= Duration::from_millis(180), "given up after {lived:?}");
        client.close().await;
    });
}

/// The peer stands still: what is sent fills the buffers on the way.
fn a_peer_that_takes_nothing_is_given_up<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let (listener, address) = listen();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let played = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("accepts");
            welcome(&mut stream);
            let _ = wait.recv();
        });
        let client = Client::<R>::new(impatient(ASKING), ANSWERING, address.to_string());
        let calls: Vec<_> = (0..40)
            .map(|_| {
                R::spawn({
                    let client = client.clone();
                    async move {
                        let request = Request::Propose(vec![endless().remove(0); 50_000]);
                        client.call::<Result<Proposed, Redirect>>(&request, LONG).await
                    }
                })
            })
            .collect();
        for call in calls {
            let error = call.await.expect("ends").expect_err("not taken");
            assert!(
                matches!(error, CallError::Lost { .. } | CallError::Unreachable { .. }),
                "{error:?}"
            );
        }
        drop(done);
        played.join().expect("plays");
        client.close().await;
    });
}

fn a_peer_that_asks_nothing_is_given_up<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let node = Node::<R>::start(impatient(ANSWERING), Answers::default());
        let address = node.address;
        let played = R::spawn_blocking(move || {
            let begun = Instant::now();
            let mut stream = dial(address);
            stream.write_all(&hello::encode(&hello()).expect("short")).expect("writes");
            read_body(&mut stream);
            assert_eq!(read_rest(&mut stream), b"");
            assert!(begun.elapsed() >= Duration::from_millis(180));
        });
        played.await.expect("plays");
        node.kill().await;
    });
}

fn pings_keep_an_idle_connection<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        // The peer is played to see that it is one connection, for longer than it may be silent.
        const PINGS: u32 = 15;
        let (listener, address) = listen();
        let played = R::spawn_blocking(move || {
            let (mut stream, _) = listener.accept().expect("accepts");
            welcome(&mut stream);
            let mut frame = [0; 13];
            for _ in 0..PINGS {
                stream.read_exact(&mut frame).expect("the connection lives");
                assert_eq!(frame[4], 4, "a ping");
                frame[4] = 5;
                stream.write_all(&frame).expect("writes");
            }
            stream
        });
        let patient = Settings {
            ping_interval: Duration::from_millis(100),
            silence: Duration::from_secs(1),
            ..settings(ASKING)
        };
        let client = Client::<R>::new(patient, ANSWERING, address.to_string());
        let stream = played.await.expect("plays");
        assert!(client.is_connected());
        client.close().await;
        drop(stream);
    });
}

async fn reached<R: Runtime>(client: &Client<R>) {
    let begun = Instant::now();
    loop {
        match client.call::<Status>(&Request::Status, LONG).await {
            Ok(status) => return assert_eq!(status.role, "leader"),
            Err(CallError::Unreachable { .. } | CallError::Lost { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(begun.elapsed() < LONG, "not found again");
        R::sleep(Duration::from_millis(1)).await;
    }
}
