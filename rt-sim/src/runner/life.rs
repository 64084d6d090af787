//! One world from its beginning to its end: the plan, then a time without faults in which everybody gets
//! what they are owed, then everything is removed.

use std::collections::BTreeMap;
use std::time::Duration;

use mqtt::wire::{QoS, Version};
use rt_abstract::{Runtime, Shared};

use super::fate::Fate;
use super::{node, since_ms};
use crate::Sim;
use crate::client::{self, Machine, Phase, Place, Remote};
use crate::history::{ClientNumber, Content, What};
use crate::record::Record;
use crate::workload::{Act, ClientPlan, Fault, Life, Plan};

const LOOK: Duration = Duration::from_millis(100);
const COUNT: Duration = Duration::from_millis(500);
/// How long nodes may take to serve clients.
const READY_MS: u64 = 60_000;
/// Longer than anything takes that is to happen without faults.
const SETTLE: Duration = Duration::from_secs(40);
const SWEEP: Duration = Duration::from_secs(5);
/// How long clients may take to leave.
const LEAVE_MS: u64 = 60_000;
/// Longer than the delay of any will.
const REST: Duration = Duration::from_secs(15);
/// Numbers of what is published to clear retained messages.
const FIRST_CLEAR: u32 = 1_000_000;

/// Lives through a plan. Ends early when a promise is broken.
pub async fn live(plan: &Plan, record: Shared<Record>) {
    let place = Place {
        address: node::address(0),
        start: Sim::now(),
        record,
        phase: Shared::new(Phase::Plan),
    };
    let fate = Fate::start(plan, &place);
    if !until(&place, READY_MS, || fate.all_serve()).await {
        return stuck(&place, "no node ever served");
    }
    let begin_ms = since_ms(place.start);
    let clients = start_clients(plan, &place, begin_ms);
    let counting = count(fate.clone(), place.clone());
    drop(Sim::spawn(counting));
    for (at_ms, fault) in faults(plan) {
        if !sleep_until(&place, begin_ms + at_ms).await {
            return;
        }
        fate.begin(fault);
    }
    if !sleep_until(&place, begin_ms + plan.length_ms).await {
        return;
    }
    fate.heal();
    if !until(&place, READY_MS, || fate.all_serve()).await {
        return stuck(&place, "a node does not serve again");
    }
    client::see::<Sim>(&place, What::Healed);
    place.phase.with(|phase| *phase = Phase::Back);
    Sim::sleep(SETTLE).await;
    client::see::<Sim>(&place, What::Settled);
    sweep(plan, &place, &clients).await;
    place.phase.with(|phase| *phase = Phase::Last);
    let all_left = || clients.values().all(Remote::has_left);
    if !until(&place, LEAVE_MS, all_left).await {
        return stuck(&place, "a client cannot leave");
    }
    Sim::sleep(REST).await;
    client::see::<Sim>(&place, What::Emptied);
    fate.count();
    place.phase.with(|phase| *phase = Phase::End);
}

type Clients = BTreeMap<ClientNumber, Remote<Sim>>;

fn start_clients(plan: &Plan, place: &Place, begin_ms: u64) -> Clients {
    let sweeper = ClientPlan {
        name: "sweeper".into(),
        version: Version::V5,
        life: Life::Connection,
        keep_alive_s: 0,
        receive_maximum: u16::MAX,
        will: None,
    };
    let start = |(number, client): (ClientNumber, ClientPlan)| {
        let actions = plan.steps.iter().filter_map(|step| match &step.act {
            Act::Client(who, action) if *who == number => {
                Some((begin_ms + step.at_ms, step.number, action.clone()))
            }
            _ => None,
        });
        let machine = Machine::new(number, client, plan.setup.receive_maximum);
        (number, client::run::<Sim>(place, machine, actions.collect()))
    };
    let all = plan.clients.iter().cloned().chain([sweeper]);
    all.enumerate().map(start).collect()
}

fn faults(plan: &Plan) -> impl Iterator<Item = (u64, &Fault)> {
    plan.steps.iter().filter_map(|step| match &step.act {
        Act::Fault(fault) => Some((step.at_ms, fault)),
        Act::Client(..) => None,
    })
}

/// The last of the clients, which is in no plan, gets all retained messages and removes them.
async fn sweep(plan: &Plan, place: &Place, clients: &Clients) {
    let number = plan.clients.len();
    let Some(sweeper) = clients.get(&number) else { return };
    sweeper.subscribe("#", QoS::ExactlyOnce);
    Sim::sleep(SWEEP).await;
    client::see::<Sim>(place, What::Swept(number));
    let wills = (0..plan.clients.len()).map(|client| format!("w/{client}"));
    let topics = (0..3).map(|topic| format!("r/{topic}")).chain(wills);
    for (topic, number) in topics.zip(FIRST_CLEAR..) {
        let (qos, retain, empty) = (QoS::AtLeastOnce, true, true);
        sweeper.publish(number, Content { topic, qos, retain, empty, expiry_s: None }, 0);
    }
    Sim::sleep(SWEEP).await;
}

async fn count(fate: Fate, place: Place) {
    while place.phase.with(|phase| *phase != Phase::End) && !is_broken(&place) {
        Sim::sleep(COUNT).await;
        fate.count();
    }
}

/// False: a promise was broken.
async fn sleep_until(place: &Place, at_ms: u64) -> bool {
    while since_ms(place.start) < at_ms && !is_broken(place) {
        let left_ms = at_ms - since_ms(place.start);
        Sim::sleep(Duration::from_millis(left_ms.min(1_000))).await;
    }
    !is_broken(place)
}

/// Whether something comes to be so in time.
async fn until(place: &Place, within_ms: u64, so: impl Fn() -> bool) -> bool {
    let end_ms = since_ms(place.start) + within_ms;
    while !so() {
        if since_ms(place.start) >= end_ms || is_broken(place) {
            return false;
        }
        Sim::sleep(LOOK).await;
    }
    true
}

fn is_broken(place: &Place) -> bool {
    place.record.with(|record| record.violation().is_some())
}

fn stuck(place: &Place, text: &str) {
    client::see::<Sim>(place, What::Stuck(text.into()));
}
