use super::*;
use crate::command::Command;
use crate::record::StoredWill;
use crate::state::samples::{self, will};
use crate::state::testing::{MapView, client};

fn opened(state: &mut MapView, index: u64, open: OpenSession) -> (bool, Vec<Effect>) {
    match state.run(index, Command::OpenSession(open)) {
        (Reply::Session { epoch, present, .. }, effects) => {
            assert_eq!(epoch, index);
            state.totals();
            (present, effects)
        }
        (other, _) => panic!("{other:?}"),
    }
}

fn found(state: &MapView, id: &str) -> Option<SessionRecord> {
    read::session(state, &client(id)).expect("reads")
}

fn open(id: &str) -> OpenSession {
    samples::open(&client(id))
}

fn close(id: &str, epoch: u64) -> CloseSession {
    samples::close(&client(id), epoch)
}

fn subscribe(id: &str, epoch: u64, filters: &[&str]) -> Command {
    let subscriptions = filters.iter().map(|filter| samples::subscription(filter)).collect();
    Command::Subscribe { client: client(id), epoch, subscriptions }
}

fn unsubscribe(id: &str, epoch: u64, filters: &[&str]) -> Command {
    let filters = filters.iter().map(|&filter| filter.to_owned()).collect();
    Command::Unsubscribe { client: client(id), epoch, filters }
}

fn filters(state: &MapView, id: &str) -> Vec<String> {
    let mut filters = Vec::new();
    read::subscriptions(state, &client(id), |subscription| {
        filters.push(subscription.filter);
        ControlFlow::Continue(())
    })
    .expect("reads");
    filters
}

fn due(effects: &[Effect]) -> Vec<(NodeId, StoredWill)> {
    let will = |effect: &Effect| match effect {
        Effect::WillDue { node, will, .. } => Some((*node, will.clone())),
        _ => None,
    };
    effects.iter().filter_map(will).collect()
}

const INVALID: &str = "invalid";

fn refused(state: &mut MapView, index: u64, command: Command) -> String {
    match state.refuse(index, command) {
        Reply::Refused(Refusal::Invalid(_)) => INVALID.to_owned(),
        Reply::Refused(refusal) => refusal.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_session_is_made_and_resumed_with_its_subscriptions() {
    let mut state = MapView::default();
    let (present, effects) = opened(&mut state, 3, open("a"));
    assert!(!present);
    let told = |epoch, node, previous| Effect::SessionOpened {
        client: client("a"),
        node,
        epoch,
        previous,
    };
    assert_eq!(effects, [told(3, 1, None)]);
    state.run(4, subscribe("a", 3, &["x", "y"]));
    assert_eq!(state.run(5, Command::CloseSession(close("a", 3))).0, Reply::Done);
    let record = found(&state, "a").expect("kept");
    assert!(!record.connected && record.expires_at_ms == Some(61_000));

    let back = OpenSession { node: 2, now_ms: 60_999, expiry_interval_s: 7, ..open("a") };
    let (present, effects) = opened(&mut state, 6, back);
    assert!(present);
    assert_eq!(effects, [told(6, 2, Some(1))]);
    let record = found(&state, "a").expect("kept");
    assert_eq!((record.generation, record.epoch, record.node), (3, 6, 2));
    assert_eq!((record.connected, record.expires_at_ms), (true, None));
    assert_eq!((record.expiry_interval_s, record.subscriptions), (7, 2));
    assert_eq!(filters(&state, "a"), ["x", "y"]);
}

#[test]
fn a_session_is_discarded_by_a_clean_start_and_by_its_deadline() {
    for (clean_start, now_ms) in [(true, 1_000), (false, 61_000)] {
        let mut state = MapView::default();
        opened(&mut state, 1, open("a"));
        opened(&mut state, 2, open("ab"));
        state.run(3, subscribe("a", 1, &["x", "y"]));
        state.run(3, subscribe("ab", 2, &["z"]));
        state.run(4, Command::CloseSession(close("a", 1)));
        let again = OpenSession { clean_start, now_ms, node: 2, ..open("a") };
        let (present, effects) = opened(&mut state, 5, again);
        assert!(!present);
        let told = [
            Effect::SessionEnded { client: client("a"), epoch: 1 },
            Effect::SessionOpened { client: client("a"), node: 2, epoch: 5, previous: Some(1) },
        ];
        assert_eq!(effects, told);
        assert_eq!(found(&state, "a").map(|record| record.generation), Some(5));
        assert!(filters(&state, "a").is_empty());
        assert_eq!(filters(&state, "ab"), ["z"]);
    }
}

#[test]
fn a_waiting_will_is_dropped_by_a_client_that_is_back_in_time() {
    for (clean_start, now_ms, published) in [
        (false, 5_999, 0),  // [MQTT-3.1.3-9]
        (false, 6_000, 1),  // it was due
        (true, 5_999, 1),   // the session ends [MQTT-3.1.2-8]
        (false, 61_000, 1), // it has ended
    ] {
        let mut state = MapView::default();
        opened(&mut state, 1, OpenSession { will: Some(will(5)), ..open("a") });
        let gone = CloseSession { will_at_ms: Some(6_000), ..close("a", 1) };
        state.run(2, Command::CloseSession(gone));
        let again = OpenSession { clean_start, now_ms, node: 2, ..open("a") };
        let (_, effects) = opened(&mut state, 3, again);
        assert_eq!(due(&effects), vec![(2, will(5)); published], "{clean_start} {now_ms}");
        let record = found(&state, "a").expect("kept");
        assert_eq!((record.will, record.will_at_ms), (None, None));
    }
}

#[test]
fn the_will_of_a_connection_that_is_taken_over_is_published_unless_it_has_a_delay() {
    for (clean_start, delay_s, published) in
        [(false, 0, 1), (false, 5, 0), (true, 0, 1), (true, 5, 1)]
    {
        let mut state = MapView::default();
        opened(&mut state, 1, OpenSession { will: Some(will(delay_s)), ..open("a") });
        let new = StoredWill { retain: false, ..will(1) };
        let again = OpenSession { clean_start, node: 2, will: Some(new.clone()), ..open("a") };
        let (_, effects) = opened(&mut state, 2, again);
        assert_eq!(due(&effects), vec![(2, will(delay_s)); published], "{clean_start} {delay_s}");
        assert_eq!(found(&state, "a").and_then(|record| record.will), Some(new));
    }
}

#[test]
fn a_will_is_taken_once() {
    let mut state = MapView::default();
    opened(&mut state, 1, OpenSession { will: Some(will(5)), ..open("a") });
    let take = |epoch| Command::TakeWill { client: client("a"), epoch };
    // It does not wait yet.
    assert_eq!(refused(&mut state, 2, take(1)), "not found");
    let gone = CloseSession { will_at_ms: Some(6_000), ..close("a", 1) };
    state.run(3, Command::CloseSession(gone.clone()));
    assert_eq!(state.run(4, take(1)), (Reply::Done, vec![]));
    assert_eq!(refused(&mut state, 5, take(1)), "not found");
    // A repeated close brings nothing back.
    state.run(6, Command::CloseSession(gone));
    state.totals();
    assert_eq!(refused(&mut state, 7, take(1)), "not found");
    let (_, effects) = state.run(8, Command::EndSession { client: client("a"), epoch: 1, node: 1 });
    assert_eq!(effects, [Effect::SessionEnded { client: client("a"), epoch: 1 }]);
}

#[test]
fn a_discarded_will_is_never_published() {
    let mut state = MapView::default();
    opened(&mut state, 1, OpenSession { will: Some(will(0)), ..open("a") });
    state.run(2, Command::CloseSession(close("a", 1)));
    let (_, effects) = opened(&mut state, 3, OpenSession { clean_start: true, ..open("a") });
    assert_eq!(due(&effects), []);
}

#[test]
fn the_end_of_a_session_publishes_its_will_where_it_was_asked_for() {
    let mut state = MapView::default();
    opened(&mut state, 1, OpenSession { will: Some(will(500)), ..open("a") });
    state.run(2, subscribe("a", 1, &["x"]));
    let gone = CloseSession { will_at_ms: Some(600_000), ..close("a", 1) };
    state.run(3, Command::CloseSession(gone));
    let end = Command::EndSession { client: client("a"), epoch: 1, node: 7 };
    let (reply, effects) = state.run(4, end.clone());
    assert_eq!(reply, Reply::Done);
    let told = [
        Effect::WillDue { client: client("a"), node: 7, will: will(500) },
        Effect::SessionEnded { client: client("a"), epoch: 1 },
    ];
    assert_eq!(effects, told);
    assert_eq!(state.totals(), Totals::default());
    assert_eq!(found(&state, "a"), None);
    assert!(refused(&mut state, 5, end).contains("meanwhile"));
}

#[test]
fn what_an_earlier_connection_asks_for_is_stale() {
    let mut state = MapView::default();
    opened(&mut state, 1, open("a"));
    opened(&mut state, 2, open("a"));
    for epoch in [0, 1, 3] {
        for command in [
            Command::CloseSession(close("a", epoch)),
            Command::EndSession { client: client("a"), epoch, node: 1 },
            Command::TakeWill { client: client("a"), epoch },
            subscribe("a", epoch, &["x"]),
            unsubscribe("a", epoch, &["x"]),
        ] {
            assert!(refused(&mut state, 3, command).contains("meanwhile"));
        }
    }
    assert!(refused(&mut state, 3, subscribe("b", 1, &["x"])).contains("meanwhile"));
}

#[test]
fn two_openings_in_one_entry_have_epochs_of_their_own() {
    let mut state = MapView::default();
    let clean = OpenSession { clean_start: true, ..open("a") };
    let end = Command::EndSession { client: client("a"), epoch: 6, node: 1 };
    let commands = [
        Command::OpenSession(open("a")),
        Command::OpenSession(open("a")),
        end,
        Command::OpenSession(clean),
    ];
    let (replies, _) = state.entry(5, &commands);
    let session =
        |epoch, generation| Reply::Session { epoch, generation, present: epoch > generation };
    assert_eq!(replies, [session(5, 5), session(6, 5), Reply::Done, session(7, 7)]);
    assert!(refused(&mut state, 6, subscribe("a", 5, &["x"])).contains("meanwhile"));
    // The log catches up, and the epochs stay ahead.
    let (reply, _) = state.run(7, Command::OpenSession(open("b")));
    assert_eq!(reply, session(8, 8));
}

#[test]
fn subscriptions_are_added_replaced_and_removed() {
    let mut state = MapView::default();
    opened(&mut state, 1, open("a"));
    assert_eq!(state.run(2, subscribe("a", 1, &["x", "y", "x"])), (Reply::Done, vec![]));
    assert_eq!(found(&state, "a").map(|record| record.subscriptions), Some(2));
    let options = StoredSubscription { options: 0, ..samples::subscription("x") };
    let replace = Command::Subscribe {
        client: client("a"),
        epoch: 1,
        subscriptions: vec![options.clone(), samples::subscription("$share/g/z")],
    };
    state.run(3, replace);
    assert_eq!(filters(&state, "a"), ["$share/g/z", "x", "y"]);
    assert_eq!(state.totals().subscriptions, 3);
    let key = keys::subscription(&client("a"), "x");
    assert_eq!(read::record::<StoredSubscription>(&key, &state.0[&key]).expect("reads"), options);
    let (reply, _) = state.run(4, unsubscribe("a", 1, &["x", "x", "unknown"]));
    assert_eq!(reply, Reply::Done);
    assert_eq!(state.totals().subscriptions, 2);
    assert_eq!(found(&state, "a").map(|record| record.subscriptions), Some(2));
}

#[test]
fn a_tenant_has_no_more_sessions_than_it_may() {
    let mut state = MapView::default();
    let tenant = |max_sessions| Command::PutTenant(TenantRecord { name: "t".into(), max_sessions });
    let of = |id: &str| {
        let client = ClientKey { tenant: "t".into(), client_id: id.into() };
        samples::open(&client)
    };
    state.run(1, tenant(2));
    for (index, id) in (2..).zip(["a", "b"]) {
        opened(&mut state, index, of(id));
    }
    let third = Command::OpenSession(of("c"));
    assert!(refused(&mut state, 4, third.clone()).contains("2 durable sessions of t"));
    // Others are not counted, resuming and replacing take no room.
    opened(&mut state, 5, open("c"));
    opened(&mut state, 6, of("a"));
    opened(&mut state, 7, OpenSession { clean_start: true, ..of("a") });
    let end = Command::EndSession { client: of("b").client, epoch: 3, node: 1 };
    state.run(8, end);
    assert_eq!(read::tenant_totals(&state, "t").expect("reads"), TenantTotals { sessions: 1 });
    opened(&mut state, 9, of("c"));
    // A lower limit ends nothing.
    state.run(10, tenant(1));
    opened(&mut state, 11, OpenSession { clean_start: true, ..of("a") });
    state.run(12, tenant(0));
    opened(&mut state, 13, of("d"));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut state = MapView::default();
    let named = |tenant: &str, id: &str| OpenSession {
        client: ClientKey { tenant: tenant.into(), client_id: id.into() },
        ..open("a")
    };
    let long = "a".repeat(65_536);
    let mut bad_will = will(0);
    bad_will.message.topic = "#".into();
    for bad in [
        named("", ""),
        named("", "a\0b"),
        named("", &long),
        named("t\0", "a"),
        named(&long, "a"),
        OpenSession { expiry_interval_s: 0, ..open("a") },
        OpenSession { will: Some(bad_will), ..open("a") },
    ] {
        assert_eq!(refused(&mut state, 1, Command::OpenSession(bad)), INVALID);
    }
    opened(&mut state, 2, open("a"));
    for filter in ["", "a\0", &long] {
        assert_eq!(refused(&mut state, 3, subscribe("a", 2, &["x", filter])), INVALID);
        assert_eq!(refused(&mut state, 3, unsubscribe("a", 2, &[filter])), INVALID);
    }
    let end = Command::EndSession { client: client("a\0"), epoch: 2, node: 1 };
    assert_eq!(refused(&mut state, 3, end), INVALID);
}
