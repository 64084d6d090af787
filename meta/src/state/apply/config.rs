//! The cluster's configuration: keys with versions.

use super::{Outcome, valid};
use crate::command::{Refusal, Reply};
use crate::record::ConfigRecord;
use crate::state::{Effect, Tx, keys};

pub(super) fn set(
    tx: &mut Tx<'_>,
    index: u64,
    key: &str,
    expected: Option<u64>,
    value: Option<&[u8]>,
    effects: &mut Vec<Effect>,
) -> Outcome {
    valid::name("the key", key)?;
    let place = keys::config(key);
    let found = tx.load::<ConfigRecord>(&place)?.map_or(0, |record| record.version);
    if expected.is_some_and(|expected| expected != found) {
        return Err(Refusal::Conflict { version: found }.into());
    }
    let version = match value {
        Some(value) => {
            let version = tx.stamp(index)?;
            tx.save(place, &ConfigRecord { version, value: value.to_vec() });
            version
        }
        None if found == 0 => return Ok(Reply::Config { version: 0 }),
        None => {
            tx.delete(place);
            0
        }
    };
    effects.push(Effect::ConfigChanged { key: key.to_owned(), version });
    Ok(Reply::Config { version })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Command;
    use crate::state::read;
    use crate::state::testing::MapView;

    fn set(expected: Option<u64>, value: Option<&str>) -> Command {
        let value = value.map(|value| value.as_bytes().to_vec());
        Command::SetConfig { key: "k".into(), expected, value }
    }

    #[test]
    fn of_two_concurrent_updates_one_is_told() {
        let mut state = MapView::default();
        let (reply, effects) = state.run(5, set(Some(0), Some("a")));
        assert_eq!(reply, Reply::Config { version: 5 });
        assert_eq!(effects, [Effect::ConfigChanged { key: "k".into(), version: 5 }]);
        let late = state.refuse(6, set(Some(0), Some("b")));
        assert_eq!(late, Reply::Refused(Refusal::Conflict { version: 5 }));
        assert_eq!(state.run(7, set(Some(5), Some("b"))).0, Reply::Config { version: 7 });
        assert_eq!(state.run(8, set(None, Some("c"))).0, Reply::Config { version: 8 });
        let found = read::config(&state, "k").expect("reads");
        assert_eq!(found, Some(ConfigRecord { version: 8, value: b"c".to_vec() }));
    }

    #[test]
    fn a_key_can_be_removed() {
        let mut state = MapView::default();
        assert_eq!(state.run(1, set(None, None)), (Reply::Config { version: 0 }, vec![]));
        state.refuse(2, set(Some(1), None));
        state.run(3, set(None, Some("a")));
        state.refuse(4, set(Some(0), None));
        let (reply, effects) = state.run(5, set(Some(3), None));
        assert_eq!(reply, Reply::Config { version: 0 });
        assert_eq!(effects, [Effect::ConfigChanged { key: "k".into(), version: 0 }]);
        assert_eq!(read::config(&state, "k").expect("reads"), None);
    }

    #[test]
    fn versions_differ_within_one_entry_and_over_a_removal() {
        let mut state = MapView::default();
        let commands = [set(None, Some("a")), set(None, Some("b")), set(None, None)];
        let (replies, _) = state.entry(5, &commands);
        let versions = [5, 6, 0].map(|version| Reply::Config { version });
        assert_eq!(replies, versions);
        assert_eq!(state.run(6, set(None, Some("c"))).0, Reply::Config { version: 7 });
    }

    #[test]
    fn bad_keys_are_refused() {
        let mut state = MapView::default();
        for key in ["", "a\0b", &"a".repeat(65_536)] {
            let value = Some(Vec::new());
            state.refuse(1, Command::SetConfig { key: key.into(), expected: None, value });
        }
    }
}
