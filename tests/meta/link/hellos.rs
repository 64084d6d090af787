//! Who is spoken to, and who is not.

use std::io::Write;
use std::thread;
use std::time::Duration;

use meta::link::Settings;
use meta::link::client::{CallError, Client};
use meta::link::hello::{self, Answer, Hello};
use meta::link::message::Request;
use meta::status::Status;
use rt_abstract::{RunOptions, Runtime};

use super::peer::{
    ANSWERING, ASKING, Node, dial, hello, listen, read_body, read_rest, settings, welcome,
};
use super::service::Answers;
use crate::column::{in_each_column, run};

in_each_column!(
    strangers_hear_nothing,
    other_versions_are_told,
    the_wrong_nodes_are_told_why,
    a_silent_stranger_is_shown_out,
    a_client_tells_what_it_found,
);

fn strangers_hear_nothing<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let node = Node::<R>::start(settings(ANSWERING), Answers::default());
        let address = node.address;
        let played = R::spawn_blocking(move || {
            for said in [&b"\x10\x0c\x00\x04MQTT\x05\x02\x00\x3c"[..], b"GET / HTTP/1.1\r\n\r\n"] {
                let mut stream = dial(address);
                stream.write_all(said).expect("writes");
                assert_eq!(read_rest(&mut stream), b"");
            }
        });
        played.await.expect("plays");
        node.kill().await;
    });
}

fn other_versions_are_told<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let node = Node::<R>::start(settings(ANSWERING), Answers::default());
        let address = node.address;
        let played = R::spawn_blocking(move || {
            let mut stream = dial(address);
            let mut bytes = hello::encode(&hello()).expect("short");
            bytes[8..10].copy_from_slice(&9_u16.to_le_bytes());
            stream.write_all(&bytes).expect("writes");
            let said = refusal(&read_body(&mut stream));
            assert!(said.contains("version 9"), "{said}");
            assert_eq!(read_rest(&mut stream), b"");
        });
        played.await.expect("plays");
        node.kill().await;
    });
}

fn the_wrong_nodes_are_told_why<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let node = Node::<R>::start(settings(ANSWERING), Answers::default());
        let address = node.address;
        let played = R::spawn_blocking(move || {
            let cases = [
                (Hello { cluster: "another".into(), ..hello() }, "the cluster 'another'"),
                (Hello { to: 7, ..hello() }, "looks for node 7"),
                (Hello { from: ANSWERING, ..hello() }, "two nodes have the number 2"),
            ];
            for (hello, reason) in cases {
                let mut stream = dial(address);
                stream.write_all(&hello::encode(&hello).expect("short")).expect("writes");
                let said = refusal(&read_body(&mut stream));
                assert!(said.contains(reason), "{said}");
                assert_eq!(read_rest(&mut stream), b"");
            }
            let mut stream = dial(address);
            let mut bytes = hello::encode(&hello()).expect("short");
            let last = bytes.len() - 1;
            bytes[last] = 0xee; // no such purpose
            stream.write_all(&bytes).expect("writes");
            assert!(refusal(&read_body(&mut stream)).contains("damaged"));
            assert_eq!(read_rest(&mut stream), b"");
        });
        played.await.expect("plays");
        // The same, as a node sees it: it goes on trying, and says why it fails.
        let other = Settings { cluster: "another".into(), ..settings(ASKING) };
        let client = Client::<R>::new(other, ANSWERING, address.to_string());
        let reason = unreachable(&client).await;
        assert!(reason.contains("the peer refused") && reason.contains("'another'"), "{reason}");
        client.close().await;
        node.kill().await;
    });
}

fn a_silent_stranger_is_shown_out<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let hasty = Settings { connect_timeout: Duration::from_millis(100), ..settings(ANSWERING) };
        let node = Node::<R>::start(hasty, Answers::default());
        let address = node.address;
        let played = R::spawn_blocking(move || {
            for bytes in [0, 1, 11, 12, 14] {
                let mut stream = dial(address);
                let hello = hello::encode(&hello()).expect("short");
                stream.write_all(&hello[..bytes]).expect("writes");
                assert_eq!(read_rest(&mut stream), b"");
            }
        });
        played.await.expect("plays");
        node.kill().await;
    });
}

fn a_client_tells_what_it_found<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let encoded = |answer| hello::encode(&answer).expect("short");
        let mut old = encoded(Answer::Welcome { node: ANSWERING });
        old[8] = 0;
        let cases = [
            (b"HTTP/1.1 400 Bad Request\r\n".to_vec(), "no Gearbox node"),
            (Vec::new(), "no Gearbox node"),
            (old, "version 0 of the link"),
            (encoded(Answer::Welcome { node: 5 }), "node 5 answers"),
            (encoded(Answer::Refused { reason: "it rains".into() }), "it rains"),
        ];
        for (answer, expected) in cases {
            let (listener, address) = listen();
            let played = thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("accepts");
                read_body(&mut stream);
                stream.write_all(&answer).expect("writes");
            });
            let client = Client::<R>::new(settings(ASKING), ANSWERING, address.to_string());
            let reason = first_reason(&client).await;
            assert!(reason.contains(expected), "{reason}");
            client.close().await;
            played.join().expect("plays");
        }
        // And one that is as it should be.
        let (listener, address) = listen();
        let played = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("accepts");
            welcome(&mut stream);
            read_rest(&mut stream);
        });
        let client = Client::<R>::new(settings(ASKING), ANSWERING, address.to_string());
        while !client.is_connected() {
            R::sleep(Duration::from_millis(1)).await;
        }
        client.close().await;
        played.join().expect("plays");
    });
}

fn refusal(body: &[u8]) -> String {
    match hello::decode::<Answer>(body).expect("readable") {
        Answer::Refused { reason } => reason,
        Answer::Welcome { .. } => panic!("not refused"),
    }
}

/// Why the first attempt failed: what was asked before that waits for it.
async fn first_reason<R: Runtime>(client: &Client<R>) -> String {
    let call = client.call::<Status>(&Request::Status, Duration::from_secs(30));
    match call.await {
        Err(CallError::Unreachable { reason, .. }) => reason,
        other => panic!("reached: {other:?}"),
    }
}

/// Why the peer cannot be reached, when that does not change.
async fn unreachable<R: Runtime>(client: &Client<R>) -> String {
    let first = first_reason(client).await;
    assert_eq!(first_reason(client).await, first);
    first
}
