//! Bounded queues between cores, received in batches.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// The sending side; clone it for every sender.
#[derive(Debug)]
pub struct Sender<T, const LANES: usize = 1> {
    inner: Arc<Inner<T, LANES>>,
}

/// The receiving side.
#[derive(Debug)]
pub struct Receiver<T, const LANES: usize = 1> {
    inner: Arc<Inner<T, LANES>>,
}

/// The lane had no room, or the receiver is gone; gives the item back.
#[derive(Debug, PartialEq, Eq)]
pub enum Full<T> {
    /// No room now: wait with [`Sender::room`].
    Full(T),
    /// The receiver is gone for good.
    Closed(T),
}

/// A mailbox with `LANES` queues of `capacity[lane]` items each. Lower lanes are received first,
/// so that control is not stuck behind data. Within a lane the order of one sender is kept.
///
/// When a lane is full, [`Sender::try_send`] gives the item back; nothing is ever dropped.
///
/// # Panics
/// When a capacity is 0.
pub fn mailbox<T: Send, const LANES: usize>(
    capacity: [usize; LANES],
) -> (Sender<T, LANES>, Receiver<T, LANES>) {
    assert!(capacity.iter().all(|&items| items > 0), "a lane needs room for one item");
    let state = State {
        lanes: std::array::from_fn(|_| VecDeque::new()),
        waiting_senders: Vec::new(),
        waiting_receiver: None,
        senders: 1,
        receiver_alive: true,
    };
    let inner = Arc::new(Inner { capacity, state: Mutex::new(state) });
    (Sender { inner: inner.clone() }, Receiver { inner })
}

impl<T: Send, const LANES: usize> Sender<T, LANES> {
    /// Puts one item into `lane` without waiting.
    ///
    /// # Errors
    /// [`Full`] with the item.
    pub fn try_send(&self, lane: usize, item: T) -> Result<(), Full<T>> {
        let mut state = self.inner.lock();
        if !state.receiver_alive {
            return Err(Full::Closed(item));
        }
        if state.lanes[lane].len() >= self.inner.capacity[lane] {
            return Err(Full::Full(item));
        }
        state.lanes[lane].push_back(item);
        let waker = state.waiting_receiver.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Moves items from the front of `items` into `lane`, in order, as many as fit; returns how
    /// many moved. Items for a receiver that is gone are dropped and count as moved.
    pub fn try_send_batch(&self, lane: usize, items: &mut VecDeque<T>) -> usize {
        if items.is_empty() {
            return 0;
        }
        let mut state = self.inner.lock();
        if !state.receiver_alive {
            let count = items.len();
            items.clear();
            return count;
        }
        let room = self.inner.capacity[lane] - state.lanes[lane].len();
        let count = room.min(items.len());
        state.lanes[lane].extend(items.drain(..count));
        let waker = if count > 0 { state.waiting_receiver.take() } else { None };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        count
    }

    /// Waits until `lane` has room for at least one item, or the receiver is gone. Another sender
    /// may take the room first: try again in a loop.
    pub async fn room(&self, lane: usize) {
        poll_fn(|cx| {
            let mut state = self.inner.lock();
            if !state.receiver_alive || state.lanes[lane].len() < self.inner.capacity[lane] {
                return Poll::Ready(());
            }
            if !state.waiting_senders.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.waiting_senders.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}

impl<T: Send, const LANES: usize> Receiver<T, LANES> {
    /// Waits for items and moves up to `max` of them to the end of `batch`, lower lanes first.
    /// Returns how many; 0 only when all senders are gone and nothing is left. Dropping the
    /// future loses nothing.
    pub async fn receive(&mut self, batch: &mut Vec<T>, max: usize) -> usize {
        self.receive_from(LANES, batch, max).await
    }

    /// [`Receiver::receive`] from the first `lanes` lanes alone.
    pub async fn receive_from(&mut self, lanes: usize, batch: &mut Vec<T>, max: usize) -> usize {
        poll_fn(|cx| {
            let mut state = self.inner.lock();
            let moved = state.drain(lanes, batch, max);
            if moved == 0 && state.senders > 0 {
                state.waiting_receiver = Some(cx.waker().clone());
                return Poll::Pending;
            }
            let senders = std::mem::take(&mut state.waiting_senders);
            drop(state);
            senders.into_iter().for_each(Waker::wake);
            Poll::Ready(moved)
        })
        .await
    }
}

#[derive(Debug)]
struct Inner<T, const LANES: usize> {
    capacity: [usize; LANES],
    state: Mutex<State<T, LANES>>,
}

#[derive(Debug)]
struct State<T, const LANES: usize> {
    lanes: [VecDeque<T>; LANES],
    waiting_senders: Vec<Waker>,
    waiting_receiver: Option<Waker>,
    senders: usize,
    receiver_alive: bool,
}

impl<T, const LANES: usize> Inner<T, LANES> {
    fn lock(&self) -> MutexGuard<'_, State<T, LANES>> {
        // No code that can panic runs under the lock, so a poisoned one is still consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T, const LANES: usize> State<T, LANES> {
    fn drain(&mut self, lanes: usize, batch: &mut Vec<T>, max: usize) -> usize {
        let mut left = max;
        for lane in self.lanes.iter_mut().take(lanes) {
            let count = left.min(lane.len());
            batch.extend(lane.drain(..count));
            left -= count;
        }
        max - left
    }
}

impl<T, const LANES: usize> Clone for Sender<T, LANES> {
    fn clone(&self) -> Self {
        self.inner.lock().senders += 1;
        Self { inner: self.inner.clone() }
    }
}

impl<T, const LANES: usize> Drop for Sender<T, LANES> {
    fn drop(&mut self) {
        let mut state = self.inner.lock();
        state.senders -= 1;
        let waker = if state.senders == 0 { state.waiting_receiver.take() } else { None };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T, const LANES: usize> Drop for Receiver<T, LANES> {
    fn drop(&mut self) {
        let mut state = self.inner.lock();
        state.receiver_alive = false;
        let senders = std::mem::take(&mut state.waiting_senders);
        let items = std::mem::replace(&mut state.lanes, std::array::from_fn(|_| VecDeque::new()));
        drop(state);
        drop(items);
        senders.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn take(receiver: &mut Receiver<u32, 2>, max: usize) -> Option<Vec<u32>> {
        let mut batch = Vec::new();
        receiver.receive(&mut batch, max).now_or_never().map(|_| batch)
    }

    #[test]
    fn lower_lanes_come_first_and_order_is_kept() {
        let (sender, mut receiver) = mailbox([2, 2]);
        sender.try_send(1, 10).expect("room");
        sender.try_send(1, 11).expect("room");
        sender.try_send(0, 1).expect("room");
        assert_eq!(sender.try_send(1, 12), Err(Full::Full(12)));
        assert_eq!(take(&mut receiver, 2), Some(vec![1, 10]));
        assert_eq!(take(&mut receiver, 9), Some(vec![11]));
        assert_eq!(take(&mut receiver, 9), None);
        drop(sender);
        assert_eq!(take(&mut receiver, 9), Some(vec![]));
    }

    #[test]
    fn a_lane_can_be_received_alone() {
        let (sender, mut receiver) = mailbox([2, 2]);
        sender.try_send(1, 10).expect("room");
        let mut batch = Vec::new();
        assert_eq!(receiver.receive_from(1, &mut batch, 9).now_or_never(), None);
        sender.try_send(0, 1).expect("room");
        assert_eq!(receiver.receive_from(1, &mut batch, 9).now_or_never(), Some(1));
        assert_eq!(batch, [1]);
        assert_eq!(take(&mut receiver, 9), Some(vec![10]));
    }

    #[test]
    fn a_batch_moves_what_fits() {
        let (sender, mut receiver) = mailbox([1, 2]);
        let mut items: VecDeque<u32> = [1, 2, 3].into();
        assert_eq!(sender.try_send_batch(1, &mut items), 2);
        assert_eq!(items, [3]);
        assert!(sender.room(1).now_or_never().is_none());
        assert_eq!(take(&mut receiver, 1), Some(vec![1]));
        assert!(sender.room(1).now_or_never().is_some());
        drop(receiver);
        assert_eq!(sender.try_send(0, 9), Err(Full::Closed(9)));
        assert_eq!(sender.try_send_batch(1, &mut items), 1);
        assert!(items.is_empty());
    }
}
