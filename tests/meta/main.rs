//! The metadata on the real runtimes, in every column that this build has.
#![allow(missing_docs, reason = "a test program")]

mod column;
mod faults;
mod link;
mod runtime;
mod store;
