//! Snapshots over connections that are cut.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use meta::link::Settings;
use meta::link::message::Offer;
use meta::link::snapshot::{Cancel, MAX_FRUITLESS_ATTEMPTS, SendError, Source, send};
use meta::raft::entry::Vote;
use meta::state::export::Chunk;
use meta::store::StoreError;
use rt_abstract::{RunOptions, Runtime};

use super::peer::{ANSWERING, ASKING, Node, listen, settings};
use super::service::{Answers, State as Taken};
use crate::column::{in_each_column, run};

in_each_column!(
    a_snapshot_goes_on_where_it_was_cut,
    a_peer_that_stays_away_is_given_up,
    a_snapshot_may_be_cancelled,
    what_cannot_be_read_is_not_sent,
);

const CHUNK_BYTES: usize = 2_000;

/// A state of some records, which counts the pieces that were cut out of it.
struct State {
    records: BTreeMap<Vec<u8>, Vec<u8>>,
    cut: AtomicUsize,
    broken: bool,
}

impl State {
    fn new() -> Self {
        let records = (0..3_000_u32)
            .map(|number| (number.to_be_bytes().to_vec(), vec![number as u8; 100]))
            .collect();
        Self { records, cut: AtomicUsize::new(0), broken: false }
    }
}

impl Source for State {
    fn chunk(&self, after: Option<&[u8]>, max_bytes: usize) -> Result<Chunk, StoreError> {
        if self.broken {
            return Err(StoreError::failed("reading", "the disk is gone"));
        }
        self.cut.fetch_add(1, Ordering::SeqCst);
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut chunk = Chunk { records: Vec::new(), last: true };
        let mut bytes = 0;
        for (key, value) in self.records.range::<[u8], _>((from, Bound::Unbounded)) {
            bytes += key.len() + value.len();
            if bytes > max_bytes {
                chunk.last = false;
                break;
            }
            chunk.records.push((key.clone(), value.clone()));
        }
        Ok(chunk)
    }
}

fn sending() -> Settings {
    Settings { chunk_bytes: CHUNK_BYTES, ..settings(ASKING) }
}

fn offer<R: Runtime>() -> Offer<R> {
    Offer { vote: Vote::new_committed(3, ASKING), meta: Default::default() }
}

fn a_snapshot_goes_on_where_it_was_cut<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let service = Answers::default();
        let node = Node::<R>::start(settings(ANSWERING), service.clone());
        let mut random = [0; 24];
        R::fill_random(&mut random);
        let (allowances, _) = random.as_chunks::<2>();
        // Each connection lives for some pieces, sometimes for less than one; the last for ever.
        let allowances: Vec<usize> =
            allowances.iter().map(|&bytes| usize::from(u16::from_le_bytes(bytes))).collect();
        let proxy = cutting_proxy(node.address, allowances.clone());
        let state = Arc::new(State::new());
        let sent = R::spawn(send::<R>(
            sending(),
            ANSWERING,
            proxy.to_string(),
            offer(),
            state.clone(),
            Cancel::new(),
        ));
        let response = sent.await.expect("no panic").expect("gets across");
        assert_eq!(response.vote, Vote::new_committed(3, ASKING), "cut at {allowances:?}");
        let pieces_cut = state.cut.load(Ordering::SeqCst);
        check(&service.lock(), &state, pieces_cut, &allowances);
        node.kill().await;
    });
}

fn check(taken: &Taken, state: &State, pieces_cut: usize, allowances: &[usize]) {
    assert!(taken.finished);
    assert_eq!(taken.records, state.records, "cut at {allowances:?}");
    // It did go on: each offer found more than the one before, and little was sent twice.
    assert!(taken.resumed_at.is_sorted(), "{:?}", taken.resumed_at);
    assert!(taken.resumed_at.len() > 1, "cut at {allowances:?}");
    let pieces = usize::try_from(taken.importer.next_sequence()).expect("few");
    let twice = allowances.len() * (meta::link::snapshot::WINDOW + 1);
    assert!(
        pieces_cut <= pieces + twice,
        "{pieces_cut} pieces cut for {pieces}, at {allowances:?}"
    );
}

fn a_peer_that_stays_away_is_given_up<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let node = Node::<R>::start(settings(ANSWERING), Answers::default());
        // The hello passes; nothing after it does.
        let proxy = cutting_proxy(node.address, vec![40; MAX_FRUITLESS_ATTEMPTS]);
        let state = Arc::new(State::new());
        let sent = R::spawn(send::<R>(
            sending(),
            ANSWERING,
            proxy.to_string(),
            offer(),
            state,
            Cancel::new(),
        ));
        let error = sent.await.expect("no panic").expect_err("cut each time");
        assert!(matches!(error, SendError::Unreachable(_)), "{error:?}");
        node.kill().await;
    });
}

fn a_snapshot_may_be_cancelled<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        // Accepts, and never says anything.
        let (listener, address) = listen();
        let cancel = Cancel::<R>::new();
        let slow = Settings { connect_timeout: Duration::from_secs(1), ..sending() };
        let state = Arc::new(State::new());
        let sent = R::spawn(send::<R>(
            slow,
            ANSWERING,
            address.to_string(),
            offer(),
            state,
            cancel.clone(),
        ));
        R::yield_now().await;
        cancel.cancel();
        let error = sent.await.expect("no panic").expect_err("cancelled");
        assert!(matches!(error, SendError::Cancelled), "{error:?}");
        drop(listener);
    });
}

fn what_cannot_be_read_is_not_sent<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let node = Node::<R>::start(settings(ANSWERING), Answers::default());
        let state = Arc::new(State { broken: true, ..State::new() });
        let sent = R::spawn(send::<R>(
            sending(),
            ANSWERING,
            node.address.to_string(),
            offer(),
            state,
            Cancel::new(),
        ));
        let error = sent.await.expect("no panic").expect_err("unreadable");
        assert!(matches!(error, SendError::Source(_)), "{error:?}");
        node.kill().await;
    });
}

/// Passes connections on to `target`, one at a time, and cuts each after so many bytes from the
/// connecting side as its allowance says; those after the last allowance live on.
fn cutting_proxy(target: SocketAddr, allowances: Vec<usize>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = listener.local_addr().expect("is bound");
    let allowances = Mutex::new(allowances.into_iter());
    // Ends with the process; a case needs it to its end.
    thread::spawn(move || {
        for near in listener.incoming() {
            let (Ok(mut near), Ok(far)) = (near, TcpStream::connect(target)) else { continue };
            let mut allowance = allowances
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .next()
                .unwrap_or(usize::MAX);
            let back = thread::spawn({
                let (mut from, mut to) =
                    (far.try_clone().expect("clones"), near.try_clone().expect("clones"));
                move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                }
            });
            let mut far = far;
            let mut some = [0; 1024];
            while allowance > 0 {
                let room = some.len().min(allowance);
                match near.read(&mut some[..room]) {
                    Ok(0) | Err(_) => break,
                    Ok(count) => {
                        allowance -= count;
                        if far.write_all(&some[..count]).is_err() {
                            break;
                        }
                    }
                }
            }
            let _ = far.shutdown(Shutdown::Both);
            let _ = near.shutdown(Shutdown::Both);
            let _ = back.join();
        }
    });
    address
}
