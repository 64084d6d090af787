//! What one start leaves to the next ones.

use super::*;

#[test]
fn a_session_that_left_while_the_node_was_down_has_no_old_records() {
    let mut kept = Kept::new(2);
    kept.sleeper("s", "t", AtLeastOnce);
    let publisher = kept.connect("p");
    kept.publish(publisher, "t", "old", AtLeastOnce, 1);
    kept.publish(publisher, "u", "x", ExactlyOnce, 5);
    kept.sync();
    let (s, p) = (kept.move_away("s"), kept.move_away("p"));
    kept.crash();
    // Both come back, under their old generations.
    kept.move_back("s", s);
    kept.move_back("p", p);
    kept.crash();
    let reader = kept.connect("s");
    assert_eq!(kept.got(reader), NOTHING);
    let publisher = kept.connect("p");
    kept.publish(publisher, "t", "new", ExactlyOnce, 5);
    kept.sync();
    assert_eq!(kept.got(publisher), ["PubRec 5"], "the old exchange is over");
    assert_eq!(kept.got(reader).len(), 1);
    kept.crash();
    let reader = kept.connect("s");
    let got = kept.got(reader);
    assert!(got.len() == 1 && got[0].starts_with("pub new "), "{got:?}");
}

#[test]
fn a_publisher_that_left_while_the_node_was_down_repeats_nothing() {
    let mut kept = Kept::new(1);
    kept.sleeper("s", "t", AtLeastOnce);
    let publisher = kept.connect("p");
    kept.publish(publisher, "t", "old", ExactlyOnce, 5);
    kept.sync_quietly();
    kept.log.retain(|bytes| bytes[0] != 0x15); // the taking was not durable
    let p = kept.move_away("p");
    kept.crash();
    kept.move_back("p", p);
    kept.crash();
    let publisher = kept.connect("p");
    // Its first sending was lost on the way.
    kept.publish_again(publisher, "t", "new", ExactlyOnce, 5, true);
    kept.sync();
    let reader = kept.connect("s");
    assert_eq!(kept.got(reader).len(), 2);
}

#[test]
fn what_tells_that_a_message_is_known_is_kept_until_it_is_taken() {
    // The message is taken in the end, or one of the two sessions is over.
    for end in ["taken", "publisher", "reader"] {
        let mut kept = Kept::new(1);
        let reader = kept.connect("s");
        kept.subscribe(reader, "s", "t", ExactlyOnce);
        let publisher = kept.connect("p");
        kept.publish(publisher, "t", "a", ExactlyOnce, 5);
        kept.sync_quietly();
        kept.log.retain(|bytes| bytes[0] != 0x15); // the taking was not durable
        kept.crash();
        let reader = kept.connect("s");
        assert_eq!(kept.got(reader), ["pub a 2"]);
        kept.ack(reader, PubRec, 2);
        kept.sync();
        kept.ack(reader, PubComp, 2);
        kept.sync();
        assert_eq!(kept.live(), 1, "the record is needed still");
        kept.crash();
        assert_eq!(kept.live(), 1);
        match end {
            "taken" => {
                let publisher = kept.connect("p");
                kept.publish_again(publisher, "t", "a", ExactlyOnce, 5, true);
                kept.sync();
                assert_eq!(kept.got(publisher), ["PubRec 5"]);
                assert_eq!(kept.live(), 1, "the record of its being taken");
                kept.ack(publisher, PubRel, 5);
                kept.sync();
                let reader = kept.connect("s");
                assert_eq!(kept.got(reader), ["PubRel 2"; 0], "delivered once");
            }
            "publisher" => _ = kept.connect_as("p", true),
            _ => _ = kept.connect_as("s", true),
        }
        kept.sync();
        assert_eq!(kept.live(), 0, "{end}");
        kept.crash();
        assert_eq!(kept.live(), 0, "{end}");
    }
}
