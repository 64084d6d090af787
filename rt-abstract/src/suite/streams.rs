//! Bytes arrive whole, in order, however reads and writes are cut.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::tools::{
    Lender, TempDir, check, expect, expect_end, pair_at, pattern, pause, run_one, send, tcp_pair,
    unless_notified,
};
use crate::buf::{IoBuf, Piece};
use crate::io::{AsyncRead, AsyncWrite};
use crate::net::{Address, Stream};
use crate::notify::Notify;
use crate::runtime::{RunOptions, Runtime};

const MIB: usize = 1024 * 1024;

/// Four MiB over TCP, writes and reads cut differently, then the end.
pub fn ordered_over_tcp<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let (near, far) = tcp_pair::<R>().await;
        ordered::<R>(near, far).await;
    });
}

/// The same over a Unix-domain socket.
pub fn ordered_over_unix<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let dir = TempDir::new::<R>().await;
        let (near, far) = pair_at::<R>(&Address::Unix(dir.join("ordered.sock"))).await;
        ordered::<R>(near, far).await;
    });
}

async fn ordered<R: Runtime>(mut near: R::Stream, mut far: R::Stream) {
    let sender = R::spawn(async move {
        send(&mut near, 0, MIB, 1_000).await;
        send(&mut near, MIB, 3 * MIB, 100_000).await;
        send(&mut near, 3 * MIB, 4 * MIB, MIB).await;
        near.shutdown().await.expect("shutdown");
        near
    });
    expect(&mut far, 0, 2 * MIB, 4_096).await;
    expect(&mut far, 2 * MIB, 4 * MIB, 65_536).await;
    expect_end(&mut far).await;
    expect_end(&mut far).await;
    sender.await.expect("sender");
}

/// Both ends write and read at the same time through their halves.
pub fn both_directions_at_once<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let (near, far) = tcp_pair::<R>().await;
        let mut tasks = Vec::new();
        for stream in [near, far] {
            let (mut read, mut write) = stream.into_split();
            tasks.push(R::spawn(async move {
                send(&mut write, 0, 2 * MIB, 30_000).await;
                write.shutdown().await.expect("shutdown");
            }));
            tasks.push(R::spawn(async move {
                expect(&mut read, 0, 2 * MIB, 8_192).await;
                expect_end(&mut read).await;
            }));
        }
        for task in tasks {
            task.await.expect("half");
        }
    });
}

/// With socket buffers of a few KiB every large write is partial.
pub fn small_socket_buffers<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let (near, far) = UnixStream::pair().expect("pair");
        for end in [&near, &far] {
            let socket = socket2::SockRef::from(end);
            socket.set_send_buffer_size(4_096).expect("SO_SNDBUF");
            socket.set_recv_buffer_size(4_096).expect("SO_RCVBUF");
        }
        let mut near = R::adopt(OwnedFd::from(near).into()).expect("adopt");
        let mut far = R::adopt(OwnedFd::from(far).into()).expect("adopt");
        let sender = R::spawn(async move {
            let mut at = 0;
            let mut partial = 0;
            while at < 300_000 {
                let buf = pattern(at, 300_000 - at);
                let (result, buf) = near.write(buf).await;
                let count = result.expect("write");
                assert!(count > 0 && count <= buf.len());
                partial += usize::from(count < buf.len());
                at += count;
            }
            send(&mut near, at, 400_000, 100_000).await;
            near.shutdown().await.expect("shutdown");
            (near, partial)
        });
        expect(&mut far, 0, 5_000, 7).await;
        expect(&mut far, 5_000, 400_000, 3_000).await;
        expect_end(&mut far).await;
        let (_near, partial) = sender.await.expect("sender");
        assert!(partial > 0, "300 kB fitted into a 4 KiB socket buffer");
    });
}

/// A read adds to what the buffer holds and uses its spare capacity only.
pub fn reads_append<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let (mut near, mut far) = tcp_pair::<R>().await;
        send(&mut near, 10, 100, 90).await;
        let mut buf = BytesMut::with_capacity(64);
        buf.extend_from_slice(&pattern(0, 10));
        let (capacity, place) = (buf.capacity(), buf.as_ptr() as usize);
        while buf.len() < capacity.min(100) {
            let (result, back) = far.read(buf).await;
            assert!(result.expect("read") > 0);
            buf = back;
            assert_eq!(buf.capacity(), capacity, "a read does not allocate");
            assert_eq!(buf.as_ptr() as usize, place, "the same buffer comes back");
            check(0, &buf);
        }
        expect(&mut far, buf.len(), 100, 100).await;
    });
}

/// More pieces than the kernel takes at once, of several kinds, some of them empty.
pub fn many_pieces_at_once<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let (mut near, mut far) = tcp_pair::<R>().await;
        let sizes: Vec<usize> = (0..5_000).map(|index| index * 7 % 200).collect();
        let total: usize = sizes.iter().sum();
        let sender = R::spawn(async move {
            let mut at = 0;
            let mut pieces = Vec::new();
            for (index, &size) in sizes.iter().enumerate() {
                let bytes = pattern(at, size);
                pieces.push(match index % 2 {
                    0 => Piece::Owned(bytes),
                    _ => Piece::Shared(Bytes::from(bytes)),
                });
                at += size;
            }
            let (result, pieces) = near.writev_all(pieces).await;
            result.expect("writev_all");
            let lengths: Vec<usize> = pieces.iter().map(IoBuf::len).collect();
            assert_eq!(lengths, sizes, "all pieces come back as they were");

            // One write takes at most the first 1024 pieces.
            let slices: Vec<_> = (0..2_000).map(|i| pattern(at + i - 3, 4).slice_from(3)).collect();
            let (result, slices) = near.writev(slices).await;
            let count = result.expect("writev");
            assert!((1..=1_024).contains(&count), "{count} pieces of one byte were taken");
            assert_eq!(slices.len(), 2_000);
            at += count;

            let slices: Vec<_> = (0..2_000).map(|i| pattern(at + i - 3, 4).slice_from(3)).collect();
            let (result, _) = near.writev_all(slices).await;
            result.expect("writev_all");
            at += 2_000;

            near.writev_all(Vec::<Piece>::new()).await.0.expect("no pieces");
            near.writev_all(vec![Piece::Owned(Vec::new()); 3]).await.0.expect("empty pieces");
            near.write_all(Vec::new()).await.0.expect("no bytes");
            let (result, _) = near.write_all(pattern(at - 5, 15).slice_from(5)).await;
            result.expect("write_all");
            near.shutdown().await.expect("shutdown");
            (near, at + 10)
        });
        expect(&mut far, 0, total, 4_096).await;
        let mut at = total;
        loop {
            let (result, buf) = far.read(Vec::with_capacity(4_096)).await;
            let count = result.expect("read");
            if count == 0 {
                break;
            }
            check(at, &buf);
            at += count;
        }
        let (_near, sent) = sender.await.expect("sender");
        assert_eq!(at, sent);
    });
}

/// After a shutdown of one direction the other one still works.
pub fn half_close<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let (mut near, mut far) = tcp_pair::<R>().await;
        send(&mut near, 0, 50, 50).await;
        near.shutdown().await.expect("shutdown");
        expect(&mut far, 0, 50, 16).await;
        expect_end(&mut far).await;
        let sender = R::spawn(async move {
            send(&mut far, 0, MIB, 10_000).await;
            far.shutdown().await.expect("shutdown");
            far
        });
        expect(&mut near, 0, MIB, 10_000).await;
        expect_end(&mut near).await;
        let (result, _) = near.write(vec![1]).await;
        result.expect_err("writing after shutdown");
        sender.await.expect("sender");
    });
}

/// Only `shutdown`, a kill or the last handle ends the stream.
pub fn dropping_the_write_half_sends_nothing<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let (near, far) = tcp_pair::<R>().await;
        let (mut near_read, near_write) = near.into_split();
        let (mut far_read, mut far_write) = far.into_split();
        drop(near_write);
        let (look, looked) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let reader = R::spawn({
            let (look, looked) = (look.clone(), looked.clone());
            async move {
                let mut read = pin!(far_read.read(Vec::with_capacity(8)));
                let early = unless_notified(read.as_mut(), &look).await;
                assert!(early.is_none(), "the stream ended with its write half: {early:?}");
                looked.notify();
                let (result, _) = read.await;
                assert_eq!(result.expect("end"), 0);
            }
        });
        send(&mut far_write, 0, 100, 100).await;
        expect(&mut near_read, 0, 100, 100).await;
        pause::<R>().await;
        look.notify();
        looked.notified().await;
        drop(near_read);
        reader.await.expect("reader");
    });
}

/// A read needs spare capacity.
pub fn full_buffer_is_invalid_input<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let (mut near, mut far) = tcp_pair::<R>().await;
        send(&mut near, 0, 10, 10).await;
        let (result, buf) = far.read(Vec::new()).await;
        assert_eq!(result.expect_err("no room").kind(), ErrorKind::InvalidInput);
        assert_eq!(buf.capacity(), 0);
        let (result, buf) = far.read(Box::<[u8]>::from(&b"full"[..]).into_vec()).await;
        assert_eq!(result.expect_err("no room").kind(), ErrorKind::InvalidInput);
        assert_eq!(buf, b"full");

        let lender = Lender::new(0);
        let (result, buf) = far.read_lazy(lender.get(), lender.put()).await;
        assert_eq!(result.expect_err("no room").kind(), ErrorKind::InvalidInput);
        if let Some(buf) = buf {
            lender.back(buf);
        }
        assert_eq!(lender.out(), 0, "the buffer comes back one way or the other");
        expect(&mut far, 0, 10, 10).await;
    });
}

/// While nothing arrives, a lazy read has no buffer.
pub fn lazy_reads_hold_nothing_while_idle<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let (mut near, mut far) = tcp_pair::<R>().await;
        let lender = Lender::new(64);
        let notify = Notify::new();
        for round in 0..3 {
            let mut read = pin!(far.read_lazy(lender.get(), lender.put()));
            notify.notify();
            assert!(unless_notified(read.as_mut(), &notify).await.is_none());
            assert_eq!(lender.out(), 0, "a buffer is out while the stream is idle");
            send(&mut near, round * 20, round * 20 + 20, 20).await;
            let (result, buf) = read.await;
            assert_eq!(result.expect("read"), 20);
            let buf = buf.expect("a read has a buffer");
            check(round * 20, &buf);
            assert_eq!(lender.out(), 1, "exactly the buffer that was read into");
            lender.back(buf);
        }
        near.shutdown().await.expect("shutdown");
        let (result, buf) = far.read_lazy(lender.get(), lender.put()).await;
        assert_eq!(result.expect("end"), 0);
        lender.back(buf.expect("the end of a stream is no error"));
        assert_eq!(lender.out(), 0);
    });
}

/// A long stream through lazy reads alone.
pub fn lazy_reads_deliver_everything<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let (mut near, mut far) = tcp_pair::<R>().await;
        let sender = R::spawn(async move {
            for at in (0..MIB).step_by(65_536) {
                send(&mut near, at, at + 65_536, 1 + at % 5_000).await;
                R::yield_now().await;
            }
            near.shutdown().await.expect("shutdown");
            near
        });
        let lender = Lender::new(2_048);
        let mut at = 0;
        loop {
            let (result, buf) = far.read_lazy(lender.get(), lender.put()).await;
            let count = result.expect("read");
            let buf = buf.expect("a buffer");
            assert_eq!(buf.len(), count);
            check(at, &buf);
            lender.back(buf);
            at += count;
            if count == 0 {
                break;
            }
        }
        assert_eq!(at, MIB);
        assert_eq!(lender.out(), 0);
        sender.await.expect("sender");
    });
}
