//! A history as it should be passes; each that breaks one promise is found, under that promise's name.

use mqtt::wire::QoS;
use proptest::prelude::*;

use super::{Oracle, Promises, Rule};
use crate::history::{Content, Counts, Delivery, End, Event, Message, Stop, Terms, What};
use crate::workload::Level;

const SECOND_US: u64 = 1_000_000;

/// Tells an oracle what happens, one thing per millisecond.
struct Told {
    oracle: Oracle,
    at_us: u64,
    broken: Option<Rule>,
}

fn told_with(change: impl FnOnce(&mut Promises)) -> Told {
    let mut promises = Promises {
        level: Level::Disk,
        small_queues: false,
        max_queued_messages: 10,
        max_inflight: 10,
        clock_jumps: false,
    };
    change(&mut promises);
    Told { oracle: Oracle::new(promises), at_us: 0, broken: None }
}

fn told() -> Told {
    told_with(|_| {})
}

fn terms(clean: bool, will: bool) -> Terms {
    Terms {
        clean,
        expiry_s: if clean { 0 } else { u32::MAX },
        keep_alive_s: 5,
        receive_maximum: 2,
        will: will.then(|| (content(QoS::AtLeastOnce, false), 0)),
    }
}

fn content(qos: QoS, retain: bool) -> Content {
    Content { topic: "t".into(), qos, retain, empty: false, expiry_s: None }
}

impl Told {
    fn see(&mut self, what: What) -> &mut Self {
        self.at_us += 1_000;
        if self.broken.is_none() {
            let event = Event { at_us: self.at_us, what };
            self.broken = self.oracle.observe(&event).err().map(|violation| violation.rule);
        }
        self
    }

    fn rest(&mut self, seconds: u64) -> &mut Self {
        self.at_us += seconds * SECOND_US;
        self
    }

    fn connect_as(&mut self, who: usize, conn: u32, terms: Terms, resumed: bool) -> &mut Self {
        self.see(What::Connecting(who, conn, terms)).see(What::Connected(who, conn, resumed))
    }

    fn connect(&mut self, who: usize, conn: u32, resumed: bool) -> &mut Self {
        self.connect_as(who, conn, terms(false, false), resumed)
    }

    fn subscribe(&mut self, who: usize, conn: u32, qos: QoS) -> &mut Self {
        self.see(What::Subscribing(who, conn, "t".into(), qos)).see(What::Subscribed(
            who,
            conn,
            "t".into(),
            Some(qos),
        ))
    }

    fn publish(&mut self, number: u32, qos: QoS, retain: bool) -> &mut Self {
        let message = Message::Publish(0, number);
        self.see(What::Publishing(0, 1, message, content(qos, retain)))
    }

    fn accept(&mut self, number: u32, qos: QoS) -> &mut Self {
        let message = Message::Publish(0, number);
        self.see(What::Acknowledged(0, 1, message, true));
        match qos {
            QoS::ExactlyOnce => self.see(What::Completed(0, 1, message)),
            _ => self,
        }
    }

    fn deliver(&mut self, conn: u32, number: u32, qos: QoS, id: u16) -> &mut Self {
        self.get(conn, Message::Publish(0, number), qos, id, false)
    }

    fn get(&mut self, conn: u32, message: Message, qos: QoS, id: u16, retain: bool) -> &mut Self {
        let (message, topic) = (Some(message), "t".into());
        let (dup, held, empty) = (false, false, false);
        let delivery = Delivery { message, topic, qos, id, dup, retain, held, empty };
        self.see(What::Delivered(1, conn, delivery))
    }

    fn answer(&mut self, conn: u32, id: u16) -> &mut Self {
        self.see(What::Answered(1, conn, id))
    }

    /// Client 0 publishes, client 1 has subscribed.
    fn begin(&mut self, qos: QoS) -> &mut Self {
        self.connect(0, 1, false).connect(1, 1, false).subscribe(1, 1, qos)
    }

    fn end(&mut self) -> Option<Rule> {
        self.see(What::Healed).rest(40).see(What::Settled);
        self.broken
    }
}

use QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};

#[test]
fn what_comes_is_not_lost() {
    for qos in [AtLeastOnce, ExactlyOnce] {
        let mut told = told();
        told.begin(qos).publish(1, qos, false).accept(1, qos).deliver(1, 1, qos, 7);
        assert_eq!(told.answer(1, 7).end(), None);
    }
}

#[test]
fn what_was_accepted_and_does_not_come_is_lost() {
    for qos in [AtLeastOnce, ExactlyOnce] {
        let mut told = told();
        told.begin(qos).publish(1, qos, false).accept(1, qos);
        assert_eq!(told.end(), Some(Rule::Lost));
    }
}

#[test]
fn what_the_level_does_not_cover_may_be_lost() {
    for (level, stop, lost) in [
        (Level::Disk, Stop::PowerLost, true),
        (Level::Os, Stop::PowerLost, false),
        (Level::Os, Stop::Killed, true),
        (Level::None, Stop::Asked, false),
    ] {
        let mut told = told_with(|promises| promises.level = level);
        told.begin(AtLeastOnce).publish(1, AtLeastOnce, false).accept(1, AtLeastOnce);
        told.see(What::Stopped(0, stop)).see(What::Started(0)).see(What::Ready(0));
        for who in 0..2 {
            told.see(What::Ended(who, 1, End::Broken)).connect(who, 2, true);
        }
        assert_eq!(told.end(), lost.then_some(Rule::Lost), "{level:?} {stop:?}");
    }
}

#[test]
fn nobody_is_owed_what_he_perhaps_did_not_subscribe_to() {
    let mut told = told();
    told.connect(0, 1, false).connect(1, 1, false);
    told.see(What::Subscribing(1, 1, "t".into(), AtLeastOnce));
    told.publish(1, AtLeastOnce, false).accept(1, AtLeastOnce);
    told.see(What::Subscribed(1, 1, "t".into(), Some(AtLeastOnce)));
    assert_eq!(told.end(), None);
}

#[test]
fn no_answer_is_stuck() {
    let mut told = told();
    assert_eq!(told.begin(AtLeastOnce).publish(1, AtLeastOnce, false).end(), Some(Rule::Stuck));
    let mut told = crate::oracle::tests::told();
    told.connect(0, 1, false).see(What::Ended(0, 1, End::Broken));
    assert_eq!(told.end(), Some(Rule::Stuck), "it cannot connect");
}

#[test]
fn exactly_once_is_once() {
    let mut told = told();
    told.begin(ExactlyOnce).publish(1, ExactlyOnce, false).accept(1, ExactlyOnce);
    told.deliver(1, 1, ExactlyOnce, 7).answer(1, 7).deliver(1, 1, ExactlyOnce, 8);
    assert_eq!(told.broken, Some(Rule::Doubled));
}

#[test]
fn at_least_once_comes_again_on_another_connection_alone() {
    let mut told = told();
    told.begin(AtLeastOnce).publish(1, AtLeastOnce, false).accept(1, AtLeastOnce);
    told.deliver(1, 1, AtLeastOnce, 7).see(What::Ended(1, 1, End::Broken)).connect(1, 2, true);
    told.deliver(2, 1, AtLeastOnce, 7).answer(2, 7);
    assert_eq!(told.broken, None);
    told.deliver(2, 1, AtLeastOnce, 8);
    assert_eq!(told.broken, Some(Rule::Doubled));
}

#[test]
fn order_is_that_of_the_publisher() {
    let mut told = told();
    told.begin(AtLeastOnce).publish(1, AtLeastOnce, false).publish(2, AtLeastOnce, false);
    told.deliver(1, 2, AtLeastOnce, 1).answer(1, 1).deliver(1, 1, AtLeastOnce, 2);
    assert_eq!(told.broken, Some(Rule::Order));
}

#[test]
fn nothing_comes_that_was_not_asked_for() {
    let mut told = told();
    told.connect(0, 1, false).connect(1, 1, false).publish(1, AtMostOnce, false);
    assert_eq!(told.deliver(1, 1, AtMostOnce, 0).broken, Some(Rule::Stray));
    let mut told = crate::oracle::tests::told();
    assert_eq!(told.begin(AtMostOnce).deliver(1, 9, AtMostOnce, 0).broken, Some(Rule::Stray));
    let mut told = crate::oracle::tests::told();
    told.begin(AtLeastOnce).publish(1, ExactlyOnce, false).deliver(1, 1, ExactlyOnce, 1);
    assert_eq!(told.broken, Some(Rule::Stray), "at a higher QoS");
}

#[test]
fn a_will_comes_when_its_client_is_lost() {
    let will = Message::Will(0, 1);
    let begin = || {
        let mut told = told();
        told.connect(1, 1, false).subscribe(1, 1, AtLeastOnce);
        told.connect_as(0, 1, terms(false, true), false);
        told
    };
    let mut good = begin();
    good.see(What::Ended(0, 1, End::ByClient)).get(1, will, AtLeastOnce, 1, false).answer(1, 1);
    good.rest(60).connect(0, 2, true);
    assert_eq!(good.end(), None);
    let mut missing = begin();
    missing.see(What::Ended(0, 1, End::ByClient)).rest(60).connect(0, 2, true);
    assert_eq!(missing.end(), Some(Rule::Lost));
    let mut twice = begin();
    twice.see(What::Ended(0, 1, End::ByClient)).get(1, will, AtLeastOnce, 1, false).answer(1, 1);
    assert_eq!(twice.get(1, will, AtLeastOnce, 2, false).broken, Some(Rule::Doubled));
    let mut taken_back = begin();
    taken_back.see(What::Leaving(0, 1, false)).see(What::Ended(0, 1, End::ByBroker));
    assert_eq!(taken_back.get(1, will, AtLeastOnce, 1, false).broken, Some(Rule::Will));
    let mut alive = begin();
    alive.get(1, will, AtLeastOnce, 1, false);
    let now_us = alive.at_us;
    assert_eq!(alive.see(What::Pong(0, 1, now_us + 1)).broken, Some(Rule::Will));
}

#[test]
fn retained_is_the_last_that_was_accepted() {
    let begin = || {
        let mut told = told();
        told.connect(0, 1, false);
        for number in 1..3 {
            told.publish(number, AtLeastOnce, true).accept(number, AtLeastOnce);
        }
        told.connect(1, 1, false).subscribe(1, 1, AtLeastOnce);
        told
    };
    let mut good = begin();
    good.get(1, Message::Publish(0, 2), AtLeastOnce, 1, true).see(What::Swept(1));
    assert_eq!(good.broken, None);
    let mut stale = begin();
    stale.get(1, Message::Publish(0, 1), AtLeastOnce, 1, true);
    assert_eq!(stale.broken, Some(Rule::Retained));
    assert_eq!(begin().see(What::Swept(1)).broken, Some(Rule::Retained), "nothing is there");
}

#[test]
fn a_session_lives_as_long_as_it_was_promised() {
    let mut lost = told();
    lost.connect(0, 1, false).see(What::Ended(0, 1, End::Broken)).connect(0, 2, false);
    assert_eq!(lost.broken, Some(Rule::Session));
    let mut from_nowhere = told();
    assert_eq!(from_nowhere.connect(0, 1, true).broken, Some(Rule::Session));
    let short = |wait| {
        let mut told = told();
        let terms = Terms { expiry_s: 10, ..terms(false, false) };
        told.connect_as(0, 1, terms.clone(), false).see(What::Ended(0, 1, End::Broken)).rest(wait);
        told.connect_as(0, 2, terms, true).broken
    };
    assert_eq!(short(5), None);
    assert_eq!(short(60), Some(Rule::Session));
    let mut unanswered = told();
    unanswered.connect(0, 1, false).see(What::Ended(0, 1, End::Broken));
    unanswered.see(What::Connecting(0, 2, terms(true, false)));
    unanswered.see(What::Ended(0, 2, End::Broken)).connect(0, 3, false);
    assert_eq!(unanswered.broken, None, "the CONNECT without an answer may have begun anew");
}

#[test]
fn a_session_without_a_life_of_its_own_goes_with_its_connection() {
    let mut told = told();
    told.connect(0, 1, false).connect_as(1, 1, terms(true, false), false);
    told.subscribe(1, 1, AtLeastOnce).see(What::Connecting(1, 2, terms(false, false)));
    told.see(What::Ended(1, 1, End::ByBroker)).see(What::Ended(1, 2, End::Broken));
    told.connect(1, 3, true).publish(1, AtLeastOnce, false).accept(1, AtLeastOnce);
    assert_eq!(told.end(), None, "it has not subscribed");
}

#[test]
fn a_session_has_one_connection() {
    let mut told = told();
    told.begin(AtLeastOnce).connect(1, 2, true).publish(1, AtLeastOnce, false);
    assert_eq!(told.deliver(1, 1, AtLeastOnce, 1).broken, Some(Rule::TwoPlaces));
    let mut told = crate::oracle::tests::told();
    assert_eq!(told.begin(AtLeastOnce).connect(1, 2, true).end(), Some(Rule::TwoPlaces));
}

#[test]
fn quotas_and_identifiers_are_respected() {
    let mut told = told();
    told.begin(AtLeastOnce);
    for number in 1..4 {
        told.publish(number, AtLeastOnce, false).deliver(1, number, AtLeastOnce, number as u16);
    }
    assert_eq!(told.broken, Some(Rule::Quota));
    let mut told = crate::oracle::tests::told();
    told.begin(AtLeastOnce).publish(1, AtLeastOnce, false).publish(2, AtLeastOnce, false);
    told.deliver(1, 1, AtLeastOnce, 5).see(What::Ended(1, 1, End::Broken)).connect(1, 2, true);
    assert_eq!(told.deliver(2, 2, AtLeastOnce, 5).broken, Some(Rule::Identifier));
}

#[test]
fn what_is_counted_keeps_its_bounds_and_goes_back() {
    let counts = Counts { sessions: 2, queued_messages: 21, ..Counts::default() };
    assert_eq!(told().see(What::Counted(0, counts)).broken, Some(Rule::Bound));
    let left = Counts { sessions: 1, ..Counts::default() };
    let mut told = told();
    assert_eq!(told.see(What::Counted(0, left)).broken, None);
    assert_eq!(told.see(What::Emptied).see(What::Counted(0, left)).broken, Some(Rule::Leak));
}

#[test]
fn a_process_ends_by_itself_after_an_error_of_its_disk_alone() {
    let exited = || What::Exited(0, "an error".into());
    assert_eq!(told().see(exited()).broken, Some(Rule::Down));
    let mut told = told();
    told.see(What::Started(0)).see(What::Fault("disk-error")).see(exited());
    assert_eq!(told.broken, None);
}

#[test]
fn nothing_comes_after_its_time() {
    let mut told = told();
    told.begin(AtLeastOnce).see(What::Ended(1, 1, End::Broken));
    let short = Content { expiry_s: Some(2), ..content(AtLeastOnce, false) };
    told.see(What::Publishing(0, 1, Message::Publish(0, 1), short)).accept(1, AtLeastOnce);
    told.rest(10).connect(1, 2, true).deliver(2, 1, AtLeastOnce, 1);
    assert_eq!(told.broken, Some(Rule::Expired));
}

proptest! {
    /// A broker that delivers everything at once, in order, is never blamed, and one that leaves any
    /// one message out always is.
    #[test]
    fn a_good_history_passes(
        messages in prop::collection::vec(any::<bool>(), 1..20),
        missing in any::<prop::sample::Index>(),
    ) {
        let missing = missing.index(messages.len());
        for skip in [false, true] {
            let mut told = told();
            told.begin(ExactlyOnce);
            for (at, twice) in messages.iter().enumerate() {
                let qos = if *twice { ExactlyOnce } else { AtLeastOnce };
                let number = at as u32 + 1;
                told.publish(number, qos, false);
                if !skip || at != missing {
                    told.deliver(1, number, qos, number as u16).answer(1, number as u16);
                }
                told.accept(number, qos);
            }
            prop_assert_eq!(told.end(), skip.then_some(Rule::Lost));
        }
    }
}
