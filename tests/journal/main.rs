//! The journal on the real runtimes, in every column that this build has, on disks that fail.
#![allow(missing_docs, reason = "a test program")]

mod broker;
mod checkpoint;
#[path = "../meta/column.rs"]
mod column;
mod damage;
mod faults;
mod hold;
mod log;
mod model;
mod power;
mod space;
mod start;
mod swap;
mod tools;
