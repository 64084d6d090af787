//! The behaviour suite: what every backend must do, as tests written once against [`Runtime`].
//!
//! A backend runs it from a file in its `tests/` folder, once per way of starting:
//!
//! ```ignore
//! use rt_abstract::RunOptions;
//!
//! rt_abstract::behaviour_suite!(rt_monoio::Monoio,
//!     io_uring => RunOptions { require_io_uring: true, ..RunOptions::default() },
//!     fallback => RunOptions { force_fallback: true, ..RunOptions::default() },
//! );
//! ```
//!
//! That makes one `#[test]` per case and group (`io_uring::ordered_over_tcp`, ...). A simulation, which
//! has no kernel and no threads, begins with `simulated` and gets the cases that need neither. Cases run one
//! at a time, because each also checks that it leaves no descriptor open and no task alive, and
//! each has a watchdog that ends the process with the case's name instead of hanging.
//!
//! Short pauses in the cases only make the interesting interleaving likely; every interleaving
//! has to pass.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::runtime::{RunOptions, Runtime};

#[doc(hidden)]
pub mod addresses;
#[doc(hidden)]
pub mod clock;
#[doc(hidden)]
pub mod cores;
#[doc(hidden)]
pub mod files;
#[doc(hidden)]
pub mod kills;
#[doc(hidden)]
pub mod streams;
#[doc(hidden)]
pub mod tasks;
mod tools;

/// One behaviour: its name, and the function that panics when a backend does not show it.
pub type Case = (&'static str, fn(&RunOptions));

/// Seconds after which a case counts as hanging.
pub const WATCHDOG_SECONDS: u64 = 60;

/// All cases for the backend `R`. Run each with [`run_case`].
pub fn cases<R: Runtime>() -> Vec<Case> {
    let mut cases = crate::suite_cases!(list R);
    cases.extend(crate::suite_kernel_cases!(list R));
    cases
}

/// Runs one case alone, under a watchdog, and checks that it left no descriptor open.
///
/// `options.cores` is chosen by the case.
pub fn run_case<R: Runtime>(name: &'static str, options: &RunOptions, case: fn(&RunOptions)) {
    static ALONE: Mutex<()> = Mutex::new(());
    static WARM: Once = Once::new();
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (done, watched) = mpsc::channel::<()>();
    let watchdog = thread::spawn(move || {
        let limit = Duration::from_secs(WATCHDOG_SECONDS);
        if watched.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            eprintln!("case {name} hangs: no end after {WATCHDOG_SECONDS} s");
            std::process::abort();
        }
    });
    // What a backend opens once per process is not a leak.
    WARM.call_once(|| drop(R::run_cores(options, |_| async {})));
    let before = open_descriptors();
    case(options);
    let give_up = Instant::now() + Duration::from_secs(5);
    let mut after = open_descriptors();
    while after.len() > before.len() && Instant::now() < give_up {
        thread::sleep(Duration::from_millis(2)); // a pool's thread may be closing the last file
        after = open_descriptors();
    }
    drop(done);
    watchdog.join().expect("the watchdog does not panic");
    after.retain(|number, _| !before.contains_key(number));
    assert!(after.is_empty(), "case {name} left descriptors open: {after:?}");
}

/// Makes one `#[test]` per case for each named [`RunOptions`]; see [`mod@crate::suite`].
#[macro_export]
macro_rules! behaviour_suite {
    (simulated $runtime:ty, $($group:ident => $options:expr),+ $(,)?) => {
        $(
            mod $group {
                #[allow(unused_imports)]
                use super::*;
                $crate::suite_cases!(tests $runtime, $options);
            }
        )+
    };
    ($runtime:ty, $($group:ident => $options:expr),+ $(,)?) => {
        $(
            mod $group {
                #[allow(unused_imports)]
                use super::*;
                $crate::suite_cases!(tests $runtime, $options);
                $crate::suite_kernel_cases!(tests $runtime, $options);
            }
        )+
    };
}

/// The cases that look at what only a kernel has: descriptors, threads, sockets of the standard
/// library.
#[doc(hidden)]
#[macro_export]
macro_rules! suite_kernel_cases {
    ($shape:ident $($arguments:tt)*) => {
        $crate::suite_expand! {
            $shape [$($arguments)*]
            addresses: bind_busy, accept_names_the_peer, tcp_streams_have_nodelay;
            streams: small_socket_buffers;
            cores: results_come_in_core_order, signals_cross_threads;
            tasks: blocking_work_comes_back;
        }
    };
}

/// The list of all other cases, by room; hands it to [`suite_expand!`].
#[doc(hidden)]
#[macro_export]
macro_rules! suite_cases {
    ($shape:ident $($arguments:tt)*) => {
        $crate::suite_expand! {
            $shape [$($arguments)*]
            addresses: connect_refused, stale_unix_socket_is_replaced;
            streams: ordered_over_tcp, ordered_over_unix, both_directions_at_once,
                reads_append, many_pieces_at_once, half_close,
                dropping_the_write_half_sends_nothing, full_buffer_is_invalid_input,
                lazy_reads_hold_nothing_while_idle, lazy_reads_deliver_everything;
            kills: kill_ends_a_pending_read, kill_ends_a_pending_lazy_read,
                kill_ends_a_blocked_write, kill_is_idempotent, kill_hits_only_its_own_socket,
                interrupted_reads_lose_nothing, interrupted_lazy_reads_lose_nothing,
                listener_kill_ends_accept;
            cores: descriptors_move_between_cores, a_socket_is_busy_while_a_closer_lives,
                several_cores_accept, mailboxes_keep_order_across_cores,
                the_calling_thread_runs_what_cannot_move;
            tasks: a_panic_reaches_the_joiner_alone, a_panicking_main_is_an_error,
                dropped_handles_detach, yields_let_others_run, live_tasks_counts,
                unfinished_tasks_end_with_the_core;
            clock: sleeps_are_never_early, many_sleeps_end_in_order, intervals_skip_missed_ticks,
                dropped_sleeps_do_no_harm;
            files: written_bytes_come_back, many_pieces_reach_the_file, sizes_change,
                names_change, directories_are_listed, open_errors_say_what_is_wrong, files_pin_no_core;
        }
    };
}

/// Expands the list of cases into a vector or into test functions.
#[doc(hidden)]
#[macro_export]
macro_rules! suite_expand {
    (list [$runtime:ty] $($room:ident: $($case:ident),+;)+) => {
        vec![$($((stringify!($case), $crate::suite::$room::$case::<$runtime> as fn(&_)),)+)+]
    };
    (tests [$runtime:ty, $options:expr] $($room:ident: $($case:ident),+;)+) => {
        $($(
            #[test]
            fn $case() {
                let case = $crate::suite::$room::$case::<$runtime>;
                $crate::suite::run_case::<$runtime>(stringify!($case), &$options, case);
            }
        )+)+
    };
}

/// The process's descriptors and what they are open on.
fn open_descriptors() -> BTreeMap<u32, String> {
    let entries = std::fs::read_dir("/proc/self/fd").expect("Linux has /proc");
    entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let target = std::fs::read_link(&path).ok()?.to_string_lossy().into_owned();
            // The directory being listed is itself in the list.
            let listing = target.starts_with("/proc/");
            let number = path.file_name()?.to_str()?.parse().ok()?;
            (!listing).then_some((number, target))
        })
        .collect()
}
