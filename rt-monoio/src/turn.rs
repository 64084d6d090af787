//! One whole turn of the executor: the other ready tasks, the driver, timers, foreign wake-ups.
//!
//! In monoio a task that wakes itself runs again at once, before all others, and while any task
//! is ready neither timers nor wake-ups from other threads are looked at. Giving way must
//! therefore wait for something that only the driver can tell.
//!
//! On io_uring that is a poll operation on a socket that is always writable, which completes when
//! it is submitted. epoll reports such a socket once only; there a doorbell is rung, an eventfd
//! whose reader wakes all who wait for the turn.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::rc::Rc;
use std::task::{Poll, Waker};

use monoio::net::UnixStream;
use rustix::event::{EventfdFlags, eventfd};

thread_local! {
    static TURNER: RefCell<Option<Turner>> = const { RefCell::new(None) };
}

/// Sets [`turn`] up for this thread's runtime, until it is dropped.
pub(crate) struct TurnGuard;

#[derive(Clone)]
enum Turner {
    Ring(Rc<(UnixStream, UnixStream)>),
    Bell(Rc<Bell>),
}

struct Bell {
    eventfd: OwnedFd,
    turns: Cell<u64>,
    closed: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

impl TurnGuard {
    /// Must be called inside of the runtime.
    pub(crate) fn install(ring: bool) -> io::Result<Self> {
        let turner = if ring {
            Turner::Ring(Rc::new(UnixStream::pair()?))
        } else {
            let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            // monoio registers any descriptor in the shape of a Unix stream.
            let polled = UnixStream::from_std(StdUnixStream::from(eventfd.try_clone()?))?;
            let bell = Rc::new(Bell {
                eventfd,
                turns: Cell::new(0),
                closed: Cell::new(false),
                waiting: RefCell::default(),
            });
            monoio::spawn(answer(bell.clone(), polled));
            Turner::Bell(bell)
        };
        TURNER.set(Some(turner));
        Ok(Self)
    }

    /// Takes it down; inside of the runtime too.
    pub(crate) async fn remove(self) {
        if let Some(Turner::Bell(bell)) = TURNER.take() {
            bell.closed.set(true);
            bell.turn().await;
        }
    }
}

/// Lets everything else that is ready on this core run first.
pub(crate) async fn turn() {
    match TURNER.with_borrow(Clone::clone) {
        Some(Turner::Ring(pair)) => drop(pair.0.writable(true).await),
        Some(Turner::Bell(bell)) => bell.turn().await,
        None => {}
    }
}

impl Bell {
    async fn turn(&self) {
        let before = self.turns.get();
        let mut entered = false;
        poll_fn(|cx| {
            if self.turns.get() != before {
                return Poll::Ready(());
            }
            if !entered {
                entered = true;
                let mut waiting = self.waiting.borrow_mut();
                waiting.push(cx.waker().clone());
                // Only a counter that is full refuses, and then the reader is awake anyway.
                if waiting.len() == 1 {
                    let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
                }
            }
            Poll::Pending
        })
        .await;
    }
}

async fn answer(bell: Rc<Bell>, polled: UnixStream) {
    while !bell.closed.get() || !bell.waiting.borrow().is_empty() {
        if polled.readable(false).await.is_err() {
            break;
        }
        let _ = rustix::io::read(&bell.eventfd, &mut [0u8; 8]);
        bell.turns.set(bell.turns.get() + 1);
        let waiting = bell.waiting.take();
        waiting.into_iter().for_each(Waker::wake);
    }
}
