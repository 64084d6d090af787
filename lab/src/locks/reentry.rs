//! Changing a registry while walking over it. With locks, whoever does it waits for itself and never
//! ends; so this runs in a process of its own, which somebody else ends after a bound.

use clap::ValueEnum;
use serde::Serialize;

use super::registry::{Entry, FlatLockFree, FlatLocked, Nested, Registry};

/// Enough that a new client falls into each part of a map that is being walked over.
const CLIENTS: u64 = 4_096;

/// Arguments of `reentry`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The map.
    #[arg(long, value_enum)]
    pub map: Map,
}

/// A shared map by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
pub enum Map {
    /// A map of maps.
    Nested,
    /// One map and an index, with locks.
    FlatLocked,
    /// The same without locks.
    FlatLockFree,
}

/// Ends at once, or never.
pub fn run(args: &Args) {
    match args.map {
        Map::Nested => walk_and_insert::<Nested>(),
        Map::FlatLocked => walk_and_insert::<FlatLocked>(),
        Map::FlatLockFree => walk_and_insert::<FlatLockFree>(),
    }
    println!("ended");
}

fn walk_and_insert<T: Registry>() {
    let registry = filled::<T>();
    let entry = Entry { core: 0, number: 0 };
    let mut inserted = 0;
    registry.each(0, |client| {
        // Behind it in the walk or before it: some clients are met as well. Bounded either way.
        if inserted < CLIENTS {
            let mut successor = *client;
            successor[15] ^= 1;
            registry.insert(0, successor, entry);
            inserted += 1;
        }
    });
}

fn filled<T: Registry>() -> T {
    let registry = T::default();
    for number in 0..CLIENTS {
        let mut client = [0; 16];
        client[..8].copy_from_slice(&number.to_le_bytes());
        registry.insert(0, client, Entry { core: 0, number });
    }
    registry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nested_map_makes_its_walker_wait_for_itself() {
        let registry = filled::<Nested>();
        let (mut steps, mut waits) = (0, 0);
        registry.each(0, |client| {
            steps += 1;
            waits += u64::from(registry.would_wait(0, *client));
        });
        assert_eq!((steps, waits), (CLIENTS, CLIENTS), "its own part is locked at every step");
        assert!(!registry.would_wait(0, [1; 16]), "and free afterwards");
    }

    #[test]
    fn without_locks_walking_and_inserting_ends() {
        walk_and_insert::<FlatLockFree>();
    }
}
