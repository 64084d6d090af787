//! Places, bounds and releases without a disk.

use proptest::prelude::*;

use super::*;
use crate::format::{SegmentHeader, checked_record, encode_frame_header, frame_crc, records};

const SEGMENT_BYTES: u64 = 64 << 10;

fn gather(available: u64) -> Gather {
    let options = Options {
        segment_bytes: SEGMENT_BYTES,
        max_batch_bytes: 4 << 10,
        max_waiting_bytes: 100 << 10,
        ..Options::new("nowhere")
    };
    let tail = Tail { oldest: 3, segment: 3, offset: SEGMENT_HEADER_BYTES, sequence: 10 };
    Gather::new(options, tail, available)
}

fn batch(lengths: &[usize]) -> Batch {
    let mut batch = Batch::new();
    for (index, &len) in lengths.iter().enumerate() {
        batch.push(|out| out.extend(std::iter::repeat_n(index as u8, len)));
    }
    batch
}

/// Takes a frame as the writer does.
fn write(gather: &mut Gather) -> Option<(Frame, Bytes)> {
    let mut frame = gather.take()?;
    let of = SegmentHeader { number: frame.segment, segment_bytes: SEGMENT_BYTES, salt: 5 };
    let crc = frame_crc(&frame.bytes[..frame.length], frame.records, frame.sequence, &of);
    let header = encode_frame_header(frame.length, crc, frame.records, frame.sequence, &of);
    frame.bytes = Bytes::new();
    let bytes = gather.seal(header)?;
    gather.set_active(frame.segment);
    Some((frame, bytes))
}

proptest! {
    /// Frames follow each other without overlap, stay within their segments, and records lie where
    /// their positions say, in memory and in the frame.
    #[test]
    fn records_lie_where_they_were_placed(
        batches in prop::collection::vec(prop::collection::vec(0..3_000usize, 1..6), 1..40),
        take_every in 1..8usize,
    ) {
        let mut gather = gather(1_000);
        let mut placed = Vec::new();
        let mut frames = Vec::new();
        for (index, lengths) in batches.iter().enumerate() {
            let mut batch = batch(lengths);
            let mut at = 0;
            match gather.append(&mut batch, Class::New) {
                Ok(appended) => for (index, &len) in lengths.iter().enumerate() {
                    placed.push((appended.base().plus(at), vec![index as u8; len], appended.ticket));
                    at += (RECORD_HEADER_BYTES + len) as u64;
                },
                Err(refused) => prop_assert_eq!(refused, Refused::Busy),
            }
            prop_assert!(gather.waiting_bytes() <= 100 << 10);
            for (position, record, _) in placed.iter().filter(|placed| placed.2.0 > gather.durable) {
                let Lookup::Here(found) = gather.find(*position) else { panic!("it is in memory") };
                prop_assert_eq!(checked_record(&found, *position), Some(&record[..]));
            }
            if index % take_every == 0 && let Some((frame, bytes)) = write(&mut gather) {
                frames.push((frame, bytes.to_vec()));
                drop(bytes);
                gather.finish();
            }
        }
        while let Some((frame, bytes)) = write(&mut gather) {
            frames.push((frame, bytes.to_vec()));
            drop(bytes);
            gather.finish();
        }
        prop_assert_eq!(gather.waiting_bytes(), 0);
        prop_assert!(gather.buffers.len() <= KEPT_BUFFERS);
        let (mut end, mut sequence, mut written) = ((3, SEGMENT_HEADER_BYTES), 10, Vec::new());
        for (frame, bytes) in &frames {
            let next = [end, (end.0 + 1, SEGMENT_HEADER_BYTES)];
            prop_assert!(next.contains(&(frame.segment, frame.offset)));
            sequence += 1;
            prop_assert_eq!(frame.sequence, sequence);
            end = (frame.segment, frame.offset + bytes.len() as u64);
            prop_assert!(end.1 <= SEGMENT_BYTES && end.1.is_multiple_of(BLOCK_BYTES));
            prop_assert!(bytes[frame.length..].iter().all(|&byte| byte == 0));
            for (at, record) in records(&bytes[..frame.length]) {
                let at = Position::of(frame.segment, frame.offset + at as u64, SEGMENT_BYTES);
                written.push((at, record.to_vec(), Ticket(frame.sequence)));
            }
        }
        prop_assert_eq!(written, placed);
    }
}

#[test]
fn buffers_are_used_again() {
    let mut gather = gather(10);
    for _ in 0..5 {
        gather.append(&mut batch(&[1_000]), Class::New).expect("is taken");
        let (_, bytes) = write(&mut gather).expect("waits");
        drop(bytes);
        gather.finish();
        assert_eq!(gather.buffers.len(), 1);
        assert!(gather.buffers[0].is_empty() && gather.buffers[0].capacity() >= 1_000);
    }
}

#[test]
fn the_last_segment_is_the_reserve() {
    let mut gather = gather(1); // 3 is written, 4 is ready
    let mut fill = |class| loop {
        match gather.append(&mut batch(&[5_500]), class) {
            Ok(_) => {
                drop(write(&mut gather));
                gather.finish();
            }
            Err(refused) => return (refused, gather.usage().end.get() / SEGMENT_BYTES),
        }
    };
    assert_eq!(fill(Class::New), (Refused::Busy, 3));
    assert_eq!(fill(Class::Always), (Refused::Busy, 4));
    gather.set_nearly_full(true);
    assert_eq!(gather.append(&mut batch(&[1]), Class::New), Err(Refused::NearlyFull));
    gather.append(&mut batch(&[1]), Class::Always).expect("there is a little room");
    assert_eq!(gather.append(&mut batch(&[5_500]), Class::Always), Err(Refused::Full));
    gather.add_spare();
    gather.append(&mut batch(&[5_500]), Class::Always).expect("there is room");
    assert_eq!(gather.append(&mut batch(&[5_500]), Class::New), Err(Refused::NearlyFull));
    gather.set_nearly_full(false);
    gather.append(&mut batch(&[5_500]), Class::New).expect("there is room");
    gather.fail("broken");
    gather.set_nearly_full(false);
    assert_eq!(gather.append(&mut batch(&[1]), Class::Always), Err(Refused::Failed));
}

#[test]
fn segments_go_in_order_once_what_was_appended_is_durable() {
    let mut gather = gather(1_000);
    let commit = |gather: &mut Gather| {
        drop(write(gather));
        gather.finish();
    };
    while gather.next.0 < 6 {
        gather.append(&mut batch(&[5_000]), Class::New).expect("is taken");
        commit(&mut gather);
    }
    let before = |segment: u64| Position::of(segment, 77, SEGMENT_BYTES);
    gather.release_before(before(4));
    gather.append(&mut batch(&[1]), Class::New).expect("is taken");
    gather.release_before(before(5));
    gather.release_before(before(5));
    gather.release_before(before(2));
    assert_eq!(gather.release_one(), Some(3));
    assert_eq!(gather.release_one(), None, "the frame is not durable");
    commit(&mut gather);
    assert!(gather.has_releases());
    assert_eq!(gather.release_one(), Some(4));
    assert_eq!(gather.release_one(), None);
    assert!(!gather.has_releases());
    gather.release_before(Position::new(u64::MAX));
    assert_eq!(gather.release_one(), Some(5));
    assert_eq!(gather.release_one(), None, "6 is written");
    gather.set_active(7);
    assert_eq!(gather.release_one(), Some(6));
    assert!(matches!(gather.find(before(6)), Lookup::Released));
}
