//! Rules for driver calls that fail.

use std::collections::BTreeMap;

use cuda_driver_sys::CUresult;

use crate::sync::{Mutex, lock};

/// The driver functions that allocate memory.
const ALLOCATIONS: [&str; 3] = ["cuMemAlloc_v2", "cuMemCreate", "cuMemHostAlloc"];

/// The calls that a [`DriverFault`] counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Calls {
    /// Calls of one function, by its ABI name.
    Function(String),
    /// Calls that allocate device or pinned host memory.
    Allocations,
    /// Calls of any function.
    All,
}

/// One rule: which call fails, whether later ones do too, and with which result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverFault {
    calls: Calls,
    /// Number of the first call that fails, counted from 1.
    first: u64,
    sticky: bool,
    /// If set, the rule counts allocated bytes instead of calls and fails an allocation that would exceed this number.
    budget: Option<u64>,
    result: CUresult,
}

impl DriverFault {
    /// The `nth` of `calls`, counted from 1, returns `result` without reaching the driver.
    pub fn nth(calls: Calls, nth: u64, result: CUresult) -> Self {
        Self { calls, first: nth.max(1), sticky: false, budget: None, result }
    }

    /// Extends the rule to all later ones of these calls.
    #[must_use]
    pub fn and_after(mut self) -> Self {
        self.sticky = true;
        self
    }

    /// A device lost at the `nth` call of any function: that call and all later ones return `result`.
    pub fn lost_device(nth: u64, result: CUresult) -> Self {
        Self::nth(Calls::All, nth, result).and_after()
    }

    /// Fails every allocation that would bring the sum of all allocations so far above `bytes`. Frees are not
    /// subtracted.
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

/// Driver rules and their counters. Implements the hooks of [`Driver::with_hooks`](crate::gpu::Driver::with_hooks).
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
    /// Uses `rules`; of several that apply to a call, the first decides the result. Without rules, calls are only
    /// counted.
    pub fn new(rules: impl IntoIterator<Item = DriverFault>) -> Self {
        Self { rules: rules.into_iter().collect(), state: Mutex::default() }
    }

    /// Number of calls of each function, including those made to fail.
    pub fn calls(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.state).calls.clone()
    }

    /// Names of the functions that were made to fail, in order.
    pub fn injected(&self) -> Vec<&'static str> {
        lock(&self.state).injected.clone()
    }

    /// Counts a call of `function` that allocates `bytes`. Returns the result to give instead of making the call, if
    /// any.
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
    fn only_the_nth_call_fails() {
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
    fn a_memory_budget_counts_successful_allocations() {
        let faults = DriverFaults::new([DriverFault::memory_budget(100)]);
        assert_eq!(faults.decide("cuMemAlloc_v2", Some(60)), None);
        assert_eq!(faults.decide("cuMemCreate", Some(41)), Some(OOM));
        assert_eq!(faults.decide("cuMemHostAlloc", Some(40)), None);
        assert_eq!(faults.decide("cuMemHostAlloc", Some(1)), Some(OOM));
        assert_eq!(faults.decide("cuMemFree_v2", None), None);
    }
}
