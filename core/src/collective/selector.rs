//! Which calls a plan of the user's own is for.

use std::fmt;
use std::ops::RangeInclusive;

use crate::comm::Communicator;
use crate::plan::{Element, Reduction};

/// The calls that a plan is for: by size, and if it says so by shape of the job, element type and reduction. A range of sizes is one, too.
///
/// It looks at nothing but what all ranks agree on, so that all take the same plan.
///
/// ```
/// use aqueduct::collective::PlanSelector;
/// use aqueduct::plan::{Element, Reduction};
///
/// let selector = PlanSelector::sizes(1 << 10..=1 << 16)
///     .with_ranks(2..=8)
///     .with_ranks_per_host(8)
///     .with_elements([Element::F16, Element::Bf16])
///     .with_reductions([Reduction::Sum]);
/// assert_eq!(selector.to_string(), "1024 to 65536 bytes, 2 to 8 ranks, 8 on each host, f16 bf16, sum");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanSelector {
    pub(super) bytes: RangeInclusive<u64>,
    ranks: Option<RangeInclusive<u32>>,
    ranks_per_host: Option<u32>,
    pub(super) elements: Option<Vec<Element>>,
    pub(super) reductions: Option<Vec<Reduction>>,
}

impl PlanSelector {
    /// Calls of these sizes, in bytes of the larger of a rank's two buffers.
    pub fn sizes(bytes: RangeInclusive<u64>) -> Self {
        Self { bytes, ranks: None, ranks_per_host: None, elements: None, reductions: None }
    }

    /// The same in communicators of so many ranks. In others the plan is passed over; without this, a plan for another number of ranks is an
    /// error.
    #[must_use]
    pub fn with_ranks(mut self, ranks: RangeInclusive<u32>) -> Self {
        self.ranks = Some(ranks);
        self
    }

    /// The same where every host has so many of the ranks.
    #[must_use]
    pub fn with_ranks_per_host(mut self, ranks: u32) -> Self {
        self.ranks_per_host = Some(ranks);
        self
    }

    /// The same for these element types.
    #[must_use]
    pub fn with_elements(mut self, elements: impl IntoIterator<Item = Element>) -> Self {
        self.elements = Some(elements.into_iter().collect());
        self
    }

    /// The same for these reductions. A collective that only moves data has none.
    #[must_use]
    pub fn with_reductions(mut self, reductions: impl IntoIterator<Item = Reduction>) -> Self {
        self.reductions = Some(reductions.into_iter().collect());
        self
    }

    /// Whether the plan is for these ranks on these hosts.
    pub(super) fn is_for(&self, comm: &Communicator) -> bool {
        let peers = comm.peers();
        let on_host = |rank: usize| peers.iter().filter(|other| other.same_host(&peers[rank])).count();
        self.ranks.as_ref().is_none_or(|ranks| ranks.contains(&comm.size()))
            && self
                .ranks_per_host
                .is_none_or(|wanted| (0..peers.len()).all(|rank| on_host(rank) == wanted as usize))
    }

    /// Whether the plan is for calls of this type and reduction, if they have one.
    pub(super) fn takes(&self, element: Element, reduction: Option<Reduction>) -> bool {
        self.elements.as_ref().is_none_or(|elements| elements.contains(&element))
            && self.reductions.as_ref().zip(reduction).is_none_or(|(all, one)| all.contains(&one))
    }
}

impl From<RangeInclusive<u64>> for PlanSelector {
    fn from(bytes: RangeInclusive<u64>) -> Self {
        Self::sizes(bytes)
    }
}

impl fmt::Display for PlanSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {} bytes", self.bytes.start(), self.bytes.end())?;
        if let Some(ranks) = &self.ranks {
            write!(f, ", {} to {} ranks", ranks.start(), ranks.end())?;
        }
        self.ranks_per_host.map_or(Ok(()), |ranks| write!(f, ", {ranks} on each host"))?;
        let names = |names: Vec<&str>| format!(", {}", names.join(" "));
        if let Some(elements) = &self.elements {
            f.write_str(&names(elements.iter().map(|element| element.name()).collect()))?;
        }
        match &self.reductions {
            Some(reductions) => f.write_str(&names(reductions.iter().map(|op| op.name()).collect())),
            None => Ok(()),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::*;
    use crate::Deadline;
    use crate::bootstrap::{self, Bootstrap as _};
    use crate::comm::CommunicatorConfig;
    use crate::gpu::{Context, Device, Driver};

    /// Otherwise only some ranks would take the plan.
    #[test]
    fn every_host_has_as_many_ranks_or_none_takes_the_plan() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let soon = || Deadline::after(Duration::from_secs(60));
        for (hosts, wanted, fits) in [
            (["a", "a", "b"], 2, false),
            (["a", "b", "c"], 2, false),
            (["a", "b", "c"], 1, true),
            (["a"; 3], 3, true),
        ] {
            let selector = PlanSelector::sizes(0..=8).with_ranks_per_host(wanted);
            std::thread::scope(|scope| {
                for bootstrap in bootstrap::local(3) {
                    let (driver, selector) = (driver.clone(), &selector);
                    scope.spawn(move || {
                        let rank = bootstrap.rank();
                        let context = Context::new(&Device::new(&driver, rank).unwrap()).unwrap();
                        let config = CommunicatorConfig::default()
                            .with_local_address(Ipv4Addr::LOCALHOST.into())
                            .with_host_id(hosts[rank as usize]);
                        let comm = Communicator::new(&bootstrap, &context, config, soon()).unwrap();
                        assert_eq!(selector.is_for(&comm), fits, "rank {rank} of {hosts:?}, {wanted} wanted");
                        bootstrap.barrier(soon()).unwrap();
                    });
                }
            });
        }
    }
}
