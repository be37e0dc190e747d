//! Which driver calls fail.

use std::collections::BTreeMap;

use cuda_driver_sys::CUresult;

use crate::sync::{Mutex, lock};

/// The driver functions that allocate memory.
const ALLOCATIONS: [&str; 3] = ["cuMemAlloc_v2", "cuMemCreate", "cuMemHostAlloc"];

/// Which calls a [`DriverFault`] counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Calls {
    /// Those of one function, by its ABI name.
    Function(String),
    /// Those that allocate device or pinned host memory.
    Allocations,
    /// All.
    All,
}

/// One rule: from which call on, for how many calls, which result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverFault {
    calls: Calls,
    /// Counted from 1.
    first: u64,
    sticky: bool,
    /// If set, what is counted are bytes, and the allocation that would exceed this many fails.
    budget: Option<u64>,
    result: CUresult,
}

impl DriverFault {
    /// The `nth` of `calls`, counted from 1, returns `result`; the driver never sees it.
    pub fn nth(calls: Calls, nth: u64, result: CUresult) -> Self {
        Self { calls, first: nth.max(1), sticky: false, budget: None, result }
    }

    /// The same for every later one of these calls.
    #[must_use]
    pub fn and_after(mut self) -> Self {
        self.sticky = true;
        self
    }

    /// The device is lost at the `nth` call of any function: that one and all later ones return `result`.
    pub fn lost_device(nth: u64, result: CUresult) -> Self {
        Self::nth(Calls::All, nth, result).and_after()
    }

    /// Every allocation fails that would bring the bytes allocated so far above `bytes`. What is freed does not count.
    pub fn memory_budget(bytes: u64) -> Self {
        let budget = Some(bytes);
        Self { budget, ..Self::nth(Calls::Allocations, 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY) }
    }

    fn matches(&self, function: &str) -> bool {
        match &self.calls {
            Calls::Function(name) => name == function,
            Calls::Allocations => ALLOCATIONS.contains(&function),
            Calls::All => true,
        }
    }
}

/// Driver rules and what has been counted for them. Implements [`Hooks`](crate::gpu::Hooks).
#[derive(Debug, Default)]
pub struct DriverFaults {
    rules: Vec<DriverFault>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Calls counted so far, per rule.
    seen: Vec<u64>,
    allocated: u64,
    calls: BTreeMap<&'static str, u64>,
    injected: Vec<&'static str>,
}

impl DriverFaults {
    /// These rules; the first one that applies decides. With none it only counts.
    pub fn new(rules: impl IntoIterator<Item = DriverFault>) -> Self {
        Self { rules: rules.into_iter().collect(), state: Mutex::default() }
    }

    /// How often each function was called, failed calls included.
    pub fn calls(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.state).calls.clone()
    }

    /// The functions that were made to fail, in order.
    pub fn injected(&self) -> Vec<&'static str> {
        lock(&self.state).injected.clone()
    }

    /// What `function` returns instead of being called. `bytes` is what it would allocate.
    pub(crate) fn decide(&self, function: &'static str, bytes: Option<usize>) -> Option<CUresult> {
        let mut state = lock(&self.state);
        *state.calls.entry(function).or_default() += 1;
        state.seen.resize(self.rules.len(), 0);
        let wanted = state.allocated.saturating_add(bytes.unwrap_or(0) as u64);
        let mut answer = None;
        for (rule, seen) in self.rules.iter().zip(0..) {
            if !rule.matches(function) {
                continue;
            }
            let applies = match rule.budget {
                Some(budget) => bytes.is_some() && wanted > budget,
                None => {
                    state.seen[seen] += 1;
                    let count = state.seen[seen];
                    count == rule.first || (rule.sticky && count > rule.first)
                }
            };
            if applies {
                answer = answer.or(Some(rule.result));
            }
        }
        match answer {
            Some(_) => state.injected.push(function),
            None => state.allocated = wanted,
        }
        answer
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const OOM: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;

    #[test]
    fn the_nth_call_fails_and_no_other() {
        let rule = |calls| DriverFault::nth(calls, 2, OOM);
        let faults = DriverFaults::new([rule(Calls::Function("cuMemCreate".into()))]);
        let asked = ["cuMemCreate", "cuMemMap", "cuMemCreate", "cuMemCreate"];
        let answers = asked.map(|name| faults.decide(name, None).is_some());
        assert_eq!(answers, [false, false, true, false]);
        assert_eq!((faults.injected(), faults.calls()["cuMemCreate"]), (vec!["cuMemCreate"], 3));
        let faults = DriverFaults::new([rule(Calls::All).and_after()]);
        assert_eq!(asked.map(|name| faults.decide(name, None).is_some()), [false, true, true, true]);
    }

    #[test]
    fn a_budget_counts_what_was_allocated() {
        let faults = DriverFaults::new([DriverFault::memory_budget(100)]);
        assert_eq!(faults.decide("cuMemAlloc_v2", Some(60)), None);
        assert_eq!(faults.decide("cuMemCreate", Some(41)), Some(OOM));
        assert_eq!(faults.decide("cuMemHostAlloc", Some(40)), None);
        assert_eq!(faults.decide("cuMemHostAlloc", Some(1)), Some(OOM));
        assert_eq!(faults.decide("cuMemFree_v2", None), None);
    }
}
