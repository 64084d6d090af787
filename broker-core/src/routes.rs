//! The node's routes: which shards want a topic. See `mqtt::routing` for how they are kept.

pub use mqtt::routing::SharedRoutes;
