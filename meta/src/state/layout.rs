//! The stored layout: every record comes back as it was, and its bytes do not change unnoticed.
//!
//! Who changes a record's layout raises its version byte and teaches `codec` to read both.

use std::fmt::Debug;

use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::samples::*;
use crate::codec::{decode, encode};
use crate::command::{Command, Refusal, Reply};
use crate::record::{
    ClientKey, ConfigRecord, NodeRecord, RuleRecord, SessionRecord, SlotRun, Slots, StoredMessage,
    StoredSubscription, TenantRecord, TenantTotals, Totals, UserRecord,
};

fn comes_back<T: Serialize + DeserializeOwned + PartialEq + Debug>(record: &T) {
    let bytes = encode(record);
    assert_eq!(&decode::<T>(&bytes).expect("reads"), record);
    for cut in 0..bytes.len().min(40) {
        assert!(decode::<T>(&bytes[..cut]).is_err(), "cut short at {cut}");
    }
}

fn golden<T: Serialize + DeserializeOwned + PartialEq + Debug>(record: &T, bytes: &[u8]) {
    assert_eq!(encode(record), bytes, "{record:?}");
    comes_back(record);
}

#[test]
fn the_bytes_of_each_record_stay() {
    let session = SessionRecord {
        generation: 5,
        epoch: 300,
        node: 1,
        connected: true,
        expiry_interval_s: 60,
        expires_at_ms: None,
        will: Some(will(7)),
        will_at_ms: Some(128),
        subscriptions: 2,
    };
    golden(
        &session,
        b"\x01\x05\xac\x02\x01\x01\x3c\x00\x01\x04will\x02\x01\x01\x01p\x01\x00\x01\x07\x01\x09\x01\x80\x01\x02",
    );
    golden(&subscription("a/#"), b"\x01\x03a/#\x2d\xac\x02");
    let message = StoredMessage { expires_at_ms: Some(300), ..message("a/b") };
    golden(&message, b"\x01\x03a/b\x02\x01\x01\x01p\x01\x01\xac\x02");
    golden(&user(), b"\x01\x01u\x01t\x01c");
    golden(&rule(300), b"\x01\xac\x02\x01\x01\x01u\x01\x00\x03a/#");
    golden(&TenantRecord { name: "t".into(), max_sessions: 300 }, b"\x01\x01t\xac\x02");
    golden(&node(300), b"\x01\xac\x02\x03h:1\x02");
    let slots = Slots { first: 300, last: 4095 };
    golden(&SlotRun { slots, node: 2 }, b"\x01\xac\x02\xff\x1f\x02");
    golden(&ConfigRecord { version: 300, value: b"v".to_vec() }, b"\x01\xac\x02\x01v");
    let totals = Totals { sessions: 1, subscriptions: 2, retained: 3, retained_bytes: 300 };
    golden(&totals, b"\x01\x01\x02\x03\xac\x02");
    golden(&TenantTotals { sessions: 300 }, b"\x01\xac\x02");
    golden(&300_u64, b"\x01\xac\x02");
}

/// Commands lie in the log, so their numbers stay as well.
#[test]
fn the_numbers_of_commands_and_replies_stay() {
    let client = ClientKey { tenant: "t".into(), client_id: "c".into() };
    let epoch = 300;
    let whose = b"\x01t\x01c\xac\x02";
    let starts = |command: Command, number: u8, rest: &[u8]| {
        let bytes = encode(&command);
        assert_eq!(bytes[..2], [1, number], "{command:?}");
        assert_eq!(&bytes[2..], rest, "{command:?}");
        comes_back(&command);
    };
    starts(Command::OpenSession(open(&client)), 0, b"\x01t\x01c\x00\x01\x3c\x00\xe8\x07");
    starts(
        Command::CloseSession(close(&client, epoch)),
        1,
        &[whose.as_slice(), b"\x3c\x01\xc8\xdc\x03\x00"].concat(),
    );
    starts(
        Command::EndSession { client: client.clone(), epoch, node: 1 },
        2,
        &[whose.as_slice(), b"\x01"].concat(),
    );
    starts(Command::TakeWill { client: client.clone(), epoch }, 3, whose);
    let subscriptions = Vec::new();
    starts(
        Command::Subscribe { client: client.clone(), epoch, subscriptions },
        4,
        &[whose.as_slice(), b"\x00"].concat(),
    );
    let filters = vec!["f".to_owned()];
    starts(
        Command::Unsubscribe { client, epoch, filters },
        5,
        &[whose.as_slice(), b"\x01\x01f"].concat(),
    );
    starts(Command::Retain(message("a")), 6, b"\x01a\x02\x01\x01\x01p\x01\x00");
    starts(Command::Unretain { topic: "a".into() }, 7, b"\x01a");
    starts(Command::SweepRetained { now_ms: 1, topics: vec!["a".into()] }, 8, b"\x01\x01\x01a");
    starts(Command::PutUser(user()), 9, b"\x01u\x01t\x01c");
    starts(Command::RemoveUser { name: "u".into() }, 10, b"\x01u");
    starts(Command::PutRule(rule(1)), 11, b"\x01\x01\x01\x01u\x01\x00\x03a/#");
    starts(Command::RemoveRule { id: 1 }, 12, b"\x01");
    let tenant = TenantRecord { name: "t".into(), max_sessions: 1 };
    starts(Command::PutTenant(tenant), 13, b"\x01t\x01");
    starts(Command::RemoveTenant { name: "t".into() }, 14, b"\x01t");
    starts(Command::PutNode(node(1)), 15, b"\x01\x03h:1\x02");
    starts(Command::RemoveNode { id: 1 }, 16, b"\x01");
    let slots = Slots { first: 0, last: 1 };
    starts(Command::AssignSlots { slots, node: 1 }, 17, b"\x00\x01\x01");
    let (key, expected, value) = ("k".to_owned(), Some(1), Some(vec![7]));
    starts(Command::SetConfig { key, expected, value }, 18, b"\x01k\x01\x01\x01\x01\x07");

    golden(&Reply::Done, b"\x01\x00");
    let session = Reply::Session { epoch: 300, generation: 7, present: true };
    golden(&session, b"\x01\x01\xac\x02\x07\x01");
    golden(&Reply::Config { version: 1 }, b"\x01\x02\x01");
    golden(&Reply::Refused(Refusal::Stale), b"\x01\x03\x00");
    golden(&Reply::Refused(Refusal::NotFound), b"\x01\x03\x01");
    golden(&Reply::Refused(Refusal::Conflict { version: 1 }), b"\x01\x03\x02\x01");
    golden(&Reply::Refused(Refusal::Limit("l".into())), b"\x01\x03\x03\x01l");
    golden(&Reply::Refused(Refusal::Invalid("i".into())), b"\x01\x03\x04\x01i");
}

/// What bytes in one piece are written like: as byte by byte.
#[test]
fn bytes_are_written_as_serde_would() {
    let value = vec![1, 2, 200];
    let plain = encode(&(300_u64, value.clone()));
    assert_eq!(encode(&ConfigRecord { version: 300, value }), plain);
}

fn never_panics<T: DeserializeOwned + Serialize>(bytes: &[u8]) {
    if let Ok(record) = decode::<T>(bytes) {
        assert!(encode(&record).len() <= bytes.len(), "what is read can be written");
    }
}

proptest! {
    #[test]
    fn every_record_comes_back(
        session in any_session(),
        subscription in any_subscription(),
        message in any_message(),
        user in any_user(),
        access in any_rule(),
        tenant in any_tenant(),
        node in any_node(),
        run in any_slot_run(),
        config in any_config(),
        totals in any_totals(),
        tenant_totals in any_tenant_totals(),
    ) {
        comes_back(&session);
        comes_back(&subscription);
        comes_back(&message);
        comes_back(&user);
        comes_back(&access);
        comes_back(&tenant);
        comes_back(&node);
        comes_back(&run);
        comes_back(&config);
        comes_back(&totals);
        comes_back(&tenant_totals);
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..60), version in any::<bool>(),
    ) {
        if let (true, Some(first)) = (version, bytes.first_mut()) {
            *first = 1;
        }
        never_panics::<SessionRecord>(&bytes);
        never_panics::<StoredSubscription>(&bytes);
        never_panics::<StoredMessage>(&bytes);
        never_panics::<UserRecord>(&bytes);
        never_panics::<RuleRecord>(&bytes);
        never_panics::<TenantRecord>(&bytes);
        never_panics::<NodeRecord>(&bytes);
        never_panics::<SlotRun>(&bytes);
        never_panics::<ConfigRecord>(&bytes);
        never_panics::<Totals>(&bytes);
        never_panics::<TenantTotals>(&bytes);
        never_panics::<Command>(&bytes);
        never_panics::<Vec<Command>>(&bytes);
        never_panics::<Reply>(&bytes);
    }
}
