//! The admin address: health and the counters of `/metrics`.

use crate::Case;
use crate::broker::Broker;
use crate::column::Column;
use crate::raw::{self, Raw};

pub const CASES: &[Case] = &[Case::smoke("metrics::counters_move", counters_move)];

fn counters_move(column: &Column) {
    let broker = Broker::start(column);
    assert_eq!(broker.get("/health").0, 200);
    assert_eq!(broker.get("/no-such-page").0, 404);
    let sum = |name: &str| broker.metric(name).iter().sum::<u64>();
    assert_eq!(broker.metric("connections").len(), 2, "one line per shard");
    assert_eq!(sum("connections"), 0);
    let accepted = sum("connections_accepted");
    let (received, sent) = (sum("messages_received"), sum("messages_sent"));
    let (bytes_in, bytes_out) = (sum("bytes_received"), sum("bytes_sent"));

    let mut subscriber = Raw::connect(broker.mqtt, 5, "metrics-subscriber", 60);
    subscriber.subscribe("metrics/#", 0);
    let mut publisher = Raw::connect(broker.mqtt, 4, "metrics-publisher", 60);
    for number in 1..=10 {
        publisher.send(&raw::publish(4, "metrics/a", &[b'x'; 100], 1, number));
        publisher.expect(raw::PUBACK);
        subscriber.expect(raw::PUBLISH);
    }
    broker.metric_until("connections", |now| now == 2);
    broker.metric_until("sessions", |now| now == 2);
    broker.metric_until("subscriptions", |now| now == 1);
    broker.metric_until("connections_accepted", |now| now == accepted + 2);
    broker.metric_until("messages_received", |now| now == received + 10);
    broker.metric_until("messages_sent", |now| now == sent + 10);
    broker.metric_until("bytes_received", |now| now > bytes_in + 1000);
    broker.metric_until("bytes_sent", |now| now > bytes_out + 1000);

    let errors = sum("protocol_errors");
    publisher.send(&raw::publish(4, "metrics/a", b"", 3, 1));
    assert!(publisher.until_closed(crate::wait::PATIENCE).is_ok(), "QoS 3 is not closed");
    broker.metric_until("protocol_errors", |now| now == errors + 1);
    drop(subscriber);
    broker.metric_until("connections", |now| now == 0);
    broker.metric_until("sessions", |now| now == 0);
    broker.metric_until("subscriptions", |now| now == 0);
}
