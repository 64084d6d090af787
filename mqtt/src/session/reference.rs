//! A message that lies in the journal alone, and what memory keeps of it.

use std::sync::Arc;

use smallvec::SmallVec;

use super::message::Message;
use super::outgoing::{Delivery, Queued};
use super::place::Place;
use crate::wire::QoS;

/// Where a message is, and what has to be known before it is read back. Small, because there may be
/// millions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Its number.
    pub seq: u64,
    /// Its record, which can be read.
    pub place: Place,
    /// Only where there are any.
    more: Option<Box<More>>,
    size_bytes: u32,
    qos: QoS,
    retain: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct More {
    subscription_ids: SmallVec<[u32; 2]>,
    share: Option<Arc<str>>,
}

/// A message that is owed to a client.
#[derive(Clone, Debug)]
pub enum Owed {
    /// In memory.
    Here(Queued),
    /// In the journal.
    Stored(Reference),
}

impl Reference {
    /// To a message of `message_bytes` by [`Message::size_bytes`], whose record is at `place`.
    pub fn new(delivery: Delivery, message_bytes: usize, seq: u64, place: Place) -> Self {
        let Delivery { qos, retain, subscription_ids, share } = delivery;
        let size = Queued::size_of(subscription_ids.len(), message_bytes);
        let has_more = !subscription_ids.is_empty() || share.is_some();
        Self {
            seq,
            place,
            more: has_more.then(|| Box::new(More { subscription_ids, share })),
            // A message is a packet, which is shorter.
            size_bytes: u32::try_from(size).unwrap_or(u32::MAX),
            qos,
            retain,
        }
    }

    /// Lets go of a message that can be read back.
    pub fn to(queued: Queued) -> Self {
        let Queued { message, delivery, seq, place } = queued;
        Self::new(delivery, message.size_bytes(), seq, place)
    }

    /// The message is back.
    pub fn load(self, message: Arc<Message>) -> Queued {
        let (subscription_ids, share) = match self.more {
            Some(more) => (more.subscription_ids, more.share),
            None => Default::default(),
        };
        let delivery = Delivery { qos: self.qos, retain: self.retain, subscription_ids, share };
        Queued { message, delivery, seq: self.seq, place: self.place }
    }

    /// How the message is to be delivered.
    pub(super) fn delivery(&self) -> Delivery {
        let (subscription_ids, share) = match &self.more {
            Some(more) => (more.subscription_ids.clone(), more.share.clone()),
            None => Default::default(),
        };
        Delivery { qos: self.qos, retain: self.retain, subscription_ids, share }
    }

    /// By [`Queued::size_bytes`].
    #[inline]
    pub fn size_bytes(&self) -> usize {
        self.size_bytes as usize
    }

    /// Of the message, as [`Reference::new`] was told.
    pub fn message_bytes(&self) -> usize {
        self.size_bytes() - Queued::size_of(self.subscription_ids().len(), 0)
    }

    /// QoS of the delivery.
    #[inline]
    pub fn qos(&self) -> QoS {
        self.qos
    }

    /// Retain flag of the delivery.
    pub fn retain(&self) -> bool {
        self.retain
    }

    /// Identifiers of all subscriptions that matched.
    pub fn subscription_ids(&self) -> &[u32] {
        self.more.as_ref().map_or(&[], |more| &more.subscription_ids)
    }

    /// The shared subscription that chose this session.
    pub fn share(&self) -> Option<&str> {
        self.more.as_ref()?.share.as_deref()
    }
}

impl Owed {
    /// Its number.
    pub fn seq(&self) -> u64 {
        match self {
            Self::Here(queued) => queued.seq,
            Self::Stored(reference) => reference.seq,
        }
    }

    /// Its record.
    pub fn place(&self) -> Place {
        match self {
            Self::Here(queued) => queued.place,
            Self::Stored(reference) => reference.place,
        }
    }

    /// QoS of the delivery.
    #[inline]
    pub fn qos(&self) -> QoS {
        match self {
            Self::Here(queued) => queued.delivery.qos,
            Self::Stored(reference) => reference.qos,
        }
    }

    /// The shared subscription that chose this session.
    pub fn share(&self) -> Option<&str> {
        match self {
            Self::Here(queued) => queued.delivery.share.as_deref(),
            Self::Stored(reference) => reference.share(),
        }
    }

    /// By [`Queued::size_bytes`].
    #[inline]
    pub fn size_bytes(&self) -> usize {
        match self {
            Self::Here(queued) => queued.size_bytes(),
            Self::Stored(reference) => reference.size_bytes(),
        }
    }

    pub(super) fn delivery(&self) -> Delivery {
        match self {
            Self::Here(queued) => queued.delivery.clone(),
            Self::Stored(reference) => reference.delivery(),
        }
    }

    pub(super) fn set_place(&mut self, place: Place) {
        match self {
            Self::Here(queued) => queued.place = place,
            Self::Stored(reference) => reference.place = place,
        }
    }

    pub(super) fn here(&self) -> Option<&Queued> {
        match self {
            Self::Here(queued) => Some(queued),
            Self::Stored(_) => None,
        }
    }

    pub(super) fn stored(&self) -> Option<&Reference> {
        match self {
            Self::Here(_) => None,
            Self::Stored(reference) => Some(reference),
        }
    }

    pub(super) fn is_stored(&self) -> bool {
        matches!(self, Self::Stored(_))
    }

    /// The message is in memory from now on; a reference of one that is stays.
    pub(super) fn load(self, message: Arc<Message>) -> Self {
        match self {
            Self::Stored(reference) => Self::Here(reference.load(message)),
            here => here,
        }
    }

    /// The message is in the journal alone from now on, if it is there.
    pub(super) fn spill(self) -> Self {
        match self {
            Self::Here(queued) if queued.place.position().is_some() => {
                Self::Stored(Reference::to(queued))
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::Draft;
    use super::*;

    #[test]
    fn a_reference_is_small_and_loses_nothing() {
        assert_eq!(size_of::<Reference>(), 32);
        let message = Arc::new(Message::keep(&Draft {
            topic: "t",
            payload: b"hi",
            owner: None,
            properties: &[],
            qos: QoS::ExactlyOnce,
            retain: false,
            expires_at_ms: None,
            origin: 0,
        }));
        for (ids, share) in [(&[][..], None), (&[1, 2, 3][..], Some("$share/g/t"))] {
            let delivery = Delivery {
                qos: QoS::ExactlyOnce,
                retain: true,
                subscription_ids: SmallVec::from_slice(ids),
                share: share.map(Arc::from),
            };
            let place = Place::at(4096);
            let queued = Queued { seq: 7, place, ..Queued::new(message.clone(), delivery.clone()) };
            let size = queued.size_bytes();
            let reference = Reference::to(queued);
            assert_eq!(reference.size_bytes(), size);
            let delivery_again = Delivery {
                qos: reference.qos(),
                retain: reference.retain(),
                subscription_ids: SmallVec::from_slice(reference.subscription_ids()),
                share: reference.share().map(Arc::from),
            };
            let again = Reference::new(delivery_again, reference.message_bytes(), 7, place);
            assert_eq!(again, reference);
            assert_eq!((reference.qos(), reference.share()), (QoS::ExactlyOnce, share));
            let back = reference.load(message.clone());
            assert_eq!((back.delivery, back.seq, back.place), (delivery, 7, place));
        }
    }
}
