//! Where a session's state is recorded, and what it has come to since.

/// Where the record of something lies. Ordered: nothing recorded comes first, a record that is not
/// written yet last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(u64);

/// What became of a message that has a record, which is to be recorded as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing is owed for it any more.
    Done {
        /// Its number.
        seq: u64,
        /// Its record, which is of no use now.
        place: Place,
    },
    /// PUBREC came: only PUBREL is owed. The place of the new record is to be told with
    /// [`Outgoing::set_place`](super::Outgoing::set_place).
    Received {
        /// Its number.
        seq: u64,
        /// The message's record, which is of no use now.
        place: Place,
    },
}

impl Place {
    /// It has no record.
    pub const NONE: Self = Self(0);
    /// Its record is being gathered: it has no place yet.
    pub const PENDING: Self = Self(u64::MAX);

    /// A place in the log, which is neither 0 nor the greatest number.
    pub const fn at(position: u64) -> Self {
        Self(position)
    }

    /// The place in the log, if there is one by now.
    pub fn position(self) -> Option<u64> {
        (self != Self::NONE && self != Self::PENDING).then_some(self.0)
    }

    /// Whether there is a record, or one is being gathered.
    #[inline]
    pub fn is_recorded(self) -> bool {
        self != Self::NONE
    }
}

impl Progress {
    /// Tells that nothing is owed for a message any more, if it has a record.
    #[inline]
    pub(super) fn done(seq: u64, place: Place, progress: &mut Vec<Self>) {
        if place.is_recorded() {
            progress.push(Self::Done { seq, place });
        }
    }
}
