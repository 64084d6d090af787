//! The behaviour suite on both drivers.

use rt_abstract::RunOptions;

rt_abstract::behaviour_suite!(rt_compio::Compio,
    io_uring => RunOptions { require_io_uring: true, ..RunOptions::default() },
    fallback => RunOptions { force_fallback: true, ..RunOptions::default() },
);
