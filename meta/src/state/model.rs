//! Random commands against a simple model: maps, recounting, no keys and no bytes.

use std::collections::BTreeMap;
use std::ops::ControlFlow::Continue;

use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;

use super::testing::MapView;
use super::{Effect, Tx, apply, check, read, samples};
use crate::command::{CloseSession, Command, OpenSession, Refusal, Reply};
use crate::record::{
    ClientKey, ConfigRecord, NodeId, NodeRecord, RuleRecord, SLOTS, SessionRecord, Slots,
    StoredMessage, StoredSubscription, StoredWill, TenantRecord, UserRecord,
};

/// The state as one would draw it. The session's own number of subscriptions stays 0 in here.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    sessions: BTreeMap<ClientKey, (SessionRecord, BTreeMap<String, StoredSubscription>)>,
    retained: BTreeMap<String, StoredMessage>,
    users: BTreeMap<String, UserRecord>,
    rules: BTreeMap<u32, RuleRecord>,
    tenants: BTreeMap<String, TenantRecord>,
    nodes: BTreeMap<NodeId, NodeRecord>,
    slots: BTreeMap<u16, NodeId>,
    config: BTreeMap<String, ConfigRecord>,
    stamp: u64,
}

type Answer = Result<Reply, Refusal>;
type Wills = Vec<(NodeId, StoredWill)>;

impl Model {
    fn apply(&mut self, index: u64, command: &Command, wills: &mut Wills) -> Answer {
        let nonsense = || Refusal::Invalid(String::new());
        if !makes_sense(command) {
            return Err(nonsense());
        }
        let gone = |there: bool| if there { Ok(Reply::Done) } else { Err(Refusal::NotFound) };
        match command.clone() {
            Command::OpenSession(open) => return self.open(index, open, wills),
            Command::CloseSession(close) => {
                let (session, _) = self.current(&close.client, close.epoch)?;
                session.connected = false;
                session.expiry_interval_s = close.expiry_interval_s;
                session.expires_at_ms = close.expires_at_ms;
                session.will = session.will.take().filter(|_| close.will_at_ms.is_some());
                session.will_at_ms = session.will.as_ref().and(close.will_at_ms);
            }
            Command::EndSession { client, epoch, node } => {
                self.current(&client, epoch)?;
                let ended = self.sessions.remove(&client);
                wills.extend(ended.and_then(|(session, _)| session.will).map(|will| (node, will)));
            }
            Command::TakeWill { client, epoch } => {
                let (session, _) = self.current(&client, epoch)?;
                let waits = session.will_at_ms.take().is_some();
                if waits {
                    session.will = None;
                }
                return gone(waits);
            }
            Command::Subscribe { client, epoch, subscriptions } => {
                let (_, held) = self.current(&client, epoch)?;
                held.extend(subscriptions.into_iter().map(|new| (new.filter.clone(), new)));
            }
            Command::Unsubscribe { client, epoch, filters } => {
                let (_, held) = self.current(&client, epoch)?;
                held.retain(|filter, _| !filters.contains(filter));
            }
            Command::Retain(message) => drop(self.retained.insert(message.topic.clone(), message)),
            Command::Unretain { topic } => drop(self.retained.remove(&topic)),
            Command::SweepRetained { now_ms, topics } => {
                let over = |at: Option<u64>| at.is_some_and(|at| at <= now_ms);
                self.retained.retain(|topic, message| {
                    !(topics.contains(topic) && over(message.expires_at_ms))
                });
            }
            Command::PutUser(user) => drop(self.users.insert(user.name.clone(), user)),
            Command::RemoveUser { name } => return gone(self.users.remove(&name).is_some()),
            Command::PutRule(rule) => drop(self.rules.insert(rule.id, rule)),
            Command::RemoveRule { id } => return gone(self.rules.remove(&id).is_some()),
            Command::PutTenant(tenant) => {
                self.tenants.insert(tenant.name.clone(), tenant);
            }
            Command::RemoveTenant { name } => return gone(self.tenants.remove(&name).is_some()),
            Command::PutNode(node) => drop(self.nodes.insert(node.id, node)),
            Command::RemoveNode { id } => return gone(self.nodes.remove(&id).is_some()),
            Command::AssignSlots { slots, node } => {
                self.slots.extend((slots.first..=slots.last).map(|slot| (slot, node)));
            }
            Command::SetConfig { key, expected, value } => {
                let found = self.config.get(&key).map_or(0, |record| record.version);
                if expected.is_some_and(|expected| expected != found) {
                    return Err(Refusal::Conflict { version: found });
                }
                self.config.remove(&key);
                let Some(value) = value else {
                    return Ok(Reply::Config { version: 0 });
                };
                let version = self.stamp(index);
                self.config.insert(key, ConfigRecord { version, value });
                return Ok(Reply::Config { version });
            }
        }
        Ok(Reply::Done)
    }

    fn open(&mut self, index: u64, open: OpenSession, wills: &mut Wills) -> Answer {
        let OpenSession { client, clean_start, node, expiry_interval_s, will, now_ms } = open;
        let of_tenant = |key: &&ClientKey| key.tenant == client.tenant;
        let held = self.sessions.keys().filter(of_tenant).count() as u64;
        let most = self.tenants.get(&client.tenant).map_or(0, |tenant| tenant.max_sessions);
        if !self.sessions.contains_key(&client) && most > 0 && held >= most {
            return Err(Refusal::Limit(String::new()));
        }
        let epoch = self.stamp(index);
        let before = self.sessions.remove(&client);
        let goes_on = |session: &SessionRecord| {
            !clean_start && session.expires_at_ms.is_none_or(|at| at > now_ms)
        };
        let mut kept = None;
        if let Some((session, held)) = before {
            let resumed = goes_on(&session);
            let due = match (&session.will, session.will_at_ms) {
                (Some(_), _) if !resumed => true,
                (Some(_), Some(at)) => at <= now_ms,
                (Some(will), None) => will.delay_s == 0,
                (None, _) => false,
            };
            wills.extend(session.will.filter(|_| due).map(|will| (node, will)));
            kept = resumed.then_some((session.generation, held));
        }
        let present = kept.is_some();
        let (generation, held) = kept.unwrap_or((epoch, BTreeMap::new()));
        let session = SessionRecord {
            generation,
            epoch,
            node,
            connected: true,
            expiry_interval_s,
            expires_at_ms: None,
            will,
            will_at_ms: None,
            subscriptions: 0,
        };
        self.sessions.insert(client, (session, held));
        Ok(Reply::Session { epoch, generation, present })
    }

    fn current(
        &mut self,
        client: &ClientKey,
        epoch: u64,
    ) -> Result<&mut (SessionRecord, BTreeMap<String, StoredSubscription>), Refusal> {
        self.sessions
            .get_mut(client)
            .filter(|(session, _)| session.epoch == epoch)
            .ok_or(Refusal::Stale)
    }

    fn stamp(&mut self, index: u64) -> u64 {
        self.stamp = index.max(self.stamp + 1);
        self.stamp
    }

    /// The model of what is stored, by the read side alone.
    fn of(state: &MapView) -> Self {
        let mut model = Self::default();
        read::sessions(state, None, |client, mut record| {
            let mut held = BTreeMap::new();
            read::subscriptions(state, &client, |subscription| {
                held.insert(subscription.filter.clone(), subscription);
                Continue(())
            })
            .expect("reads");
            record.subscriptions = 0;
            model.sessions.insert(client, (record, held));
            Continue(())
        })
        .expect("reads");
        read::retained(state, None, |message| {
            model.retained.insert(message.topic.clone(), message);
            Continue(())
        })
        .expect("reads");
        read::users(state, None, |user| {
            model.users.insert(user.name.clone(), user);
            Continue(())
        })
        .expect("reads");
        read::rules(state, |rule| {
            model.rules.insert(rule.id, rule);
            Continue(())
        })
        .expect("reads");
        read::tenants(state, |tenant| {
            model.tenants.insert(tenant.name.clone(), tenant);
            Continue(())
        })
        .expect("reads");
        read::nodes(state, |node| {
            model.nodes.insert(node.id, node);
            Continue(())
        })
        .expect("reads");
        read::slots(state, |run| {
            let slots = run.slots.first..=run.slots.last;
            model.slots.extend(slots.map(|slot| (slot, run.node)));
            Continue(())
        })
        .expect("reads");
        read::configs(state, None, |key, record| {
            model.config.insert(key.to_owned(), record);
            Continue(())
        })
        .expect("reads");
        model
    }
}

/// The names below are either empty, hold a NUL, or are good.
fn makes_sense(command: &Command) -> bool {
    let text = |text: &str| !text.contains('\0');
    let name = |name: &str| !name.is_empty() && text(name);
    let whose = |client: &ClientKey| text(&client.tenant) && name(&client.client_id);
    match command {
        Command::OpenSession(open) => whose(&open.client) && open.expiry_interval_s > 0,
        Command::CloseSession(close) => whose(&close.client),
        Command::EndSession { client, .. } | Command::TakeWill { client, .. } => whose(client),
        Command::Subscribe { client, subscriptions, .. } => {
            whose(client) && subscriptions.iter().all(|subscription| name(&subscription.filter))
        }
        Command::Unsubscribe { client, filters, .. } => {
            whose(client) && filters.iter().all(|filter| name(filter))
        }
        Command::Retain(message) => name(&message.topic) && !message.payload.is_empty(),
        Command::Unretain { topic } => name(topic),
        Command::SweepRetained { topics, .. } => topics.iter().all(|topic| name(topic)),
        Command::PutUser(user) => name(&user.name) && text(&user.tenant),
        Command::RemoveUser { name: user } => name(user),
        Command::PutRule(rule) => name(&rule.filter),
        Command::PutTenant(tenant) => text(&tenant.name),
        Command::RemoveTenant { name } => text(name),
        Command::AssignSlots { slots, .. } => slots.first <= slots.last && slots.last < SLOTS,
        Command::SetConfig { key, .. } => name(key),
        Command::RemoveRule { .. } | Command::PutNode(_) | Command::RemoveNode { .. } => true,
    }
}

fn a_name() -> impl Strategy<Value = String> {
    prop_oneof![
        60 => select(vec!["a", "ab", "b", "b/c"]),
        1 => select(vec!["", "a\0b"]),
    ]
    .prop_map(String::from)
}

fn a_client() -> impl Strategy<Value = ClientKey> {
    (select(vec!["", "t", "t\u{1}"]), a_name())
        .prop_map(|(tenant, client_id)| ClientKey { tenant: tenant.into(), client_id })
}

fn a_time() -> impl Strategy<Value = u64> {
    0_u64..6
}

fn a_message() -> impl Strategy<Value = StoredMessage> {
    (a_name(), vec(any::<u8>(), 0..4), of(a_time())).prop_map(|(topic, payload, expires_at_ms)| {
        StoredMessage { payload, expires_at_ms, ..samples::message(&topic) }
    })
}

fn a_command() -> impl Strategy<Value = Command> {
    let names = || vec(a_name(), 0..4);
    let whose = || (a_client(), 0_u64..60);
    let sessions = prop_oneof![
        3 => (a_client(), any::<bool>(), 0_u64..3, 0_u32..20, of(0_u32..3), a_time()).prop_map(
            |(client, clean_start, node, expiry_interval_s, delay, now_ms)| {
                let will = delay.map(samples::will);
                let open = OpenSession { clean_start, node, expiry_interval_s, will, now_ms,
                    client };
                Command::OpenSession(open)
            }
        ),
        2 => (whose(), of(a_time()), of(a_time())).prop_map(
            |((client, epoch), expires_at_ms, will_at_ms)| {
                let close = samples::close(&client, epoch);
                Command::CloseSession(CloseSession { expires_at_ms, will_at_ms, ..close })
            }
        ),
        1 => (whose(), 0_u64..3)
            .prop_map(|((client, epoch), node)| Command::EndSession { client, epoch, node }),
        1 => whose().prop_map(|(client, epoch)| Command::TakeWill { client, epoch }),
        3 => (whose(), names()).prop_map(|((client, epoch), names)| Command::Subscribe {
            client,
            epoch,
            subscriptions: names.iter().map(|name| samples::subscription(name)).collect(),
        }),
        2 => (whose(), names())
            .prop_map(|((client, epoch), filters)| Command::Unsubscribe { client, epoch, filters }),
    ];
    let slots = || prop_oneof![0_u16..12, SLOTS - 3..SLOTS + 1];
    let others = prop_oneof![
        4 => a_message().prop_map(Command::Retain),
        1 => a_name().prop_map(|topic| Command::Unretain { topic }),
        1 => (a_time(), names())
            .prop_map(|(now_ms, topics)| Command::SweepRetained { now_ms, topics }),
        1 => a_name().prop_map(|name| Command::PutUser(UserRecord { name, ..samples::user() })),
        1 => a_name().prop_map(|name| Command::RemoveUser { name }),
        1 => (0_u32..4).prop_map(|id| Command::PutRule(samples::rule(id))),
        1 => (0_u32..4).prop_map(|id| Command::RemoveRule { id }),
        1 => (select(vec!["", "t", "\0"]), 0_u64..4).prop_map(|(name, max_sessions)| {
            Command::PutTenant(TenantRecord { name: name.into(), max_sessions })
        }),
        1 => select(vec!["", "t"]).prop_map(|name| Command::RemoveTenant { name: name.into() }),
        1 => (0_u64..4).prop_map(|id| Command::PutNode(samples::node(id))),
        1 => (0_u64..4).prop_map(|id| Command::RemoveNode { id }),
        4 => (slots(), slots(), 0_u64..3).prop_map(|(first, last, node)| {
            Command::AssignSlots { slots: Slots { first, last }, node }
        }),
        4 => (a_name(), of(prop_oneof![Just(0), 0_u64..60]), of(vec(any::<u8>(), 0..3)))
            .prop_map(|(key, expected, value)| Command::SetConfig { key, expected, value }),
    ];
    prop_oneof![sessions, others]
}

/// Entries of one or more commands; each with whether it knows the epoch, or version, in force.
fn entries() -> impl Strategy<Value = Vec<Vec<(Command, bool)>>> {
    vec(vec((a_command(), proptest::bool::weighted(0.85)), 1..4), 1..25)
}

/// Gives a command the epoch, or the version, that is in force.
fn know(model: &Model, command: &mut Command) {
    let in_force = |client: &ClientKey| model.sessions.get(client).map_or(0, |(s, _)| s.epoch);
    match command {
        Command::CloseSession(close) => close.epoch = in_force(&close.client),
        Command::EndSession { client, epoch, .. }
        | Command::TakeWill { client, epoch }
        | Command::Subscribe { client, epoch, .. }
        | Command::Unsubscribe { client, epoch, .. } => *epoch = in_force(client),
        Command::SetConfig { key, expected: Some(expected), .. } => {
            *expected = model.config.get(key).map_or(0, |record| record.version);
        }
        _ => {}
    }
}

fn answer(reply: Reply) -> Answer {
    match reply {
        Reply::Refused(Refusal::Invalid(_)) => Err(Refusal::Invalid(String::new())),
        Reply::Refused(Refusal::Limit(_)) => Err(Refusal::Limit(String::new())),
        Reply::Refused(refusal) => Err(refusal),
        reply => Ok(reply),
    }
}

/// What somebody knows who is told all effects.
#[derive(Default)]
struct Watcher {
    sessions: BTreeMap<ClientKey, (NodeId, u64)>,
    retained: BTreeMap<String, StoredMessage>,
    wills: Wills,
}

impl Watcher {
    fn hear(&mut self, effect: Effect) {
        match effect {
            Effect::Retained { message, .. } => {
                self.retained.insert(message.topic.clone(), message);
            }
            Effect::Unretained { topic, .. } => {
                assert!(self.retained.remove(&topic).is_some(), "{topic} was retained");
            }
            Effect::SessionOpened { client, node, epoch, .. } => {
                self.sessions.insert(client, (node, epoch));
            }
            Effect::SessionEnded { client, epoch } => {
                let known = self.sessions.remove(&client);
                assert_eq!(known.map(|(_, epoch)| epoch), Some(epoch), "what was opened ends");
            }
            Effect::WillDue { node, will, .. } => self.wills.push((node, will)),
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_state_machine_does_what_the_model_does(entries in entries()) {
        let (mut state, mut model) = (MapView::default(), Model::default());
        let (mut watcher, mut wills) = (Watcher::default(), Wills::new());
        for (index, entry) in (1..).zip(entries) {
            let mut commands = Vec::new();
            let mut answers = Vec::new();
            for (mut command, knows) in entry {
                if knows {
                    know(&model, &mut command);
                }
                answers.push(model.apply(index, &command, &mut wills));
                commands.push(command);
            }
            let (replies, effects) = state.entry(index, &commands);
            let replies: Vec<_> = replies.into_iter().map(answer).collect();
            prop_assert_eq!(replies, answers);
            let sound = check(&state);
            prop_assert!(sound.is_ok(), "{:?} after {:?}", sound, commands);
            effects.into_iter().for_each(|effect| watcher.hear(effect));
        }
        let stored = Model::of(&state);
        prop_assert_eq!(&stored, &Model { stamp: 0, ..model });
        prop_assert_eq!(watcher.wills, wills);
        prop_assert_eq!(watcher.retained, stored.retained);
        let open = |(client, (record, _)): (ClientKey, (SessionRecord, _))| {
            (client, (record.node, record.epoch))
        };
        let sessions: BTreeMap<_, _> = stored.sessions.into_iter().map(open).collect();
        prop_assert_eq!(watcher.sessions, sessions);
    }

    #[test]
    fn how_commands_are_gathered_makes_no_difference(
        entries in entries(), cuts in vec(any::<bool>(), 100),
    ) {
        let (mut model, mut wills) = (Model::default(), Wills::new());
        let mut commands = Vec::new();
        for (index, entry) in (1..).zip(entries) {
            for (mut command, knows) in entry {
                if knows {
                    know(&model, &mut command);
                }
                let _ = model.apply(index, &command, &mut wills);
                commands.push((index, command));
            }
        }
        let run = |ends: &dyn Fn(usize) -> bool| {
            let (mut state, mut effects, mut replies) = (MapView::default(), vec![], vec![]);
            let mut next = 0;
            while next < commands.len() {
                let mut tx = Tx::new(&state);
                loop {
                    let (index, command) = &commands[next];
                    replies.push(apply(&mut tx, *index, command, &mut effects).expect("applies"));
                    next += 1;
                    if next == commands.len() || ends(next) {
                        break;
                    }
                }
                let batch = tx.into_changes();
                state.write(batch);
            }
            (state, effects, replies)
        };
        let each = run(&|_| true);
        prop_assert_eq!(&run(&|_| false), &each);
        prop_assert_eq!(&run(&|next| cuts[next % cuts.len()]), &each);
    }
}
