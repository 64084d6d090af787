//! The behaviour suite on both drivers.

use rt_abstract::RunOptions;

rt_abstract::behaviour_suite!(rt_monoio::Monoio,
    io_uring => RunOptions { require_io_uring: true, ..RunOptions::default() },
    fallback => RunOptions { force_fallback: true, ..RunOptions::default() },
);
