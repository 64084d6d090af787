//! Every structure against a naive model that asks [`crate::topic::matches()`] one by one.

use std::collections::{BTreeMap, BTreeSet};

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
    prop_assert_eq!(routes.len(), filters.len());
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
