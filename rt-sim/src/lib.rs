//! A deterministic backend: network, disk, time and randomness from a seed.
//!
//! This room is empty. It will hold a fourth implementation of `rt_abstract::Runtime` that has
//! no threads, no kernel and no clock of its own, so that any history of the broker can be
//! replayed from its seed.
