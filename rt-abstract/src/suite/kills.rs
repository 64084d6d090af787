//! How reads, writes and accepts end early, and that nothing gets lost on the way.

use std::pin::pin;
use std::sync::Arc;

use super::tools::{
    Lender, TempDir, check, expect, expect_end, free_port, listen, pattern, pause, run_one, send,
    tcp_pair, unless_notified,
};
use crate::io::{AsyncRead, AsyncWrite, Closer};
use crate::net::{Address, Listener, Stream};
use crate::notify::Notify;
use crate::runtime::{RunOptions, Runtime};

/// A killed socket's pending read returns 0 and gives its buffer back.
pub fn kill_ends_a_pending_read<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        for paused in [false, true] {
            let (_near, far) = tcp_pair::<R>().await;
            let closer = far.closer();
            let (mut read, write) = far.into_split();
            let reader = R::spawn(async move {
                let mut buf = Vec::with_capacity(100);
                buf.extend_from_slice(b"kept");
                let (result, buf) = read.read(buf).await;
                assert_eq!(result.expect("a kill is no error for a read"), 0);
                assert_eq!((&buf[..], buf.capacity()), (&b"kept"[..], 100));
                expect_end(&mut read).await;
            });
            if paused {
                pause::<R>().await;
            }
            closer.kill();
            reader.await.expect("reader");
            drop(write);
        }
    });
}

/// A killed socket's pending lazy read returns 0 and owes no buffer.
pub fn kill_ends_a_pending_lazy_read<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        for paused in [false, true] {
            let (_near, mut far) = tcp_pair::<R>().await;
            let closer = far.closer();
            let lender = Lender::new(100);
            let reader = R::spawn({
                let lender = lender.clone();
                async move {
                    let (result, buf) = far.read_lazy(lender.get(), lender.put()).await;
                    assert_eq!(result.expect("a kill is no error for a read"), 0);
                    lender.back(buf.expect("a buffer"));
                }
            });
            if paused {
                pause::<R>().await;
            }
            closer.kill();
            reader.await.expect("reader");
            assert_eq!(lender.out(), 0);
        }
    });
}

/// A killed socket's blocked write fails and gives its buffers back.
pub fn kill_ends_a_blocked_write<R: Runtime>(options: &RunOptions) {
    const LARGE: usize = 16 * 1024 * 1024;
    run_one::<R, _, _>(options, || async {
        for vectored in [false, true] {
            let (_near, far) = tcp_pair::<R>().await;
            let closer = far.closer();
            let (read, mut write) = far.into_split();
            let writer = R::spawn(async move {
                // Nobody reads, and no socket buffer is that large.
                if vectored {
                    let (result, bufs) = write.writev_all(vec![vec![7; LARGE]; 2]).await;
                    result.expect_err("killed");
                    assert!(bufs.len() == 2 && bufs.iter().all(|buf| buf.len() == LARGE));
                } else {
                    let (result, buf) = write.write_all(vec![7; LARGE]).await;
                    result.expect_err("killed");
                    assert_eq!(buf.len(), LARGE);
                }
                write.write_all(vec![7]).await.0.expect_err("killed for good");
            });
            pause::<R>().await;
            closer.kill();
            writer.await.expect("writer");
            drop(read);
        }
    });
}

/// Killing twice, or after the peer is gone, does nothing.
pub fn kill_is_idempotent<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let (near, mut far) = tcp_pair::<R>().await;
        drop(near);
        expect_end(&mut far).await;
        let closer = far.closer();
        closer.kill();
        closer.clone().kill();
        expect_end(&mut far).await;
        drop(far);
        closer.kill();
    });
}

/// A closer outlives its stream without reaching the next owner of the descriptor's number, and
/// other connections do not notice.
pub fn kill_hits_only_its_own_socket<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let (near, far) = tcp_pair::<R>().await;
        let (near_closer, far_closer) = (near.closer(), far.closer());
        drop((near, far));
        let mut others = Vec::new();
        for _ in 0..8 {
            let (mut near, mut far) = tcp_pair::<R>().await;
            let closer = far.closer();
            let echo = R::spawn(async move {
                loop {
                    let (result, buf) = far.read(Vec::with_capacity(64)).await;
                    if result.expect("read") == 0 {
                        return;
                    }
                    far.write_all(buf).await.0.expect("write");
                }
            });
            send(&mut near, 0, 10, 10).await;
            expect(&mut near, 0, 10, 10).await;
            others.push((near, closer, echo));
        }
        near_closer.kill();
        far_closer.kill();
        let (mut near, closer, echo) = others.remove(3);
        closer.kill();
        echo.await.expect("echo");
        expect_end(&mut near).await;
        for (mut near, _closer, echo) in others {
            send(&mut near, 10, 30, 20).await;
            expect(&mut near, 10, 30, 20).await;
            near.shutdown().await.expect("shutdown");
            echo.await.expect("echo");
        }
    });
}

/// A read that its task stops waiting for, and waits for again later, keeps its bytes.
pub fn interrupted_reads_lose_nothing<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let (mut near, mut far) = tcp_pair::<R>().await;
        let notify = Arc::new(Notify::new());
        notify.notify();
        let sender = R::spawn({
            let notify = notify.clone();
            async move {
                interrupt::<R>(&mut near, &notify).await;
                near
            }
        });
        let (mut at, mut interrupted) = (0, 0);
        loop {
            let mut read = pin!(far.read(Vec::with_capacity(500)));
            let (result, buf) = loop {
                match unless_notified(read.as_mut(), &notify).await {
                    Some(done) => break done,
                    None => interrupted += 1,
                }
                R::yield_now().await; // the bytes may arrive while nobody polls
            };
            let count = result.expect("read");
            if count == 0 {
                break;
            }
            check(at, &buf);
            at += count;
        }
        assert_eq!(at, INTERRUPTED_BYTES);
        assert!(interrupted > 0);
        sender.await.expect("sender");
    });
}

/// The same for a lazy read.
pub fn interrupted_lazy_reads_lose_nothing<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let (mut near, mut far) = tcp_pair::<R>().await;
        let notify = Arc::new(Notify::new());
        notify.notify();
        let sender = R::spawn({
            let notify = notify.clone();
            async move {
                interrupt::<R>(&mut near, &notify).await;
                near
            }
        });
        let lender = Lender::new(500);
        let (mut at, mut interrupted) = (0, 0);
        loop {
            let mut read = pin!(far.read_lazy(lender.get(), lender.put()));
            let (result, buf) = loop {
                match unless_notified(read.as_mut(), &notify).await {
                    Some(done) => break done,
                    None => interrupted += 1,
                }
                R::yield_now().await;
            };
            let count = result.expect("read");
            let buf = buf.expect("a buffer");
            check(at, &buf);
            lender.back(buf);
            if count == 0 {
                break;
            }
            at += count;
        }
        assert_eq!(at, INTERRUPTED_BYTES);
        assert_eq!(lender.out(), 0);
        assert!(interrupted > 0);
        sender.await.expect("sender");
    });
}

const INTERRUPTED_BYTES: usize = 200_000;

/// Sends small writes and an interruption around each.
async fn interrupt<R: Runtime>(near: &mut R::Stream, notify: &Notify) {
    let mut at = 0;
    while at < INTERRUPTED_BYTES {
        let to = INTERRUPTED_BYTES.min(at + 1 + at % 700);
        notify.notify();
        let (result, _) = near.write_all(pattern(at, to - at)).await;
        result.expect("write");
        notify.notify();
        R::yield_now().await;
        at = to;
    }
    near.shutdown().await.expect("shutdown");
}

/// A killed listener's pending accept fails, and so do all later ones.
pub fn listener_kill_ends_accept<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let dir = TempDir::new::<R>().await;
        for address in [free_port(), Address::Unix(dir.join("kill.sock"))] {
            for paused in [false, true] {
                let (mut listener, bound) = listen::<R>(&address);
                let closer = listener.closer();
                let accepted = Arc::new(Notify::new());
                let accepting = R::spawn({
                    let accepted = accepted.clone();
                    async move {
                        let (first, _) = listener.accept().await.expect("accept");
                        accepted.notify();
                        assert!(listener.accept().await.is_err(), "{:?}", listener.local_address());
                        assert!(listener.accept().await.is_err(), "{:?}", listener.local_address());
                        first
                    }
                });
                let mut near = R::connect(&bound).await.expect("connect");
                accepted.notified().await;
                if paused {
                    pause::<R>().await;
                }
                closer.kill();
                let mut far = accepting.await.expect("acceptor");
                send(&mut far, 0, 10, 10).await;
                expect(&mut near, 0, 10, 10).await;
            }
        }
    });
}
