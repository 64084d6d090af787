//! Several cores: descriptors, mailboxes and signals that cross threads.

use std::collections::{HashSet, VecDeque};
use std::future::pending;
use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use super::tools::{expect, expect_end, free_port, run, run_one, send, tcp_pair};
use crate::io::{AsyncWrite, Closer};
use crate::mailbox::{Full, Receiver, Sender, mailbox};
use crate::net::{Address, Listener, Stream};
use crate::notify::Notify;
use crate::runtime::{RunOptions, Runtime, Scheduler};
use crate::shutdown::Shutdown;
use crate::socket::Socket;

/// Every core runs its main once, on a thread of its own; results are in core order.
pub fn results_come_in_core_order<R: Runtime>(options: &RunOptions) {
    let results = run::<R, _, _, _>(options, 3, |core| async move {
        // Later cores end first.
        for _ in core.index..3 {
            R::yield_now().await;
        }
        (core.index, core.count, std::thread::current().id())
    });
    let places: Vec<_> = results.iter().map(|&(index, count, _)| (index, count)).collect();
    assert_eq!(places, [(0, 3), (1, 3), (2, 3)]);
    if options.scheduler == Scheduler::ThreadPerCore {
        let threads: HashSet<ThreadId> = results.iter().map(|&(_, _, thread)| thread).collect();
        assert_eq!(threads.len(), 3);
    }
}

/// A stream that is on its way: its socket and how far it was read.
struct Moving {
    socket: Socket,
    at: usize,
}

const STREAMS: usize = 8;
const HOPS: usize = 6;
const PER_HOP: usize = 30_000;

/// Streams hop between two cores while their peers go on sending; not a byte is lost.
pub fn descriptors_move_between_cores<R: Runtime>(options: &RunOptions) {
    let (to_0, from_1) = mailbox::<Moving, 1>([2]);
    let (to_1, from_0) = mailbox::<Moving, 1>([2]);
    let seats = seats([(from_1, to_1), (from_0, to_0)]);
    let finished = run::<R, _, _, _>(options, 2, move |core| {
        let (mut arriving, leaving) = take(&seats, core.index);
        async move {
            let mut clients = Vec::new();
            if core.index == 0 {
                clients.push(R::spawn(start_streams::<R>(leaving.clone())));
            }
            let mut leaving = Some(leaving);
            let mut tasks = Vec::new();
            let (mut batch, mut arrivals, mut finished) = (Vec::new(), 0, 0);
            // Each core sees every stream on every second hop.
            while arrivals < STREAMS * HOPS / 2 {
                arrivals += arriving.receive(&mut batch, 4).await;
                for moving in batch.drain(..) {
                    let leaving = leaving.clone().expect("still in use");
                    tasks.push(R::spawn(one_hop::<R>(moving, leaving)));
                }
            }
            leaving = None;
            for task in tasks {
                finished += usize::from(task.await.expect("hop"));
            }
            for task in clients {
                task.await.expect("clients");
            }
            drop(leaving);
            finished
        }
    });
    assert_eq!(finished.iter().sum::<usize>(), STREAMS);
}

/// Makes the streams, hands their near ends out and sends on the far ends.
async fn start_streams<R: Runtime>(leaving: Sender<Moving>) {
    let mut senders = Vec::new();
    for _ in 0..STREAMS {
        let (near, mut far) = tcp_pair::<R>().await;
        senders.push(R::spawn(async move {
            send(&mut far, 0, HOPS * PER_HOP, 7_001).await;
            far.shutdown().await.expect("shutdown");
            expect_end(&mut far).await;
        }));
        let socket = near.into_socket().expect("nothing is pending");
        post(&leaving, Moving { socket, at: 0 }).await;
    }
    for sender in senders {
        sender.await.expect("sender");
    }
}

/// Reads the stream's part for this hop; says whether it was the last.
async fn one_hop<R: Runtime>(moving: Moving, leaving: Sender<Moving>) -> bool {
    let Moving { socket, at } = moving;
    let mut stream = R::adopt(socket).expect("adopt");
    let to = at + PER_HOP;
    expect(&mut stream, at, to, 4_000).await;
    if to == HOPS * PER_HOP {
        expect_end(&mut stream).await;
        return true;
    }
    let socket = stream.into_socket().expect("nothing is pending");
    post(&leaving, Moving { socket, at: to }).await;
    false
}

/// Sends `item`, waiting for room as long as it takes.
async fn post<T: Send>(to: &Sender<T>, mut item: T) {
    loop {
        match to.try_send(0, item) {
            Ok(()) => return,
            Err(Full::Full(back)) => item = back,
            Err(Full::Closed(_)) => panic!("the receiver is gone"),
        }
        to.room(0).await;
    }
}

/// A future that borrows and that no other thread may see runs where it is; its tasks end with it.
pub fn the_calling_thread_runs_what_cannot_move<R: Runtime>(options: &RunOptions) {
    let held = Arc::new(());
    let here = Rc::new(thread::current().id());
    for round in 0..2 {
        let result = R::block_on(options, async {
            drop(R::spawn({
                let held = held.clone();
                async move {
                    pending::<()>().await;
                    drop(held);
                }
            }));
            let (mut near, mut far) = tcp_pair::<R>().await;
            let sender = R::spawn(async move {
                send(&mut near, 0, 1000, 100).await;
                near.shutdown().await.expect("shutdown");
            });
            expect(&mut far, 0, 1000, 70).await;
            expect_end(&mut far).await;
            sender.await.expect("sender");
            R::sleep(Duration::from_millis(1)).await;
            assert_eq!(thread::current().id(), *here);
            (round, here.clone())
        });
        assert_eq!(result.expect("runs"), (round, here.clone()));
        assert_eq!(Arc::strong_count(&held), 1, "a task outlives its executor");
    }
    let result: std::io::Result<()> = R::block_on(options, async {
        R::yield_now().await;
        panic!("fails on purpose");
    });
    let error = result.expect_err("panicked");
    assert!(error.to_string().contains("fails on purpose"), "{error}");
}

/// A descriptor cannot leave while somebody can still kill it.
pub fn a_socket_is_busy_while_a_closer_lives<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let (near, mut far) = tcp_pair::<R>().await;
        let closer = near.closer();
        let error = near.into_socket().expect_err("a closer is alive");
        assert_eq!(error.kind(), ErrorKind::ResourceBusy, "{error}");
        drop(closer);
        expect_end(&mut far).await;

        let (near, mut far) = tcp_pair::<R>().await;
        drop(near.closer());
        let mut near = R::adopt(near.into_socket().expect("no closer is alive")).expect("adopt");
        send(&mut near, 0, 10, 10).await;
        expect(&mut far, 0, 10, 10).await;
    });
}

/// Several cores accept from one listening socket.
pub fn several_cores_accept<R: Runtime>(options: &RunOptions) {
    const CLIENTS: usize = 60;
    let bound = Mutex::new(None::<Socket>);
    let stop = Shutdown::new();
    let served = run::<R, _, _, _>(options, 2, move |core| {
        // Whoever comes first binds.
        let mut bound = bound.lock().unwrap_or_else(PoisonError::into_inner);
        let socket = bound.get_or_insert_with(|| R::bind(&free_port(), 128).expect("bind"));
        let socket = socket.try_clone().expect("dup");
        let stop = stop.clone();
        async move {
            let mut listener = R::listener(socket).expect("listener");
            let address = listener.local_address().expect("address");
            let closer = listener.closer();
            let accepting = R::spawn(async move {
                let mut echoes = Vec::new();
                while let Ok((mut stream, _)) = listener.accept().await {
                    echoes.push(R::spawn(async move {
                        expect(&mut stream, 0, 100, 100).await;
                        send(&mut stream, 0, 100, 100).await;
                        expect_end(&mut stream).await;
                    }));
                }
                let served = echoes.len();
                for echo in echoes {
                    echo.await.expect("echo");
                }
                served
            });
            if core.index == 0 {
                clients::<R>(&address, CLIENTS).await;
                stop.trigger();
            }
            stop.wait().await;
            closer.kill();
            accepting.await.expect("acceptor")
        }
    });
    assert_eq!(served.iter().sum::<usize>(), CLIENTS, "{served:?}");
}

async fn clients<R: Runtime>(address: &Address, count: usize) {
    let mut clients = Vec::new();
    for _ in 0..count {
        let address = address.clone();
        clients.push(R::spawn(async move {
            let mut stream = R::connect(&address).await.expect("connect");
            send(&mut stream, 0, 100, 33).await;
            expect(&mut stream, 0, 100, 100).await;
        }));
    }
    for client in clients {
        client.await.expect("client");
    }
}

/// Two cores exchange many items through small mailboxes in both directions: nothing is lost,
/// doubled or reordered, and a full mailbox stops its sender.
pub fn mailboxes_keep_order_across_cores<R: Runtime>(options: &RunOptions) {
    const ITEMS: u64 = 100_000;
    let (to_0, from_1) = mailbox::<u64, 2>([8, 32]);
    let (to_1, from_0) = mailbox::<u64, 2>([8, 32]);
    let seats = seats([(from_1, to_1), (from_0, to_0)]);
    let full = run::<R, _, _, _>(options, 2, move |core| {
        let (mut receiver, sender) = take(&seats, core.index);
        async move {
            // Lane 0 carries one item in a hundred; each lane keeps its own order.
            let sending = R::spawn(async move {
                let (mut pending, mut full) = (VecDeque::new(), 0_u64);
                for item in 0..ITEMS {
                    if item % 100 == 0 {
                        while sender.try_send(0, item).is_err() {
                            full += 1;
                            sender.room(0).await;
                        }
                        continue;
                    }
                    pending.push_back(item);
                    while pending.len() >= 16 || (item == ITEMS - 1 && !pending.is_empty()) {
                        if sender.try_send_batch(1, &mut pending) == 0 {
                            full += 1;
                            sender.room(1).await;
                        }
                    }
                }
                full
            });
            let (mut batch, mut next) = (Vec::new(), [0, 1]);
            while receiver.receive(&mut batch, 24).await > 0 {
                for item in batch.drain(..) {
                    let lane = usize::from(item % 100 != 0);
                    assert_eq!(item, next[lane], "lane {lane}");
                    next[lane] += if lane == 0 { 100 } else { 1 };
                    next[1] += u64::from(next[1] % 100 == 0);
                }
            }
            assert_eq!(next, [ITEMS, ITEMS + 1]);
            sending.await.expect("sender")
        }
    });
    assert!(full.iter().all(|&times| times > 0), "no mailbox was ever full: {full:?}");
}

/// [`Notify`] and [`Shutdown`] wake tasks from other cores and from plain threads.
pub fn signals_cross_threads<R: Runtime>(options: &RunOptions) {
    const ROUNDS: usize = 2_000;
    let bells = Arc::new([Notify::new(), Notify::new()]);
    let stop = Shutdown::new();
    let thread = std::thread::spawn({
        let (bells, stop) = (bells.clone(), stop.clone());
        move || {
            bells[0].notify(); // the first serve
            while !stop.is_triggered() {
                std::thread::yield_now();
            }
        }
    });
    run::<R, _, _, _>(options, 2, {
        let stop = stop.clone();
        move |core| {
            let (bells, stop) = (bells.clone(), stop.clone());
            async move {
                let waiting = R::spawn({
                    let stop = stop.clone();
                    async move { stop.wait().await }
                });
                for _ in 0..ROUNDS {
                    bells[core.index].notified().await;
                    bells[1 - core.index].notify();
                }
                if core.index == 1 {
                    stop.trigger();
                }
                waiting.await.expect("waiting");
            }
        }
    });
    assert!(stop.is_triggered());
    thread.join().expect("thread");
}

/// What core `index` starts with: where it receives, and where it sends to.
type Seat<T, const LANES: usize> = (Receiver<T, LANES>, Sender<T, LANES>);
type Seats<T, const LANES: usize> = Mutex<[Option<Seat<T, LANES>>; 2]>;

fn seats<T: Send, const LANES: usize>(seats: [Seat<T, LANES>; 2]) -> Seats<T, LANES> {
    Mutex::new(seats.map(Some))
}

fn take<T: Send, const LANES: usize>(seats: &Seats<T, LANES>, index: usize) -> Seat<T, LANES> {
    let mut seats = seats.lock().unwrap_or_else(PoisonError::into_inner);
    seats[index].take().expect("each core starts once")
}
