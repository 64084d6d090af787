//! The segmented append-only log on `rt_abstract` files.
//!
//! This room is empty. It will hold record format, segments, the group-committing writer and
//! recovery; until then sessions and queues live in memory and do not survive a restart.
