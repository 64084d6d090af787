//! Retained messages by topic, asked for by filter.
//!
//! The topics are kept in the order of their levels, in which all topics below a level lie next
//! to each other. A filter is then a walk with jumps: where a topic cannot match, the filter
//! says which is the next that could. The place of a walk is the last topic that it looked at,
//! which stays meaningful however the tree changes.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;

use crate::topic::{has_wildcards, levels};

/// A map from topic name to `M`, a cheap handle of a retained message.
#[derive(Clone, Debug)]
pub struct RetainedTree<M> {
    topics: BTreeMap<Key, M>,
}

/// The place of a [`RetainedTree::scan`]; starts at the beginning.
#[derive(Clone, Debug, Default)]
pub struct ScanCursor {
    place: Place,
}

impl ScanCursor {
    /// A cursor at the beginning.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the scan has come to its end; then another call finds nothing.
    pub fn is_done(&self) -> bool {
        matches!(self.place, Place::End)
    }
}

/// Where a walk goes on, in the order of the levels.
#[derive(Clone, Debug, Default)]
enum Place {
    #[default]
    Start,
    /// At this string, which need not be a topic in the tree.
    At(String),
    /// Behind this string.
    Behind(String),
    End,
}

impl<M> Default for RetainedTree<M> {
    fn default() -> Self {
        Self { topics: BTreeMap::new() }
    }
}

/// Of topic names and messages in any order; of two with the same topic the later one stays. In
/// order, or nearly so, it is much faster than inserting them.
impl<M> FromIterator<(Box<str>, M)> for RetainedTree<M> {
    fn from_iter<I: IntoIterator<Item = (Box<str>, M)>>(messages: I) -> Self {
        let messages = messages.into_iter();
        Self { topics: messages.map(|(topic, message)| (Key(topic), message)).collect() }
    }
}

impl<M> RetainedTree<M> {
    /// An empty tree.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of topics.
    pub fn len(&self) -> usize {
        self.topics.len()
    }

    /// Whether there is no topic.
    pub fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    /// Keeps `message` for the topic name `topic`, and returns the one that it replaces.
    pub fn insert(&mut self, topic: &str, message: M) -> Option<M> {
        self.topics.insert(Key(topic.into()), message)
    }

    /// All messages, in the order of their topics.
    pub fn into_messages(self) -> impl Iterator<Item = M> {
        self.topics.into_values()
    }

    /// Takes the message of a topic out.
    pub fn remove(&mut self, topic: &str) -> Option<M> {
        self.topics.remove(&topic as &dyn ByLevels)
    }

    /// The message of exactly this topic.
    pub fn get(&self, topic: &str) -> Option<&M> {
        self.topics.get(&topic as &dyn ByLevels)
    }

    /// Calls `found` for topics that match `filter` (well formed, without `$share/NAME/`), from
    /// where `cursor` stands, and moves the cursor. Call again until [`ScanCursor::is_done`],
    /// with the same filter.
    ///
    /// One call looks at no more than `limit` topics (at least one), matching or not; so it
    /// reports at most that many, and perhaps none although there are more to come. Topics come
    /// in the order of their levels, byte by byte, whatever the tree's history. One that stays
    /// in the tree during the whole scan is reported exactly once; one that is added or removed
    /// meanwhile, at most once. Wildcards in the first level find no `$` topic [MQTT-4.7.2-1].
    pub fn scan(
        &self,
        filter: &str,
        cursor: &mut ScanCursor,
        limit: usize,
        mut found: impl FnMut(&str, &M),
    ) {
        if cursor.is_done() {
            return;
        }
        if !has_wildcards(filter) {
            if let Some(message) = self.get(filter) {
                found(filter, message);
            }
            cursor.place = Place::End;
            return;
        }
        let mut left = limit.max(1);
        loop {
            let topics = self.topics.range::<dyn ByLevels, _>(cursor.place.bounds());
            let mut next = Place::End;
            for (Key(topic), message) in topics {
                left -= 1;
                match step(filter, topic) {
                    Step::Match => found(topic, message),
                    Step::Next => {}
                    Step::Jump { keep, then } => {
                        next = Place::At([&topic[..keep], then].concat());
                        break;
                    }
                    Step::End => break,
                }
                if left == 0 {
                    next = Place::Behind(topic.to_string());
                    break;
                }
            }
            cursor.place = next;
            if left == 0 || cursor.is_done() {
                return;
            }
        }
    }
}

impl Place {
    fn bounds(&self) -> (Bound<&dyn ByLevels>, Bound<&dyn ByLevels>) {
        let from: Bound<&dyn ByLevels> = match self {
            Self::Start | Self::End => Bound::Unbounded,
            Self::At(at) => Bound::Included(at),
            Self::Behind(topic) => Bound::Excluded(topic),
        };
        (from, Bound::Unbounded)
    }
}

/// What a topic means for a walk along a filter.
enum Step<'f> {
    Match,
    /// No match, but the next topic may be one.
    Next,
    /// No match before the string made of the topic's first `keep` bytes and `then`.
    Jump {
        keep: usize,
        then: &'f str,
    },
    /// No match any more.
    End,
}

/// Sorts behind everything that a `/` could go on with, before everything else.
const BEHIND_LEVEL: &str = "\0";
/// The character after `$`.
const BEHIND_DOLLAR: &str = "%";

fn step<'f>(filter: &'f str, topic: &str) -> Step<'f> {
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return Step::Jump { keep: 0, then: BEHIND_DOLLAR };
    }
    let mut wanted = levels(filter);
    // Where the last `+` ended in the topic: the level that may change when all others are used up.
    let mut plus_end = None;
    let mut start = 0;
    for have in levels(topic) {
        let end = start + have.len();
        match wanted.next() {
            Some("#") => return Step::Match,
            Some("+") => plus_end = Some(end),
            Some(want) => match have.cmp(want) {
                Ordering::Less => return Step::Jump { keep: start, then: want },
                Ordering::Equal => {}
                Ordering::Greater => return behind(plus_end),
            },
            None => return behind(plus_end),
        }
        start = end + 1;
    }
    match wanted.next() {
        None | Some("#") => Step::Match,
        Some(_) => Step::Next,
    }
}

fn behind(plus_end: Option<usize>) -> Step<'static> {
    plus_end.map_or(Step::End, |keep| Step::Jump { keep, then: BEHIND_LEVEL })
}

/// Text that sorts by levels; lets the map be searched by borrowed text.
trait ByLevels {
    fn text(&self) -> &str;
}

/// A topic in the map.
#[derive(Clone, Debug)]
struct Key(Box<str>);

impl ByLevels for Key {
    fn text(&self) -> &str {
        &self.0
    }
}

impl ByLevels for &str {
    fn text(&self) -> &str {
        self
    }
}

impl ByLevels for String {
    fn text(&self) -> &str {
        self
    }
}

impl<'a> Borrow<dyn ByLevels + 'a> for Key {
    fn borrow(&self) -> &(dyn ByLevels + 'a) {
        self
    }
}

impl Ord for dyn ByLevels + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(self.text(), other.text())
    }
}

impl PartialOrd for dyn ByLevels + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for dyn ByLevels + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Eq for dyn ByLevels + '_ {}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(&self.0, &other.0)
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Key {}

/// Byte order, but for `/`, which comes before all other bytes: the order of the levels.
fn compare(a: &str, b: &str) -> Ordering {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let at = common_prefix(a, b);
    match (a.get(at), b.get(at)) {
        (Some(b'/'), Some(_)) => Ordering::Less,
        (Some(_), Some(b'/')) => Ordering::Greater,
        (a, b) => a.cmp(&b),
    }
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let (words_a, words_b) = (a.as_chunks::<8>().0, b.as_chunks::<8>().0);
    let mut at = 0;
    for (a, b) in words_a.iter().zip(words_b) {
        let differing = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differing != 0 {
            return at + differing.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    at + a[at..].iter().zip(&b[at..]).take_while(|(a, b)| a == b).count()
}
