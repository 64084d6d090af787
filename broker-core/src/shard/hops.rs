//! Mail between shards that somebody waits for: counted where it is sent and where it is handled, and
//! confirmed when nothing is missing any more but a sync.

use std::collections::VecDeque;
use std::mem;

use smallvec::SmallVec;

use super::owed::{Hop, Wait};
use super::recording::Recording;
use crate::config::Level;
use crate::messages::MailKind;

/// Mail between this shard and another, by [`MailKind`].
#[derive(Debug, Default)]
pub(super) struct MailCounts {
    pub(super) sent: [u64; 2],
    pub(super) received: [u64; 2],
    pub(super) confirmed: [u64; 2],
    /// Mail of the first kind that was sent on, with what its confirmation waits for.
    pub(super) forwarded: VecDeque<(u64, SmallVec<[Hop; 2]>)>,
}

impl Recording {
    /// Mail with the message at hand goes to another shard: how it is counted, if somebody waits for
    /// what that one has to append.
    pub(super) fn count_sent(&mut self, shard: u8) -> Option<MailKind> {
        let kind = self.publish.tracked?;
        if self.publish.level == Level::None || !self.node.has_sessions(shard) {
            return None;
        }
        let number = &mut self.mail[usize::from(shard)].sent[kind as usize];
        *number += 1;
        self.publish.wait.hops.push(Hop { shard, kind, number: *number });
        Some(kind)
    }

    /// Counted mail of another shard was handled; what was sent on waits for `wait`.
    pub(super) fn count_received(&mut self, from: u8, kind: MailKind, wait: Wait) {
        let counts = &mut self.mail[usize::from(from)];
        let number = &mut counts.received[kind as usize];
        *number += 1;
        if !wait.hops.is_empty() {
            counts.forwarded.push_back((*number, wait.hops));
        }
        self.unconfirmed = true;
    }

    /// All mail that others have not confirmed.
    pub(super) fn hops_so_far(&self) -> SmallVec<[Hop; 2]> {
        let kinds = [MailKind::First, MailKind::Forwarded];
        let all = self.mail.iter().enumerate().flat_map(|(shard, counts)| {
            kinds.map(|kind| Hop { shard: shard as u8, kind, number: counts.sent[kind as usize] })
        });
        all.filter(|hop| !hop.is_confirmed(self.shard, &self.node)).collect()
    }

    /// Tells other shards how much of their mail needs nothing any more but a sync.
    pub(super) fn confirm_mail(&mut self) {
        for (from, counts) in self.mail.iter_mut().enumerate() {
            let first = counts.forwarded.front().map(|(number, _)| number - 1);
            let upto = [first.unwrap_or(counts.received[0]), counts.received[1]];
            for kind in [MailKind::First, MailKind::Forwarded] {
                let upto = upto[kind as usize];
                if upto > mem::replace(&mut counts.confirmed[kind as usize], upto) {
                    self.node.confirm(from as u8, self.shard, kind, upto);
                }
            }
        }
    }
}
