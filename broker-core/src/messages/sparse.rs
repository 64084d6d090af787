//! Which of the oldest segments hold so little that is owed that moving it to the end of the log pays.

/// Segments that are superfluous at least before anything is moved.
const MIN_SUPERFLUOUS: u64 = 2;

/// How many of the oldest segments are to be emptied, of those that may be; `live_bytes` is what is
/// owed in each. None, unless all of them together hold at least as much that nobody needs as
/// somebody does, and [`MIN_SUPERFLUOUS`] segments' worth of it. So the journal takes about twice what
/// is owed, and some segments, and a message is moved once for as much traffic as there is owed.
///
/// On a nearly full disk, the oldest ones that take a fourth of a segment to move: it comes out of the
/// reserve, which gets a whole segment for it.
pub(super) fn sparse_prefix(live_bytes: &[u64], segment_bytes: u64, nearly_full: bool) -> usize {
    if nearly_full {
        return while_sum_is_at_most(live_bytes, segment_bytes / 4);
    }
    let owed: u64 = live_bytes.iter().map(|live| live.min(&segment_bytes)).sum();
    let superfluous = live_bytes.len() as u64 * segment_bytes - owed;
    if superfluous < owed.max(MIN_SUPERFLUOUS * segment_bytes) {
        return 0;
    }
    // The shortest one that gives back twice what it takes, and behind it those that do so as well.
    let mut owed = 0;
    let pays = live_bytes.iter().zip(1_u64..).position(|(live, count)| {
        owed += live.min(&segment_bytes);
        owed <= count * segment_bytes / 2
    });
    let Some(first) = pays else { return 0 };
    let more = live_bytes[first + 1..].iter().take_while(|live| **live <= segment_bytes / 2);
    first + 1 + more.count()
}

fn while_sum_is_at_most(live_bytes: &[u64], most: u64) -> usize {
    let mut sum = 0_u64;
    live_bytes
        .iter()
        .take_while(|live| {
            sum = sum.saturating_add(**live);
            sum <= most
        })
        .count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SEGMENT: u64 = 100;

    fn prefix(live_bytes: &[u64]) -> usize {
        sparse_prefix(live_bytes, SEGMENT, false)
    }

    #[test]
    fn little_that_is_owed_is_moved_and_much_stays() {
        assert_eq!(prefix(&[]), 0);
        assert_eq!(prefix(&[1, 1]), 0, "a few segments are left alone");
        assert_eq!(prefix(&[1, 1, 1]), 3);
        assert_eq!(prefix(&[100; 50]), 0);
        assert_eq!(prefix(&[40, 60, 60, 60, 60]), 0, "more is owed than not");
        assert_eq!(prefix(&[40, 60, 40, 40, 40]), 1, "the second one would not pay");
        assert_eq!(prefix(&[1, 100, 100, 0, 0, 0]), 1);
        // What is owed is in the oldest one: it pays together with those behind it.
        assert_eq!(prefix(&[100, 0, 0, 0]), 4);
        assert_eq!(prefix(&[100, 100, 0, 0, 0]), 5);
        assert_eq!(prefix(&[100, 100, 0, 0]), 4);
        assert_eq!(prefix(&[100, 100, 0]), 0);
        assert_eq!(prefix(&[u64::MAX, 0, 0, 0]), 4, "an estimate that is too high");
    }

    #[test]
    fn a_nearly_full_disk_is_given_what_the_reserve_can_take() {
        let prefix = |live: &[u64]| sparse_prefix(live, SEGMENT, true);
        assert_eq!(prefix(&[10, 10, 10]), 2);
        assert_eq!(prefix(&[26, 0, 0, 0, 0]), 0);
        assert_eq!(prefix(&[25]), 1);
    }

    proptest! {
        #[test]
        fn moving_gives_back_at_least_what_it_takes(
            live in prop::collection::vec(0..=SEGMENT, 0..40),
        ) {
            let count = prefix(&live);
            let owed: u64 = live[..count].iter().sum();
            prop_assert!(owed <= count as u64 * SEGMENT / 2);
            let all: u64 = live.iter().sum();
            if live.len() as u64 * SEGMENT > 2 * all + 2 * SEGMENT {
                prop_assert!(count > 0, "the journal would grow");
            }
        }
    }
}
