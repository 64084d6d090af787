//! Retained messages: one per topic.

use super::{Outcome, valid};
use crate::command::Reply;
use crate::record::StoredMessage;
use crate::state::{Effect, Tx, keys, read};
use crate::store::StoreError;

pub(super) fn retain(
    tx: &mut Tx<'_>,
    index: u64,
    message: &StoredMessage,
    effects: &mut Vec<Effect>,
) -> Outcome {
    valid::message("the topic", message)?;
    if message.payload.is_empty() {
        // [MQTT-3.3.1-6]: an empty one removes, which is a command of its own.
        valid::invalid("a retained message has a payload".into())?;
    }
    let key = keys::retained(&message.topic);
    let before: Option<StoredMessage> = tx.load(&key)?;
    tx.save(key, message);
    count(tx, before.as_ref(), Some(message))?;
    effects.push(Effect::Retained { message: message.clone(), index });
    Ok(Reply::Done)
}

pub(super) fn unretain(
    tx: &mut Tx<'_>,
    index: u64,
    topic: &str,
    effects: &mut Vec<Effect>,
) -> Outcome {
    valid::topic("the topic", topic)?;
    if let Some(message) = tx.load::<StoredMessage>(&keys::retained(topic))? {
        clear(tx, index, message, effects)?;
    }
    Ok(Reply::Done)
}

pub(super) fn sweep(
    tx: &mut Tx<'_>,
    index: u64,
    now_ms: u64,
    topics: &[String],
    effects: &mut Vec<Effect>,
) -> Outcome {
    topics.iter().try_for_each(|topic| valid::topic("a topic", topic))?;
    for topic in topics {
        // Looked at again here: the topic may have a younger message by now.
        let message: Option<StoredMessage> = tx.load(&keys::retained(topic))?;
        let is_over =
            |message: &StoredMessage| message.expires_at_ms.is_some_and(|at| at <= now_ms);
        if let Some(message) = message.filter(is_over) {
            clear(tx, index, message, effects)?;
        }
    }
    Ok(Reply::Done)
}

fn clear(
    tx: &mut Tx<'_>,
    index: u64,
    message: StoredMessage,
    effects: &mut Vec<Effect>,
) -> Result<(), StoreError> {
    tx.delete(keys::retained(&message.topic));
    count(tx, Some(&message), None)?;
    effects.push(Effect::Unretained { topic: message.topic, index });
    Ok(())
}

fn count(
    tx: &mut Tx<'_>,
    before: Option<&StoredMessage>,
    after: Option<&StoredMessage>,
) -> Result<(), StoreError> {
    let mut totals = read::totals(tx)?;
    if let Some(message) = after {
        totals.retained += 1;
        totals.retained_bytes += message.stored_bytes();
    }
    if let Some(message) = before {
        totals.retained = totals.retained.saturating_sub(1);
        totals.retained_bytes = totals.retained_bytes.saturating_sub(message.stored_bytes());
    }
    tx.save(keys::totals(), &totals);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Command, Refusal};
    use crate::record::Totals;
    use crate::state::samples;
    use crate::state::testing::MapView;

    #[test]
    fn a_topic_has_one_message_and_its_bytes_are_counted() {
        let mut state = MapView::default();
        let first = samples::message("a/b");
        let second = StoredMessage { payload: b"longer".to_vec(), ..first.clone() };
        let (reply, effects) = state.run(1, Command::Retain(first.clone()));
        assert_eq!(reply, Reply::Done);
        assert_eq!(effects, [Effect::Retained { message: first, index: 1 }]);
        state.run(2, Command::Retain(second.clone()));
        let retained_bytes = (3 + second.properties.len() + 6) as u64;
        assert_eq!(state.totals(), Totals { retained: 1, retained_bytes, ..Totals::default() });
        assert_eq!(read::retained_message(&state, "a/b").expect("reads"), Some(second));

        let (reply, effects) = state.run(3, Command::Unretain { topic: "a/b".into() });
        assert_eq!(reply, Reply::Done);
        assert_eq!(effects, [Effect::Unretained { topic: "a/b".into(), index: 3 }]);
        let (reply, effects) = state.run(4, Command::Unretain { topic: "a/b".into() });
        assert_eq!((reply, effects.len()), (Reply::Done, 0));
        assert_eq!(state.totals(), Totals::default());
    }

    #[test]
    fn a_sweep_takes_what_is_over_and_nothing_else() {
        let mut state = MapView::default();
        for (topic, expires_at_ms) in [("a", Some(10)), ("b", Some(11)), ("c", None)] {
            let message = StoredMessage { expires_at_ms, ..samples::message(topic) };
            state.run(1, Command::Retain(message));
        }
        let topics = ["a", "a", "b", "c", "d"].map(String::from).to_vec();
        let (reply, effects) = state.run(2, Command::SweepRetained { now_ms: 10, topics });
        assert_eq!(reply, Reply::Done);
        assert_eq!(effects, [Effect::Unretained { topic: "a".into(), index: 2 }]);
        assert_eq!(state.totals().retained, 2);
    }

    #[test]
    fn what_cannot_be_retained_is_refused() {
        let mut state = MapView::default();
        let good = samples::message("a");
        for bad in [
            StoredMessage { payload: Vec::new(), ..good.clone() },
            StoredMessage { topic: "a/#".into(), ..good.clone() },
            StoredMessage { topic: "a\0".into(), ..good.clone() },
            StoredMessage { topic: String::new(), ..good.clone() },
            StoredMessage { topic: "a".repeat(65_536), ..good.clone() },
            StoredMessage { qos: 3, ..good },
        ] {
            let reply = state.refuse(1, Command::Retain(bad));
            assert!(matches!(reply, Reply::Refused(Refusal::Invalid(_))));
        }
        state.refuse(1, Command::Unretain { topic: "+".into() });
        state.refuse(1, Command::SweepRetained { now_ms: 0, topics: vec![String::new()] });
    }
}
