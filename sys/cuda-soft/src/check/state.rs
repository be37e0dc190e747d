//! The detector's state for a process.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::chance::Chance;
use super::clock::Clock;
use super::shadow::{Object, Shadow};
use super::sources::{Source, Sources};
use super::stamp::WorkId;
use super::sync::Published;

/// The detector of a process.
#[derive(Debug, Default)]
pub(crate) struct Checker {
    state: Mutex<State>,
    chance: Option<Arc<Chance>>,
}

/// All that the detector knows. Locked during each instruction, so that values and their history agree.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(super) shadow: Shadow,
    pub(super) sources: Sources,
    /// Events before the host's next call.
    pub(super) host: Arc<Clock>,
    /// Events that fences of sequential consistency have published so far.
    pub(super) ordered: Published,
    /// With it, loads may be weak.
    pub(super) chance: Option<Arc<Chance>>,
    /// The last work of each chain.
    chains: HashMap<u32, u32>,
    pub(super) races: Vec<String>,
    /// The races, and the accesses that could not be followed.
    pub(super) failures: usize,
}

impl Checker {
    /// A detector that takes at most about `limit` bytes for what it knows of memory; with `chance`, loads are weak.
    pub(crate) fn new(chance: Option<Arc<Chance>>, limit: u64) -> Self {
        let state = State { chance: chance.clone(), shadow: Shadow::new(limit), ..State::default() };
        Self { state: Mutex::new(state), chance }
    }

    pub(crate) fn chance(&self) -> Option<&Chance> {
        self.chance.as_deref()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The races found so far, as they were printed.
    pub(crate) fn races(&self) -> Vec<String> {
        self.lock().races.clone()
    }

    /// Forgets `len` bytes of an object, because that memory is gone.
    pub(crate) fn forget(&self, object: Object, from: u64, len: u64) {
        self.lock().shadow.forget(object, from, len);
    }

    /// Forgets the shared memory of a grid's blocks, because they have ended.
    pub(crate) fn forget_grid(&self, grid: u64) {
        self.lock().shadow.forget_grid(grid);
    }
}

impl State {
    /// The bytes that the detector may take for what it knows of memory.
    pub(crate) fn limit(&self) -> u64 {
        self.shadow.limit()
    }

    /// The number of an instruction or call.
    pub(crate) fn source(&mut self, key: (u64, u32, u32), make: impl FnOnce() -> Source) -> u32 {
        self.sources.number(key, make)
    }

    /// Continues the chain of one of `before`, or begins one.
    pub(super) fn next(&mut self, before: impl Iterator<Item = WorkId>) -> WorkId {
        for WorkId { chain, seq } in before {
            if self.chains.get(&chain) == Some(&seq) {
                self.chains.insert(chain, seq + 1);
                return WorkId { chain, seq: seq + 1 };
            }
        }
        let chain = self.chains.len() as u32;
        self.chains.insert(chain, 1);
        WorkId { chain, seq: 1 }
    }
}
