//! Every structure against a naive model that asks [`crate::topic::matches()`] one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::topic::{MAX_TOPIC_BYTES, is_valid_filter, is_valid_topic, matches};

/// Few levels, so that filters and topics often agree; `a!` sorts between `a` and `a/`.
const LEVELS: [&str; 6] = ["", "a", "b", "$x", "a!", "ab"];

fn topic() -> impl Strategy<Value = String> {
    let levels = vec(proptest::sample::select(&LEVELS[..]), 1..5);
    levels.prop_map(|levels| levels.join("/")).prop_filter("empty", |t| is_valid_topic(t))
}

fn filter() -> impl Strategy<Value = String> {
    let level = prop_oneof![2 => proptest::sample::select(&LEVELS[..]), 1 => Just("+")];
    let filter = (vec(level, 0..5), prop::bool::weighted(0.3)).prop_map(|(mut levels, multi)| {
        levels.extend(multi.then_some("#"));
        levels.join("/")
    });
    filter.prop_filter("empty", |f| is_valid_filter(f))
}

/// A filter as deep as the wire allows, and a topic that it matches.
fn deepest() -> (String, String) {
    let slashes = "/".repeat(MAX_TOPIC_BYTES - 1);
    (format!("{slashes}+"), format!("{slashes}x"))
}

#[derive(Clone, Debug)]
enum TreeStep {
    Add(String),
    Remove(String),
    Match(String),
}

fn tree_steps() -> impl Strategy<Value = Vec<TreeStep>> {
    let step = prop_oneof![
        3 => filter().prop_map(TreeStep::Add),
        2 => filter().prop_map(TreeStep::Remove),
        2 => topic().prop_map(TreeStep::Match),
    ];
    vec(step, 0..120)
}

proptest! {
    #[test]
    fn filter_tree_agrees_with_its_model(steps in tree_steps(), seed: u64) {
        let mut tree = FilterTree::<String>::new(seed);
        let mut model = BTreeMap::new();
        for step in steps {
            match step {
                TreeStep::Add(filter) => {
                    prop_assert_eq!(tree.get(&filter).is_some(), model.contains_key(&filter));
                    tree.entry(&filter).clone_from(&filter);
                    model.insert(filter.clone(), filter);
                }
                TreeStep::Remove(filter) => {
                    prop_assert_eq!(tree.get_mut(&filter).cloned(), model.get(&filter).cloned());
                    prop_assert_eq!(tree.remove(&filter), model.remove(&filter));
                    prop_assert_eq!(tree.get(&filter), None);
                }
                TreeStep::Match(topic) => {
                    let mut found = Vec::new();
                    tree.matches(&topic, |f| found.push(f.clone()));
                    found.sort();
                    let expected: Vec<_> =
                        model.keys().filter(|f| matches(f, &topic)).cloned().collect();
                    prop_assert_eq!(found, expected);
                }
            }
            prop_assert_eq!(tree.len(), model.len());
        }
        let listed: Vec<_> = tree.iter().map(|(f, v)| (f.into_owned(), v.clone())).collect();
        prop_assert_eq!(listed, model.clone().into_iter().collect::<Vec<_>>());
        for filter in model.keys() {
            tree.remove(filter);
        }
        prop_assert!(tree.is_empty() && tree.is_pruned());
    }

    #[test]
    fn matching_order_does_not_depend_on_the_seed(
        filters in vec(filter(), 0..60), topic in topic(), seeds: (u64, u64),
    ) {
        let order = |seed| {
            let mut tree = FilterTree::<String>::new(seed);
            filters.iter().for_each(|f| tree.entry(f).clone_from(f));
            let mut found = Vec::new();
            tree.matches(&topic, |f| found.push(f.clone()));
            found
        };
        prop_assert_eq!(order(seeds.0), order(seeds.1));
    }
}

#[test]
fn filter_tree_takes_the_deepest_filter() {
    let (filter, topic) = deepest();
    let mut tree = FilterTree::<u8>::new(0);
    *tree.entry(&filter) = 1;
    *tree.entry(&topic) = 2;
    let mut found = Vec::new();
    tree.matches(&topic, |&v| found.push(v));
    assert_eq!(found, [2, 1]);
    assert_eq!(tree.iter().count(), 2);
    assert_eq!(tree.remove(&filter), Some(1));
    assert_eq!(tree.remove(&topic), Some(2));
    assert!(tree.is_pruned());
}

#[derive(Clone, Debug)]
enum RouteStep {
    Plain { filter: String, shard: u8, on: bool },
    Group { filter: String, name: &'static str, shard: u8, members: u32 },
    Match(String),
}

fn route_steps() -> impl Strategy<Value = Vec<RouteStep>> {
    let name = proptest::sample::select(&["g", "h", "i"][..]);
    let step = prop_oneof![
        3 => (filter(), 0..4u8, prop::bool::weighted(0.6))
            .prop_map(|(filter, shard, on)| RouteStep::Plain { filter, shard, on }),
        3 => (filter(), name, 0..3u8, 0..3u32)
            .prop_map(|(filter, name, shard, members)| RouteStep::Group { filter, name, shard, members }),
        2 => topic().prop_map(RouteStep::Match),
    ];
    vec(step, 0..120)
}

type GroupModel = BTreeMap<(String, &'static str), BTreeMap<u8, u32>>;
type PlainModel = BTreeSet<(String, u8)>;

fn check_routes(
    routes: &Routes,
    plain: &PlainModel,
    groups: &GroupModel,
    topic: &str,
) -> Result<(), TestCaseError> {
    let mut matched = Matched::default();
    matched.shards.insert(63);
    routes.matches(topic, &mut matched);
    check_matched(&matched, routes.len(), plain, groups, topic)
}

fn check_matched(
    matched: &Matched,
    len: usize,
    plain: &PlainModel,
    groups: &GroupModel,
    topic: &str,
) -> Result<(), TestCaseError> {
    let shards: BTreeSet<_> =
        plain.iter().filter(|(f, _)| matches(f, topic)).map(|(_, shard)| *shard).collect();
    prop_assert_eq!(matched.shards.iter().collect::<BTreeSet<_>>(), shards);
    let mut found: Vec<_> = matched
        .groups
        .iter()
        .map(|g| ((g.filter().to_string(), g.name().to_string()), g.members().to_vec()))
        .collect();
    found.sort();
    let expected: Vec<_> = groups
        .iter()
        .filter(|((f, _), _)| matches(f, topic))
        .map(|((f, n), m)| ((f.clone(), n.to_string()), m.iter().map(|(s, c)| (*s, *c)).collect()))
        .collect();
    prop_assert_eq!(found, expected);
    let filters: BTreeSet<_> =
        plain.iter().map(|(f, _)| f).chain(groups.keys().map(|(f, _)| f)).collect();
    prop_assert_eq!(len, filters.len());
    Ok(())
}

proptest! {
    #[test]
    fn routes_agree_with_their_model_and_snapshots_are_frozen(steps in route_steps(), seed: u64) {
        let mut routes = Routes::new(seed);
        let (mut plain, mut groups) = (PlainModel::new(), GroupModel::new());
        let mut topics = Vec::new();
        let mut frozen = Vec::new();
        for step in steps {
            match step {
                RouteStep::Plain { filter, shard, on: true } => {
                    prop_assert_eq!(routes.add(&filter, shard), plain.insert((filter, shard)));
                }
                RouteStep::Plain { filter, shard, on: false } => {
                    prop_assert_eq!(routes.remove(&filter, shard), plain.remove(&(filter, shard)));
                }
                RouteStep::Group { filter, name, shard, members } => {
                    let changed = routes.set_group(&filter, name, shard, members);
                    let group = groups.entry((filter.clone(), name)).or_default();
                    let before = if members == 0 {
                        group.remove(&shard)
                    } else {
                        group.insert(shard, members)
                    };
                    prop_assert_eq!(changed, before.unwrap_or(0) != members);
                    if group.is_empty() {
                        groups.remove(&(filter, name));
                    }
                }
                RouteStep::Match(topic) => {
                    check_routes(&routes, &plain, &groups, &topic)?;
                    topics.push(topic);
                    if frozen.len() < 8 {
                        frozen.push((routes.clone(), plain.clone(), groups.clone()));
                    }
                }
            }
        }
        for (routes, plain, groups) in &frozen {
            for topic in &topics {
                check_routes(routes, plain, groups, topic)?;
            }
        }
        for (filter, shard) in &plain {
            routes = routes.without_subscriber(filter, *shard);
        }
        for ((filter, name), members) in &groups {
            for shard in members.keys() {
                prop_assert!(routes.set_group(filter, name, *shard, 0));
            }
        }
        prop_assert!(routes.is_empty() && routes.is_pruned());
    }
}

proptest! {
    #[test]
    fn shared_routes_agree_with_their_model(steps in route_steps(), seed: u64) {
        let routes = SharedRoutes::new(seed);
        let (mut plain, mut groups) = (PlainModel::new(), GroupModel::new());
        let mut matched = Matched::default();
        for step in steps {
            match step {
                RouteStep::Plain { filter, shard, on: true } => {
                    prop_assert_eq!(routes.add(&filter, shard), plain.insert((filter, shard)));
                }
                RouteStep::Plain { filter, shard, on: false } => {
                    prop_assert_eq!(routes.remove(&filter, shard), plain.remove(&(filter, shard)));
                }
                RouteStep::Group { filter, name, shard, members } => {
                    let changed = routes.set_group(&filter, name, shard, members);
                    let group = groups.entry((filter.clone(), name)).or_default();
                    let before = match members {
                        0 => group.remove(&shard),
                        _ => group.insert(shard, members),
                    };
                    prop_assert_eq!(changed, before.unwrap_or(0) != members);
                    if group.is_empty() {
                        groups.remove(&(filter, name));
                    }
                }
                RouteStep::Match(topic) => {
                    routes.matches(&topic, &mut matched);
                    check_matched(&matched, routes.len(), &plain, &groups, &topic)?;
                }
            }
        }
        for (filter, shard) in &plain {
            prop_assert!(routes.remove(filter, *shard));
        }
        for ((filter, name), members) in &groups {
            for shard in members.keys() {
                prop_assert!(routes.set_group(filter, name, *shard, 0));
            }
        }
        prop_assert!(routes.is_empty() && routes.is_pruned());
    }
}

/// Readers and writers on threads of their own: what was added before a match began is found,
/// what was removed before it began is not, whatever else changes meanwhile.
#[test]
fn every_match_that_starts_after_a_change_sees_it() {
    const FILTERS: usize = 3000;
    // In a table that grows meanwhile, under shapes that come and go, and in the tree behind.
    let filter = |n: usize| match n % 5 {
        0 => format!("{n}/b/c"),
        1 => format!("{n}/+/c"),
        2 => format!("{n}/#"),
        3 => format!("{n}/b/+"),
        _ => format!("{n}/+/c/+/#"), // too deep for a shape of the tests
    };
    let topic = |n: usize| match n % 5 {
        4 => format!("{n}/b/c/d/e"),
        _ => format!("{n}/b/c"),
    };
    let routes = SharedRoutes::new(3);
    // Filters below `added` are there for good; those below `removed` had a second shard.
    let (added, removed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..FILTERS {
                routes.add(&filter(n), 1);
                routes.add(&filter(n), 2);
                added.store(n + 1, Ordering::Release);
                routes.remove(&filter(n), 2);
                removed.store(n + 1, Ordering::Release);
            }
        });
        // Noise: shapes and filters that come and go.
        scope.spawn(|| {
            let noise = ["+", "+/+", "x/+/+", "+/x/#", "x/#", "+/+/+", "+/+/x/+/+", "x"];
            while removed.load(Ordering::Acquire) < FILTERS {
                for filter in noise {
                    routes.add(filter, 3);
                }
                for filter in noise {
                    routes.remove(filter, 3);
                }
            }
        });
        for reader in 0..2 {
            let (routes, added, removed) = (&routes, &added, &removed);
            scope.spawn(move || {
                let mut matched = Matched::default();
                let mut at = reader;
                loop {
                    let gone = removed.load(Ordering::Acquire);
                    let there = added.load(Ordering::Acquire);
                    if there > 0 {
                        // The newest, and all others in turn.
                        for n in [there - 1, at % there] {
                            routes.matches(&topic(n), &mut matched);
                            assert!(matched.shards.contains(1), "{n} of {there}");
                            assert!(n >= gone || !matched.shards.contains(2), "{n} of {gone}");
                        }
                        at += 7;
                    }
                    if gone == FILTERS {
                        return;
                    }
                }
            });
        }
    });
    assert_eq!(routes.len(), FILTERS);
}

#[test]
fn routes_take_the_deepest_filter_and_drop_it_in_any_company() {
    let (filter, topic) = deepest();
    let first = Routes::new(0).with_subscriber(&filter, 1);
    let second = first.with_subscriber(&topic, 2).with_subscriber(&format!("{topic}/#"), 3);
    let third = second.without_subscriber(&filter, 1);
    let mut matched = Matched::default();
    second.matches(&topic, &mut matched);
    assert_eq!(matched.shards.iter().collect::<Vec<_>>(), [1, 2, 3]);
    drop(first);
    third.matches(&topic, &mut matched);
    assert_eq!(matched.shards.iter().collect::<Vec<_>>(), [2, 3]);
    assert!(second.get(&filter).is_some() && third.get(&filter).is_none());
}

#[test]
fn routes_ignore_shards_that_cannot_be() {
    let mut routes = Routes::new(0);
    assert!(!routes.add("a", 64) && !routes.set_group("a", "g", 64, 1) && !routes.remove("a", 64));
    assert!(routes.is_empty());
}

#[derive(Clone, Debug)]
enum RetainedStep {
    Insert(String),
    Remove(String),
    /// One page of the scan that is under way.
    Page,
}

fn retained_steps() -> impl Strategy<Value = Vec<RetainedStep>> {
    let step = prop_oneof![
        2 => topic().prop_map(RetainedStep::Insert),
        1 => topic().prop_map(RetainedStep::Remove),
        2 => Just(RetainedStep::Page),
    ];
    vec(step, 0..80)
}

proptest! {
    #[test]
    fn a_scan_finds_what_stays_once(
        before in vec(topic(), 0..80), steps in retained_steps(), filter in filter(), limit in 0..9usize,
    ) {
        let mut tree = RetainedTree::new();
        let mut model = BTreeMap::new();
        for topic in before {
            prop_assert_eq!(tree.insert(&topic, topic.clone()), model.insert(topic.clone(), topic));
        }
        let mut stays: BTreeSet<_> = model.keys().filter(|t| matches(&filter, t)).cloned().collect();
        let mut cursor = ScanCursor::new();
        let mut found = Vec::new();
        let steps = steps.into_iter().chain(std::iter::repeat_n(RetainedStep::Page, 400));
        for step in steps {
            match step {
                RetainedStep::Insert(topic) => {
                    tree.insert(&topic, topic.clone());
                    model.insert(topic.clone(), topic);
                }
                RetainedStep::Remove(topic) => {
                    prop_assert_eq!(tree.remove(&topic), model.remove(&topic));
                    stays.remove(&topic);
                }
                RetainedStep::Page => {
                    let mut page = Vec::new();
                    tree.scan(&filter, &mut cursor, limit, |topic, message| {
                        assert_eq!(topic, message);
                        page.push(topic.to_owned());
                    });
                    prop_assert!(page.len() <= limit.max(1));
                    prop_assert!(page.iter().all(|t| matches(&filter, t) && model.contains_key(t)));
                    found.extend(page);
                }
            }
            prop_assert_eq!(tree.len(), model.len());
        }
        prop_assert!(cursor.is_done());
        let once: BTreeSet<_> = found.iter().cloned().collect();
        prop_assert_eq!(once.len(), found.len(), "reported twice");
        prop_assert!(stays.is_subset(&once), "{:?} not in {:?}", stays, once);
        for (topic, message) in &model {
            prop_assert_eq!(tree.get(topic), Some(message));
        }
    }
}

#[test]
fn a_scan_is_bounded_when_nothing_matches() {
    let mut tree = RetainedTree::new();
    for i in 0..1000 {
        tree.insert(&format!("a/{i}/x"), i);
    }
    let mut cursor = ScanCursor::new();
    let mut pages = 0;
    while !cursor.is_done() {
        tree.scan("a/+/y", &mut cursor, 10, |topic, _| panic!("{topic}"));
        pages += 1;
    }
    assert!((100..=201).contains(&pages), "{pages}");

    // Jumps over all that lies below a level: one look per device, not per topic.
    for i in 0..1000 {
        tree.insert(&format!("b/1/deep/{i}"), i);
    }
    let (mut cursor, mut found) = (ScanCursor::new(), 0);
    tree.scan("b/+", &mut cursor, 5, |_, _| found += 1);
    assert!(cursor.is_done() && found == 0);
    let mut cursor = ScanCursor::new();
    tree.scan("a/7/+", &mut cursor, 4, |_, _| found += 1);
    assert!(cursor.is_done() && found == 1);
}

#[test]
fn the_deepest_topic_is_found() {
    let (filter, topic) = deepest();
    let mut tree = RetainedTree::new();
    tree.insert(&topic, ());
    for filter in [&*filter, "#", "/#", "+/#"] {
        let (mut cursor, mut found) = (ScanCursor::new(), 0);
        tree.scan(filter, &mut cursor, 10, |_, ()| found += 1);
        assert!(cursor.is_done() && found == 1);
    }
}
