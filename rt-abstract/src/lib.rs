//! What Gearbox asks of an async runtime, and nothing more.
//!
//! The broker is written once against [`Runtime`]: owned-buffer streams and files, tasks, time,
//! randomness, one executor per core, and bounded mailboxes between the cores. `rt-tokio`,
//! `rt-monoio` and `rt-compio` implement it; no other crate names a runtime.
//!
//! Three rules shape every signature here:
//!
//! * **Buffers are handed over**, because a completion-based kernel interface writes into them
//!   while the task sleeps. They come back with the result, also with an error ([`BufResult`]).
//! * **A submitted read is never dropped.** Deadlines end a read by [`Closer::kill`], which
//!   makes it return with its buffer.
//! * **Sendness is decided once.** With the feature `single-threaded`, [`MaybeSend`] is empty and
//!   [`Shared`] is `Rc<RefCell<_>>`; without it they are `Send` and `Arc<Mutex<_>>`. Only this
//!   crate owns the feature; backends ask it through [`if_single_threaded!`].

mod buf;
#[cfg(feature = "faults")]
pub mod faults;
mod fs;
mod io;
mod mailbox;
mod net;
mod notify;
pub mod os;
pub mod planted;
mod runtime;
mod send;
mod shared;
mod shutdown;
mod socket;
#[cfg(feature = "suite")]
pub mod suite;
mod time;

pub use buf::{IoBuf, IoBufMut, Piece, Slice};
pub use fs::{File, OpenOptions, write_all_at};
pub use io::{AsyncRead, AsyncWrite, BufResult, Closer};
pub use mailbox::{Full, Receiver, Sender, mailbox};
pub use net::{Address, Listener, Peer, Stream, bind, bound_address, remove_socket_file};
pub use notify::Notify;
pub use runtime::{Core, Pinning, Probe, RunOptions, Runtime, Scheduler, TaskPanicked};
pub use send::{MaybeSend, MaybeSync};
pub use shared::Shared;
pub use shutdown::Shutdown;
pub use socket::{Simulated, Socket};
pub use time::{Instant, Interval};
