use proptest::prelude::*;

use super::*;
use crate::state::samples;
use crate::state::testing::MapView;

/// All pieces of a state, cut as `sizes` say, over and over.
fn pieces(state: &MapView, sizes: &[usize]) -> Vec<Vec<u8>> {
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    let mut after: Option<Vec<u8>> = None;
    loop {
        assert!(pieces.len() <= state.0.len(), "each piece goes on");
        let size = sizes[pieces.len() % sizes.len()];
        let chunk = export(state, after.as_deref(), size).expect("reads");
        let bytes = chunk.encode(pieces.len() as u64);
        assert!(bytes.len() <= size || chunk.records.len() <= 1, "a piece is bounded");
        pieces.push(bytes);
        after = chunk.last_key().map(<[u8]>::to_vec).or(after);
        if chunk.last {
            return pieces;
        }
    }
}

fn import<'a>(pieces: impl IntoIterator<Item = &'a Vec<u8>>) -> Result<MapView, ChunkError> {
    let mut importer = Importer::new();
    let mut state = MapView::default();
    for piece in pieces {
        state.0.extend(importer.accept(piece)?);
    }
    if !importer.is_finished() {
        return Err(ChunkError::Damaged("unfinished".into()));
    }
    Ok(state)
}

fn states() -> impl Strategy<Value = MapView> {
    let bytes = |most| proptest::collection::vec(any::<u8>(), 0..most);
    proptest::collection::btree_map(bytes(6), bytes(40), 0..30).prop_map(MapView)
}

fn sizes() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(0_usize..300, 1..5)
}

#[test]
fn an_empty_state_is_one_empty_piece() {
    let pieces = pieces(&MapView::default(), &[100]);
    assert_eq!(pieces.len(), 1);
    assert_eq!(import(&pieces), Ok(MapView::default()));
}

#[test]
fn the_layout_of_a_piece_stays() {
    let chunk = Chunk { records: vec![(vec![1, 2], vec![3])], last: true };
    let body = [1, 1, 5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1, 2, 3];
    let bytes = chunk.encode(5);
    assert_eq!(bytes[..bytes.len() - 4], body);
    assert_eq!(Chunk::decode(&bytes), Ok((5, chunk)));
}

#[test]
fn a_state_made_by_commands_arrives_sound() {
    let state = samples::state();
    let copy = import(&pieces(&state, &[64])).expect("arrives");
    assert_eq!(copy, state);
    copy.totals();
}

#[test]
fn pieces_of_a_newer_build_are_told_apart_from_damage() {
    let mut bytes = Chunk { records: Vec::new(), last: true }.encode(0);
    let body = bytes.len() - CRC_BYTES;
    bytes[0] = 2;
    let crc = crc32c::crc32c(&bytes[..body]).to_le_bytes();
    bytes[body..].copy_from_slice(&crc);
    assert_eq!(Importer::new().accept(&bytes), Err(ChunkError::Version(2)));
}

#[test]
fn keys_must_grow_and_pieces_must_not_be_empty() {
    let piece = |keys: &[u8], last| Chunk {
        records: keys.iter().map(|&key| (vec![key], vec![])).collect(),
        last,
    };
    let mut importer = Importer::new();
    importer.accept(&piece(&[1, 2], false).encode(0)).expect("taken");
    assert_eq!(importer.accept(&piece(&[2], false).encode(1)), Err(ChunkError::Order(1)));
    assert_eq!(importer.accept(&piece(&[4, 3], false).encode(1)), Err(ChunkError::Order(1)));
    assert!(importer.accept(&piece(&[], false).encode(1)).is_err());
    assert_eq!((importer.next_sequence(), importer.last_key()), (1, Some(&[2][..])));
    importer.accept(&piece(&[], true).encode(1)).expect("taken");
    assert_eq!(importer.accept(&piece(&[9], true).encode(2)), Err(ChunkError::Finished));
}

proptest! {
    #[test]
    fn any_state_arrives_equal(state in states(), sizes in sizes()) {
        prop_assert_eq!(import(&pieces(&state, &sizes)), Ok(state));
    }

    #[test]
    fn a_receiver_can_go_on_after_an_interruption(
        state in states(), sizes in sizes(), arrived in any::<prop::sample::Index>(),
    ) {
        let first = pieces(&state, &sizes);
        let arrived = arrived.index(first.len());
        let mut importer = Importer::new();
        let mut copy = MapView::default();
        for piece in &first[..arrived] {
            copy.0.extend(importer.accept(piece).expect("taken"));
        }
        while !importer.is_finished() {
            let chunk = export(&state, importer.last_key(), 100).expect("reads");
            let bytes = chunk.encode(importer.next_sequence());
            copy.0.extend(importer.accept(&bytes).expect("taken"));
        }
        prop_assert_eq!(copy, state);
    }

    #[test]
    fn a_changed_byte_is_refused(
        state in states(),
        sizes in sizes(),
        piece in any::<prop::sample::Index>(),
        byte in any::<prop::sample::Index>(),
        flip in 1_u8..,
    ) {
        let mut pieces = pieces(&state, &sizes);
        let piece = piece.index(pieces.len());
        let byte = byte.index(pieces[piece].len());
        pieces[piece][byte] ^= flip;
        prop_assert!(import(&pieces).is_err());
    }

    #[test]
    fn a_missing_doubled_cut_or_swapped_piece_is_refused(
        state in states(), sizes in sizes(), piece in any::<prop::sample::Index>(),
    ) {
        let whole = pieces(&state, &sizes);
        let place = piece.index(whole.len());
        let mut missing = whole.clone();
        missing.remove(place);
        prop_assert!(import(&missing).is_err());
        let mut doubled = whole.clone();
        doubled.insert(place, whole[place].clone());
        prop_assert!(import(&doubled).is_err());
        let mut cut = whole.clone();
        cut[place].pop();
        prop_assert!(import(&cut).is_err());
        if place > 0 {
            let mut swapped = whole;
            swapped.swap(place - 1, place);
            prop_assert!(import(&swapped).is_err());
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        let _ = Chunk::decode(&bytes);
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        let _ = Chunk::decode(&bytes);
    }
}
