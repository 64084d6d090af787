//! Nodes, and which slots they have.

use std::ops::ControlFlow;

use super::{Outcome, remove, valid};
use crate::command::Reply;
use crate::record::{NodeId, NodeRecord, SLOTS, SlotRun, Slots};
use crate::state::{Effect, Tx, keys, read};

pub(super) fn put_node(tx: &mut Tx<'_>, node: &NodeRecord, effects: &mut Vec<Effect>) -> Outcome {
    valid::text("the node's address", &node.cluster_address)?;
    tx.save(keys::node(node.id), node);
    effects.push(Effect::NodesChanged);
    Ok(Reply::Done)
}

/// Its slots stay with it until they are given to others: an order that is for the caller to choose.
pub(super) fn remove_node(tx: &mut Tx<'_>, id: NodeId, effects: &mut Vec<Effect>) -> Outcome {
    remove(tx, keys::node(id))?;
    effects.push(Effect::NodesChanged);
    Ok(Reply::Done)
}

pub(super) fn assign_slots(
    tx: &mut Tx<'_>,
    slots: Slots,
    node: NodeId,
    effects: &mut Vec<Effect>,
) -> Outcome {
    let Slots { first, last } = slots;
    if first > last || last >= SLOTS {
        valid::invalid(format!("there are no slots {first} to {last}"))?;
    }
    let mut touched = Vec::new();
    read::slots(tx, |run| {
        // Neighbours as well, for runs of one node are joined.
        if run.slots.last.saturating_add(1) >= first && run.slots.first <= last + 1 {
            touched.push(run);
        }
        if run.slots.first > last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    let mut new = SlotRun { slots, node };
    let mut kept = Vec::new();
    for run in &touched {
        if run.node == node {
            new.slots.first = new.slots.first.min(run.slots.first);
            new.slots.last = new.slots.last.max(run.slots.last);
            continue;
        }
        if run.slots.first < first {
            let last = run.slots.last.min(first - 1);
            kept.push(SlotRun { slots: Slots { last, ..run.slots }, ..*run });
        }
        if run.slots.last > last {
            let first = run.slots.first.max(last + 1);
            kept.push(SlotRun { slots: Slots { first, ..run.slots }, ..*run });
        }
    }
    if touched.contains(&new) {
        return Ok(Reply::Done);
    }
    for run in touched {
        tx.delete(keys::slot_run(run.slots.first));
    }
    for run in kept.into_iter().chain([new]) {
        tx.save(keys::slot_run(run.slots.first), &run);
    }
    effects.push(Effect::SlotsChanged);
    Ok(Reply::Done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Command, Refusal};
    use crate::state::samples;
    use crate::state::testing::MapView;

    fn assign(state: &mut MapView, first: u16, last: u16, node: NodeId) -> usize {
        let slots = Slots { first, last };
        let (reply, effects) = state.run(1, Command::AssignSlots { slots, node });
        assert_eq!(reply, Reply::Done);
        state.totals();
        effects.len()
    }

    fn runs(state: &MapView) -> Vec<(u16, u16, NodeId)> {
        let mut runs = Vec::new();
        read::slots(state, |run| {
            runs.push((run.slots.first, run.slots.last, run.node));
            ControlFlow::Continue(())
        })
        .expect("reads");
        runs
    }

    #[test]
    fn runs_are_split_and_joined() {
        let mut state = MapView::default();
        assert_eq!(assign(&mut state, 0, SLOTS - 1, 1), 1);
        assert_eq!(runs(&state), [(0, 4095, 1)]);
        assert_eq!(assign(&mut state, 10, 20, 1), 0);
        assert_eq!(assign(&mut state, 10, 20, 2), 1);
        assert_eq!(runs(&state), [(0, 9, 1), (10, 20, 2), (21, 4095, 1)]);
        assign(&mut state, 21, 30, 2);
        assert_eq!(runs(&state), [(0, 9, 1), (10, 30, 2), (31, 4095, 1)]);
        assign(&mut state, 5, 15, 3);
        assert_eq!(runs(&state), [(0, 4, 1), (5, 15, 3), (16, 30, 2), (31, 4095, 1)]);
        assign(&mut state, 5, 30, 1);
        assert_eq!(runs(&state), [(0, 4095, 1)]);
        assign(&mut state, 4095, 4095, 2);
        assign(&mut state, 0, 0, 2);
        assert_eq!(runs(&state), [(0, 0, 2), (1, 4094, 1), (4095, 4095, 2)]);
    }

    #[test]
    fn gaps_stay_gaps() {
        let mut state = MapView::default();
        assign(&mut state, 10, 19, 1);
        assign(&mut state, 30, 39, 1);
        assert_eq!(runs(&state), [(10, 19, 1), (30, 39, 1)]);
        assign(&mut state, 15, 34, 2);
        assert_eq!(runs(&state), [(10, 14, 1), (15, 34, 2), (35, 39, 1)]);
        assign(&mut state, 20, 29, 1);
        assert_eq!(runs(&state), [(10, 14, 1), (15, 19, 2), (20, 29, 1), (30, 34, 2), (35, 39, 1)]);
    }

    #[test]
    fn slots_that_do_not_exist_are_refused() {
        let mut state = MapView::default();
        for slots in [Slots { first: 2, last: 1 }, Slots { first: 0, last: SLOTS }] {
            let reply = state.refuse(1, Command::AssignSlots { slots, node: 1 });
            assert!(matches!(reply, Reply::Refused(Refusal::Invalid(_))));
        }
    }

    #[test]
    fn nodes_come_and_go() {
        let mut state = MapView::default();
        let node = samples::node(300);
        let (reply, effects) = state.run(1, Command::PutNode(node.clone()));
        assert_eq!((reply, effects), (Reply::Done, vec![Effect::NodesChanged]));
        assert_eq!(read::node(&state, 300).expect("reads"), Some(node));
        let (reply, effects) = state.run(2, Command::RemoveNode { id: 300 });
        assert_eq!((reply, effects), (Reply::Done, vec![Effect::NodesChanged]));
        let reply = state.refuse(3, Command::RemoveNode { id: 300 });
        assert_eq!(reply, Reply::Refused(Refusal::NotFound));
    }
}
