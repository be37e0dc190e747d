//! Lets ranks of one process recognise each other's memory.
//!
//! A rank names an allocation by (process number, allocation number). Ranks of one process look the number up here and
//! share the allocation itself; nobody ever uses an address that came from another rank.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock, Weak};

use super::allocation::Allocation;
use crate::error::Result;
use crate::fork::Creator;
use crate::sync::{Mutex, lock};

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Registry {
    /// Process id and its random number: a forked child gets a number of its own.
    process: Option<(u32, u64)>,
    last: u64,
    by_number: HashMap<u64, Weak<Allocation>>,
    /// The ranks whose communicators this process has made, by scope of the group and rank.
    members: HashSet<(u64, u32)>,
}

/// A rank whose communicator this process has made, until this is dropped.
#[derive(Debug)]
pub(super) struct Member {
    scope: u64,
    rank: u32,
    creator: Creator,
}

/// Writes down that `rank` of the group with this scope is a rank of this process.
pub(super) fn join(scope: u64, rank: u32) -> Member {
    lock(&REGISTRY).members.insert((scope, rank));
    Member { scope, rank, creator: Creator::current() }
}

/// Whether `rank` of the group with this scope is a rank of this process. Nothing that the rank says can make it one.
pub(super) fn is_member(scope: u64, rank: u32) -> bool {
    lock(&REGISTRY).members.contains(&(scope, rank))
}

impl Drop for Member {
    fn drop(&mut self) {
        // In a forked child, the lock may have been held by a thread that the child does not have.
        if !self.creator.forked() {
            lock(&REGISTRY).members.remove(&(self.scope, self.rank));
        }
    }
}

/// A random number that other processes do not have.
pub(crate) fn process_number() -> Result<u64> {
    let mut registry = lock(&REGISTRY);
    let pid = std::process::id();
    match registry.process {
        Some((of, number)) if of == pid => Ok(number),
        _ => {
            let number = u64::from_le_bytes(crate::net::random_bytes()?);
            registry.process = Some((pid, number));
            Ok(number)
        }
    }
}

/// The allocation for which `same` holds, or a new one that `make` makes from its number.
pub(crate) fn find_or_insert(
    same: impl Fn(&Allocation) -> bool,
    make: impl FnOnce(u64) -> Allocation,
) -> Arc<Allocation> {
    // Dropped after the lock is released: the last holder of an allocation may be one that is only looked at here.
    let mut looked_at = Vec::new();
    let mut registry = lock(&REGISTRY);
    registry.by_number.retain(|_, known| known.strong_count() > 0);
    for known in registry.by_number.values().filter_map(Weak::upgrade) {
        if same(&known) {
            drop(registry);
            return known;
        }
        looked_at.push(known);
    }
    registry.last += 1;
    let number = registry.last;
    let made = Arc::new(make(number));
    registry.by_number.insert(number, Arc::downgrade(&made));
    drop(registry);
    made
}

/// The allocation of this process with this number, if it still exists.
pub(crate) fn find(number: u64) -> Option<Arc<Allocation>> {
    lock(&REGISTRY).by_number.get(&number).and_then(Weak::upgrade)
}

/// Keeps other threads out until the result is dropped, so that the lock is this thread's across a fork.
#[cfg(test)]
pub(super) fn hold() -> impl Sized {
    lock(&REGISTRY)
}

/// Whether there is an entry of that number, alive or not.
#[cfg(test)]
pub(super) fn is_known(number: u64) -> bool {
    lock(&REGISTRY).by_number.contains_key(&number)
}
