use super::super::message::Draft;
use super::*;

const BOUNDS: QueueBounds =
    QueueBounds { max_messages: 3, max_bytes: 100_000, when_full: QueueFull::DropNew };

fn queued(payload: &str, qos: QoS) -> Queued {
    let message = Message::keep(&Draft {
        topic: "t",
        payload: payload.as_bytes(),
        owner: None,
        properties: &[],
        qos,
        retain: false,
        expires_at_ms: None,
        origin: 0,
    });
    let delivery = Delivery { qos, retain: false, subscription_ids: SmallVec::new(), share: None };
    Queued::new(Arc::new(message), delivery)
}

fn next(outgoing: &mut Outgoing, window: u16) -> Option<(u16, bool, String)> {
    let mut expired = 0;
    Some(
        match outgoing.next_step(
            window,
            &BOUNDS,
            Place::PENDING,
            0,
            &mut expired,
            &mut Vec::new(),
        )? {
            Step::Publish { id, dup, queued } => {
                let draft = queued.message.draft();
                (id.get(), dup, String::from_utf8_lossy(draft.payload).into_owned())
            }
            Step::Release(id) => (id.get(), true, "PUBREL".into()),
        },
    )
}

fn id(n: u16) -> PacketId {
    PacketId::new(n).unwrap()
}

#[test]
fn the_window_holds_back_and_acknowledgements_open_it() {
    let mut out = Outgoing::default();
    for payload in ["a", "b", "c"] {
        out.enqueue(queued(payload, QoS::AtLeastOnce), &BOUNDS, &mut Vec::new()).unwrap();
    }
    assert_eq!(
        out.enqueue(queued("d", QoS::AtLeastOnce), &BOUNDS, &mut Vec::new()),
        Err(Rejected { dropped: 1 })
    );
    assert_eq!(next(&mut out, 2), Some((1, false, "a".into())));
    assert_eq!(next(&mut out, 2), Some((2, false, "b".into())));
    assert_eq!(next(&mut out, 2), None);
    assert!(!out.on_puback(id(9), &mut Vec::new()));
    assert!(out.on_puback(id(2), &mut Vec::new()));
    assert_eq!(next(&mut out, 2), Some((3, false, "c".into())));
    assert_eq!((out.queued(), out.queued_bytes(), out.inflight()), (0, 0, 2));
}

#[test]
fn drop_old_makes_room() {
    let mut out = Outgoing::default();
    let bounds = QueueBounds { when_full: QueueFull::DropOld, ..BOUNDS };
    for payload in ["a", "b", "c"] {
        out.enqueue(queued(payload, QoS::AtLeastOnce), &bounds, &mut Vec::new()).unwrap();
    }
    assert_eq!(
        out.enqueue(queued("d", QoS::AtLeastOnce), &bounds, &mut Vec::new()),
        Err(Rejected { dropped: 1 })
    );
    assert_eq!(next(&mut out, 9), Some((1, false, "b".into())));
}

#[test]
fn a_resume_repeats_in_order_with_dup_and_the_window_counts_it() {
    let mut out = Outgoing::default();
    for payload in ["a", "b", "c"] {
        out.enqueue(queued(payload, QoS::ExactlyOnce), &BOUNDS, &mut Vec::new()).unwrap();
    }
    for _ in 0..3 {
        next(&mut out, 9);
    }
    assert_eq!(out.on_pubrec(id(2), false, &mut Vec::new()), PubRecOutcome::Release);
    out.enqueue(queued("d", QoS::ExactlyOnce), &BOUNDS, &mut Vec::new()).unwrap();
    out.resume();
    assert_eq!(next(&mut out, 2), Some((1, true, "a".into())));
    assert_eq!(next(&mut out, 2), Some((2, true, "PUBREL".into())));
    assert_eq!(next(&mut out, 2), None);
    assert!(out.on_pubcomp(id(2), &mut Vec::new()));
    assert_eq!(next(&mut out, 2), Some((3, true, "c".into())));
    assert_eq!(out.on_pubrec(id(1), false, &mut Vec::new()), PubRecOutcome::Release);
    assert!(out.on_pubcomp(id(1), &mut Vec::new()));
    assert_eq!(next(&mut out, 2), Some((4, false, "d".into())));
}

#[test]
fn a_refused_or_unknown_qos_2_exchange_is_over() {
    let mut out = Outgoing::default();
    out.enqueue(queued("a", QoS::ExactlyOnce), &BOUNDS, &mut Vec::new()).unwrap();
    next(&mut out, 9);
    assert!(!out.on_puback(id(1), &mut Vec::new()), "PUBACK for QoS 2 is not an end");
    assert_eq!(out.on_pubrec(id(1), true, &mut Vec::new()), PubRecOutcome::Over);
    assert_eq!(out.on_pubrec(id(1), false, &mut Vec::new()), PubRecOutcome::Unknown);
    assert!(!out.on_pubcomp(id(1), &mut Vec::new()));
}

#[test]
fn identifiers_wrap_around_and_skip_those_in_use() {
    let mut out = Outgoing::default();
    out.enqueue(queued("old", QoS::AtLeastOnce), &BOUNDS, &mut Vec::new()).unwrap();
    assert_eq!(next(&mut out, 9), Some((1, false, "old".into())));
    for round in 0..70_000u32 {
        out.enqueue(queued("x", QoS::AtLeastOnce), &BOUNDS, &mut Vec::new()).unwrap();
        let (got, _, _) = next(&mut out, 9).unwrap();
        assert_ne!(got, 1, "round {round}");
        assert!(out.on_puback(id(got), &mut Vec::new()));
    }
}

#[test]
fn expired_messages_leave_the_queue_but_not_an_exchange() {
    let mut out = Outgoing::default();
    let mut dying = queued("late", QoS::ExactlyOnce);
    let draft = Draft { expires_at_ms: 10.try_into().ok(), ..dying.message.draft() };
    dying = Queued::new(Arc::new(Message::keep(&draft)), dying.delivery.clone());
    out.enqueue(dying.clone(), &BOUNDS, &mut Vec::new()).unwrap();
    next(&mut out, 9);
    assert_eq!(out.on_pubrec(id(1), false, &mut Vec::new()), PubRecOutcome::Release);
    out.enqueue(dying, &BOUNDS, &mut Vec::new()).unwrap();
    out.resume();
    let (mut expired, none) = (0, &mut Vec::new());
    assert!(matches!(
        out.next_step(9, &BOUNDS, Place::PENDING, 50, &mut expired, none),
        Some(Step::Release(_))
    ));
    assert!(out.next_step(9, &BOUNDS, Place::PENDING, 50, &mut expired, none).is_none());
    assert_eq!(expired, 1);
}

#[test]
fn what_a_share_group_is_owed_can_be_taken_out() {
    let mut out = Outgoing::default();
    let of = |payload: &str, qos, share: Option<&str>| {
        let mut queued = queued(payload, qos);
        queued.delivery.share = share.map(Arc::from);
        queued
    };
    let bounds = QueueBounds { max_messages: 9, ..BOUNDS };
    for entry in [
        of("sent 1", QoS::AtLeastOnce, Some("g")),
        of("sent 2", QoS::ExactlyOnce, Some("g")),
        of("own", QoS::AtLeastOnce, None),
        of("queued 1", QoS::ExactlyOnce, Some("g")),
        of("queued 2", QoS::AtLeastOnce, Some("h")),
        of("queued own", QoS::AtLeastOnce, None),
    ] {
        out.enqueue(entry, &bounds, &mut Vec::new()).unwrap();
    }
    for _ in 0..3 {
        next(&mut out, 3);
    }
    let text = |owed: Vec<Owed>| -> Vec<String> {
        let payload = |q: &Queued| String::from_utf8_lossy(q.message.draft().payload).into();
        owed.iter().filter_map(Owed::here).map(payload).collect()
    };
    assert_eq!(text(out.take_queued_of("h")), ["queued 2"]);
    assert_eq!(text(out.take_shared()), ["sent 1", "queued 1"]);
    assert_eq!((out.inflight(), out.queued()), (2, 1));
    assert_eq!(out.queued_bytes(), of("queued own", QoS::AtLeastOnce, None).size_bytes());
}

#[test]
fn a_refusal_before_the_resend_leaves_nothing_behind() {
    let mut out = Outgoing::default();
    for payload in ["a", "b"] {
        out.enqueue(queued(payload, QoS::ExactlyOnce), &BOUNDS, &mut Vec::new()).unwrap();
        next(&mut out, 9);
    }
    out.resume();
    assert_eq!(out.on_pubrec(id(1), true, &mut Vec::new()), PubRecOutcome::Over);
    assert_eq!(next(&mut out, 9), Some((2, true, "b".into())));
    assert_eq!(next(&mut out, 9), None);
    assert_eq!(out.on_pubrec(id(2), true, &mut Vec::new()), PubRecOutcome::Over);
    assert_eq!((out.inflight(), out.inflight_bytes), (0, 0));
}

#[test]
fn bytes_close_the_window_too_but_never_for_one_message() {
    let mut out = Outgoing::default();
    let bounds = QueueBounds { max_bytes: 10, ..BOUNDS };
    for payload in ["a", "b"] {
        out.enqueue(queued(payload, QoS::AtLeastOnce), &BOUNDS, &mut Vec::new()).unwrap();
    }
    let (mut expired, none) = (0, &mut Vec::new());
    assert!(out.next_step(9, &bounds, Place::PENDING, 0, &mut expired, none).is_some());
    assert!(out.next_step(9, &bounds, Place::PENDING, 0, &mut expired, none).is_none());
    assert!(out.on_puback(id(1), &mut Vec::new()));
    assert!(out.next_step(9, &bounds, Place::PENDING, 0, &mut expired, none).is_some());
}
