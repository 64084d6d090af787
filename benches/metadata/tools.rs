//! Measuring the program itself.

pub mod fill;
pub mod retain;
