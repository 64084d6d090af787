//! The table against a map, and under the eyes of readers while its lines change hands.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Short, just whole, with one more line, with several.
const LENGTHS: [usize; 6] = [3, 47, 48, 49, 90, 400];

fn text(number: u32) -> String {
    let len = LENGTHS[number as usize % LENGTHS.len()];
    let text = format!("{number}");
    format!("{}{text}", "x".repeat(len.saturating_sub(text.len())))
}

/// So bad a hash that many filters share one, and so tag and home with it.
fn key(number: u32) -> Key {
    let hash = u64::from(number / 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Key { hash: hash ^ hash >> 32, is_shaped: number.is_multiple_of(2) }
}

fn found(shards: u64) -> Found {
    Found { shards: ShardSet::from_bits(shards), has_groups: shards.is_multiple_of(3) }
}

fn find(table: &Table, number: u32) -> Option<Spot> {
    let text = text(number);
    table.find(key(number), |found| found == text.as_bytes())
}

proptest! {
    #[test]
    fn the_table_agrees_with_a_map(
        steps in vec((0..150u32, 0..4u8, any::<u64>()), 0..600), asked in vec(0..150u32, 1..60),
    ) {
        let (table, mut spare) = Table::new();
        let mut model = HashMap::new();
        for (number, what, shards) in steps {
            let spot = find(&table, number);
            prop_assert_eq!(spot.map(|spot| spot.found), model.get(&number).copied());
            match (what, spot) {
                (0, Some(spot)) => {
                    table.remove(&mut spare, key(number), spot);
                    model.remove(&number);
                }
                (_, Some(spot)) => {
                    table.set(spot, found(shards));
                    model.insert(number, found(shards));
                }
                (_, None) => {
                    prop_assert!(table.insert(&mut spare, key(number), &text(number), found(shards)));
                    model.insert(number, found(shards));
                }
            }
            prop_assert_eq!(table.len(), model.len());
        }
        let texts: Vec<_> = asked.iter().map(|number| text(*number)).collect();
        let keys: Vec<_> = asked.iter().map(|number| key(*number)).collect();
        let mut all = vec![None; asked.len()];
        table.find_all(&keys, |at, text| text == texts[at].as_bytes(), |at, found| {
            assert_eq!(all[at].replace(found), None, "found twice");
        });
        let expected: Vec<_> = asked.iter().map(|number| model.get(number).copied()).collect();
        prop_assert_eq!(all, expected);
    }
}

#[test]
fn what_comes_and_goes_takes_no_more_memory_each_time() {
    let (table, mut spare) = Table::new();
    let mut after_first = 0;
    for round in 0..20 {
        for number in 0..500 {
            assert!(table.insert(&mut spare, key(number), &text(number), found(1)));
        }
        for number in 0..500 {
            let spot = find(&table, number).expect("just inserted");
            table.remove(&mut spare, key(number), spot);
        }
        if round == 1 {
            after_first = spare.next;
        }
    }
    assert_eq!((table.len(), spare.next), (0, after_first));
}

#[test]
fn a_steady_change_of_filters_copies_segments_in_place_of_each_other() {
    let (table, mut spare) = Table::new();
    let mut most = 0;
    for number in 0..60_000u32 {
        assert!(table.insert(&mut spare, key(number), &text(number), found(1)));
        if let Some(old) = number.checked_sub(300) {
            let spot = find(&table, old).expect("inserted");
            table.remove(&mut spare, key(old), spot);
        }
        if number == 10_000 {
            most = spare.next;
        }
    }
    assert!(spare.next <= most * 11 / 10, "{most} lines, then {}", spare.next);
}

/// Filters that stay must always be found, whatever happens to lines, segments and records; and
/// what is found must belong to the filter that was asked for.
#[test]
fn readers_find_what_stays_and_nothing_else() {
    const STAY: u32 = 200;
    const ROUNDS: u32 = 300;
    // The shards say whose they are: a mixture of two filters would show.
    let mark = |number: u32| Found {
        shards: ShardSet::from_bits(u64::from(number) << 1 | 1),
        has_groups: number.is_multiple_of(2),
    };
    let (table, mut spare) = Table::new();
    let is_over = AtomicBool::new(false);
    let lookups = AtomicU64::new(0);
    for number in 0..STAY {
        assert!(table.insert(&mut spare, key(number), &text(number), mark(number)));
    }
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (table, is_over, lookups) = (&table, &is_over, &lookups);
            scope.spawn(move || {
                let mut start = reader;
                loop {
                    let ends = is_over.load(Ordering::Acquire);
                    start = (start + 7) % STAY;
                    // Five that stay, and five that come and go.
                    let asked: Vec<_> = (0..10)
                        .map(|at| if at % 2 == 0 { (start + at) % STAY } else { STAY + start + at })
                        .collect();
                    let keys: Vec<_> = asked.iter().map(|number| key(*number)).collect();
                    let texts: Vec<_> = asked.iter().map(|number| text(*number)).collect();
                    let mut stayed = 0;
                    table.find_all(
                        &keys,
                        |at, text| text == texts[at].as_bytes(),
                        |at, found| {
                            assert_eq!(found, mark(asked[at]));
                            stayed += u32::from(asked[at] < STAY);
                        },
                    );
                    assert_eq!(stayed, 5, "{asked:?}");
                    lookups.fetch_add(1, Ordering::Relaxed);
                    if ends {
                        return;
                    }
                }
            });
        }
        for round in 0..ROUNDS {
            let going = STAY..STAY + 100 + round % 300;
            for number in going.clone() {
                assert!(table.insert(&mut spare, key(number), &text(number), mark(number)));
            }
            for number in going {
                let spot = find(&table, number).expect("just inserted");
                table.remove(&mut spare, key(number), spot);
            }
        }
        is_over.store(true, Ordering::Release);
    });
    assert!(lookups.load(Ordering::Relaxed) > 0);
    assert_eq!(table.len(), STAY as usize);
}
