//! Taking filters apart, and the limits on names and filters.

use thiserror::Error;

use super::{MAX_TOPIC_BYTES, has_wildcards};

const SHARE_PREFIX: &str = "$share/";

/// How long and how deep a topic name or filter may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes; `$share/NAME/` counts.
    pub max_bytes: usize,
    /// Most levels; those of `$share/NAME/` do not count.
    pub max_levels: usize,
}

impl Limits {
    /// No tighter than the specification: 65,535 bytes, hence at most 65,536 levels.
    pub const SPECIFICATION: Self =
        Self { max_bytes: MAX_TOPIC_BYTES, max_levels: MAX_TOPIC_BYTES + 1 };
}

/// What is wrong with a topic name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TopicError {
    /// No characters [MQTT-4.7.3-1].
    #[error("topic name is empty")]
    Empty,
    /// More bytes than [`Limits::max_bytes`].
    #[error("topic name is too long")]
    TooLong,
    /// More levels than [`Limits::max_levels`].
    #[error("topic name has too many levels")]
    TooDeep,
    /// Contains U+0000 [MQTT-4.7.3-2].
    #[error("topic name contains a null character")]
    Null,
    /// Contains `+` or `#` [MQTT-4.7.0-1].
    #[error("topic name contains a wildcard")]
    Wildcard,
}

/// What is wrong with a topic filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FilterError {
    /// No characters [MQTT-4.7.3-1].
    #[error("topic filter is empty")]
    Empty,
    /// More bytes than [`Limits::max_bytes`].
    #[error("topic filter is too long")]
    TooLong,
    /// More levels than [`Limits::max_levels`].
    #[error("topic filter has too many levels")]
    TooDeep,
    /// Contains U+0000 [MQTT-4.7.3-2].
    #[error("topic filter contains a null character")]
    Null,
    /// `#` is not the whole last level [MQTT-4.7.1-1].
    #[error("`#` must be the whole last level of a topic filter")]
    MultiLevel,
    /// `+` shares its level with other characters [MQTT-4.7.1-2].
    #[error("`+` must be a whole level of a topic filter")]
    SingleLevel,
    /// The share name is empty [MQTT-4.8.2-1] or has a wildcard in it [MQTT-4.8.2-2].
    #[error("share name is empty or contains a wildcard")]
    ShareName,
    /// No `/` and topic filter follow the share name [MQTT-4.8.2-2].
    #[error("no topic filter follows the share name")]
    ShareWithoutFilter,
}

/// The name of a share group: at least one character, none of them `/`, `+` or `#`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShareName<'a>(&'a str);

impl<'a> ShareName<'a> {
    /// The name alone.
    pub fn as_str(self) -> &'a str {
        self.0
    }
}

/// A subscription's filter, taken apart and checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsedFilter<'a> {
    /// The share group, when the filter began with `$share/`.
    pub share: Option<ShareName<'a>>,
    /// What is matched against topic names; without `$share/NAME/`.
    pub filter: &'a str,
    /// Whether `filter` has a `+` or `#`.
    pub has_wildcards: bool,
}

/// Takes `raw` apart as the filter of a SUBSCRIBE or UNSUBSCRIBE, within the specification's
/// limits.
///
/// # Errors
/// Says which rule `raw` breaks.
pub fn parse_filter(raw: &str) -> Result<ParsedFilter<'_>, FilterError> {
    parse_filter_within(raw, &Limits::SPECIFICATION)
}

/// [`parse_filter`] with limits of one's own.
///
/// # Errors
/// Says which rule or limit `raw` breaks.
pub fn parse_filter_within<'a>(
    raw: &'a str,
    limits: &Limits,
) -> Result<ParsedFilter<'a>, FilterError> {
    let (share, filter) = match raw.strip_prefix(SHARE_PREFIX) {
        None => (None, raw),
        Some(rest) => {
            if raw.len() > limits.max_bytes {
                return Err(FilterError::TooLong);
            }
            let (name, filter) = rest.split_once('/').unwrap_or((rest, ""));
            if name.is_empty() || has_wildcards(name) {
                return Err(FilterError::ShareName);
            }
            if memchr::memchr(0, name.as_bytes()).is_some() {
                return Err(FilterError::Null);
            }
            if filter.is_empty() {
                return Err(FilterError::ShareWithoutFilter);
            }
            (Some(ShareName(name)), filter)
        }
    };
    check_filter(filter, limits)?;
    Ok(ParsedFilter { share, filter, has_wildcards: has_wildcards(filter) })
}

/// Checks a topic name.
///
/// # Errors
/// Says which rule or limit `topic` breaks.
pub fn check_topic(topic: &str, limits: &Limits) -> Result<(), TopicError> {
    let bytes = topic.as_bytes();
    if bytes.is_empty() {
        return Err(TopicError::Empty);
    }
    if bytes.len() > limits.max_bytes {
        return Err(TopicError::TooLong);
    }
    if let Some(at) = memchr::memchr3(b'+', b'#', 0, bytes) {
        return Err(if bytes[at] == 0 { TopicError::Null } else { TopicError::Wildcard });
    }
    if too_deep(bytes, limits) {
        return Err(TopicError::TooDeep);
    }
    Ok(())
}

/// Checks a topic filter without looking for `$share/`.
///
/// # Errors
/// Says which rule or limit `filter` breaks.
pub fn check_filter(filter: &str, limits: &Limits) -> Result<(), FilterError> {
    let bytes = filter.as_bytes();
    if bytes.is_empty() {
        return Err(FilterError::Empty);
    }
    if bytes.len() > limits.max_bytes {
        return Err(FilterError::TooLong);
    }
    for at in memchr::memchr3_iter(b'+', b'#', 0, bytes) {
        let starts_level = at == 0 || bytes[at - 1] == b'/';
        let next = bytes.get(at + 1);
        match bytes[at] {
            0 => return Err(FilterError::Null),
            b'#' if !starts_level || next.is_some() => return Err(FilterError::MultiLevel),
            b'+' if !starts_level || next.is_some_and(|&b| b != b'/') => {
                return Err(FilterError::SingleLevel);
            }
            _ => {}
        }
    }
    if too_deep(bytes, limits) {
        return Err(FilterError::TooDeep);
    }
    Ok(())
}

fn too_deep(bytes: &[u8], limits: &Limits) -> bool {
    // A string of n bytes has at most n + 1 levels: most need no counting.
    bytes.len() >= limits.max_levels
        && memchr::memchr_iter(b'/', bytes).count() >= limits.max_levels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_filters_pass_through() {
        let parsed = parse_filter("a/+/#").unwrap();
        assert_eq!(parsed, ParsedFilter { share: None, filter: "a/+/#", has_wildcards: true });
        // Without the slash after it, `$share` is an ordinary first level.
        assert_eq!(parse_filter("$share").unwrap().share, None);
        assert!(!parse_filter("$shared/x").unwrap().has_wildcards);
    }

    #[test]
    fn share_groups_are_split_off() {
        let parsed = parse_filter("$share/workers/jobs/+").unwrap();
        assert_eq!(parsed.share.map(ShareName::as_str), Some("workers"));
        assert_eq!(parsed.filter, "jobs/+");
        assert!(parsed.has_wildcards);
        assert_eq!(parse_filter("$share/g//").unwrap().filter, "/");
        assert_eq!(parse_filter("$share/g/$SYS/x").unwrap().filter, "$SYS/x");
        assert_eq!(parse_filter("$share/"), Err(FilterError::ShareName));
        assert_eq!(parse_filter("$share//x"), Err(FilterError::ShareName));
        assert_eq!(parse_filter("$share/a+/x"), Err(FilterError::ShareName));
        assert_eq!(parse_filter("$share/#"), Err(FilterError::ShareName));
        assert_eq!(parse_filter("$share/g"), Err(FilterError::ShareWithoutFilter));
        assert_eq!(parse_filter("$share/g/"), Err(FilterError::ShareWithoutFilter));
        assert_eq!(parse_filter("$share/g\0/x"), Err(FilterError::Null));
        assert_eq!(parse_filter("$share/g/#/x"), Err(FilterError::MultiLevel));
    }

    #[test]
    fn limits_hold_at_the_edge() {
        let limits = Limits { max_bytes: 20, max_levels: 3 };
        assert_eq!(check_topic("a/b/c", &limits), Ok(()));
        assert_eq!(check_topic("a/b/c/", &limits), Err(TopicError::TooDeep));
        assert_eq!(check_topic("//", &limits), Ok(()));
        assert_eq!(check_topic("///", &limits), Err(TopicError::TooDeep));
        assert_eq!(check_topic(&"a".repeat(20), &limits), Ok(()));
        assert_eq!(check_topic(&"a".repeat(21), &limits), Err(TopicError::TooLong));
        assert_eq!(check_topic("a\0+", &limits), Err(TopicError::Null));
        assert!(parse_filter_within("$share/g/a/b/#", &limits).is_ok());
        assert_eq!(parse_filter_within("a/b/c/#", &limits), Err(FilterError::TooDeep));
        assert_eq!(
            parse_filter_within("$share/g/aaaaaaaaaaaa", &limits),
            Err(FilterError::TooLong)
        );
        assert!(check_topic(&"/".repeat(MAX_TOPIC_BYTES), &Limits::SPECIFICATION).is_ok());
    }
}
