//! Topic names and topic filters: what is well formed, what matches what.
//!
//! Everything here is a function of its arguments. [`matches()`] is the reference that the
//! structures in [`crate::routing`] are tested against; it is quick enough for single
//! questions, not for asking a million filters about one topic.
//!
//! Names and filters are compared byte by byte and never normalised [MQTT-4.7.3-4]; `/a`, `a`
//! and `a/` are three topics, and an empty level is a level.

mod filter;

pub use filter::*;

/// The longest topic name or filter that the wire can carry, in bytes [MQTT-4.7.3-3].
pub const MAX_TOPIC_BYTES: usize = 65_535;

/// Whether `topic` is a topic name that may be published to, by the specification alone.
///
/// Narrower limits of one's own are in [`Limits`].
pub fn is_valid_topic(topic: &str) -> bool {
    check_topic(topic, &Limits::SPECIFICATION).is_ok()
}

/// Whether `filter` is a well formed topic filter, by the specification alone.
///
/// A `$share/...` string is judged as it stands, as an ordinary filter; [`parse_filter`] takes
/// it apart and judges the parts.
pub fn is_valid_filter(filter: &str) -> bool {
    check_filter(filter, &Limits::SPECIFICATION).is_ok()
}

/// The levels of a topic name or filter, from the left; never empty, as `""` has one level.
pub fn levels(topic_or_filter: &str) -> impl Iterator<Item = &str> {
    topic_or_filter.split('/')
}

/// Whether `filter` has a `+` or `#` in it.
pub fn has_wildcards(filter: &str) -> bool {
    memchr::memchr2(b'+', b'#', filter.as_bytes()).is_some()
}

/// Whether a well formed `filter` (without `$share/NAME/`) matches the topic name `topic`.
///
/// `+` stands for one level, also an empty one; `#` for any number of levels, also none, so
/// `a/#` matches `a`. A wildcard in the first level matches no topic that begins with `$`
/// [MQTT-4.7.2-1].
pub fn matches(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let mut wanted = levels(filter);
    let mut found = levels(topic);
    loop {
        match (wanted.next(), found.next()) {
            (Some("#"), _) => return true,
            (Some("+"), Some(_)) => {}
            (Some(want), Some(have)) if want == have => {}
            (None, None) => return true,
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["a", "/", "a//b", "$SYS/x", " ", "a/", "\u{e9}/\u{1f600}"] {
            assert!(is_valid_topic(good), "{good}");
        }
        for bad in ["", "+", "a/#", "a+b", "a\0b", &"x".repeat(MAX_TOPIC_BYTES + 1)] {
            assert!(!is_valid_topic(bad), "{bad}");
        }
        assert!(is_valid_topic(&"x".repeat(MAX_TOPIC_BYTES)));
    }

    #[test]
    fn filters() {
        for good in ["#", "+", "/", "+/+", "a/#", "a/+/b", "/+", "+/", "a//b", "$SYS/#", "+/#"] {
            assert!(is_valid_filter(good), "{good}");
        }
        for bad in ["", "a#", "#/a", "a/#/b", "a+", "+a/b", "a/b+/c", "##", "++", "a\0", "a/#/"] {
            assert!(!is_valid_filter(bad), "{bad}");
        }
    }

    #[test]
    fn matching() {
        for (filter, topic) in [
            ("a/b", "a/b"),
            ("a/#", "a"),
            ("a/#", "a/"),
            ("a/#", "a/b/c"),
            ("#", "a"),
            ("#", "/"),
            ("+", "a"),
            ("+/+", "/"),
            ("/+", "/a"),
            ("+/+", "/a"),
            ("a/+/c", "a//c"),
            ("+/#", "a"),
            ("$SYS/#", "$SYS/x"),
            ("$SYS/+", "$SYS/x"),
            ("$SYS/#", "$SYS"),
        ] {
            assert!(matches(filter, topic), "{filter} {topic}");
        }
        for (filter, topic) in [
            ("a/b", "a/b/"),
            ("a", "A"),
            ("a/+", "a"),
            ("a/+", "a/b/c"),
            ("+", "/a"),
            ("+", "/"),
            ("#", "$SYS/x"),
            ("+/x", "$SYS/x"),
            ("+", "$SYS"),
            ("a/#", "ab"),
            ("a/+/#", "a"),
        ] {
            assert!(!matches(filter, topic), "{filter} {topic}");
        }
    }
}
