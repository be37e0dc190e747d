//! Random programs and damaged ones as kernels. `AQUEDUCT_TEST_PROGRAMS` says how many, `AQUEDUCT_TEST_SEED` from which on.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::super::super::check::{FindingKind, check};
use super::super::super::pass::tests::wrong;
use super::super::super::samples::elements;
use super::super::super::{Element, Plan, Protocol, Reduction, random};
use super::{ExecutorConfig, Rig, alone, ranks};
use crate::comm::Communicator;
use crate::error::{Error, ErrorKind};

const REDUCTIONS: [Reduction; 5] =
    [Reduction::Sum, Reduction::Min, Reduction::Max, Reduction::Prod, Reduction::Avg];

/// The seeds of a test: `usual` of them from 0 on, unless the environment says which.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name: &str| {
        std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap_or_else(|_| panic!("{name}={text}")))
    };
    let first = number("AQUEDUCT_TEST_SEED").unwrap_or(0);
    first..first.saturating_add(number("AQUEDUCT_TEST_PROGRAMS").unwrap_or(usual))
}

/// The sizes of the message that a plan takes, in elements: it divides where the collective must.
fn sizes(plan: &Plan, seed: u64) -> Vec<usize> {
    let chunks = plan.ranks.iter().map(|rank| rank.input_chunks).max().unwrap_or(1).max(1) as usize;
    let draw = |turn: u64| {
        let mixed = seed
            .wrapping_add(1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(u32::try_from(turn * 13).unwrap());
        usize::try_from(mixed % [5, 70, 300][usize::try_from(turn % 3).unwrap()]).unwrap()
    };
    // Up to three units of LL128 packets in a chunk.
    let lines = plan.settings.protocol == Protocol::Ll128;
    let draw = |turn: u64| draw(turn) * if lines { 3 } else { 1 };
    let freely = plan.collective.kind.divides_freely();
    (0..4).map(|turn| if freely { draw(turn) + 1 } else { chunks * (draw(turn) / chunks + 1) }).collect()
}

/// Communicators by their number of ranks.
#[derive(Default)]
struct Groups(BTreeMap<usize, Vec<Communicator>>);

impl Groups {
    /// Runs a plan that checks find right, and compares with the simulator. The seed chooses type and reduction.
    ///
    /// # Errors
    /// Of [`Executor::prepare`](super::Executor::prepare).
    fn run(&mut self, plan: &Plan, seed: u64) -> Result<(), Error> {
        let comms = self.0.entry(plan.ranks.len()).or_insert_with(|| ranks(plan.ranks.len()));
        let op = plan.reductions().next().map(|_| REDUCTIONS[usize::try_from(seed % 5).unwrap()]);
        let element = Element::ALL[usize::try_from(seed / 5 % Element::ALL.len() as u64).unwrap()];
        let sizes = sizes(plan, seed);
        let most = sizes.iter().copied().max().unwrap_or(0);
        let mut rig = Rig::of_variants(comms, plan, most, &[(element, op)], |_| ExecutorConfig::default())?;
        rig.data = elements::noise;
        sizes.iter().for_each(|&elements| rig.as_simulated(elements, op));
        Ok(())
    }
}

/// Says how to see a failure again.
fn again<T>(seed: u64, plan: &Plan, run: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        panic!("AQUEDUCT_TEST_SEED={seed} AQUEDUCT_TEST_PROGRAMS=1 shows it again: {plan:#?}")
    })
}

/// Random programs, as kernels, give what the simulator gives, which the tests of `random` compare with the definitions.
#[test]
fn random_programs_run_as_they_are_simulated() {
    let _alone = alone();
    let mut groups = Groups::default();
    for seed in seeds(60) {
        let plan = random::program(seed);
        again(seed, &plan, || groups.run(&plan, seed).unwrap());
    }
}

/// Damaged programs are refused with the place of the damage, or run as they are simulated.
#[test]
fn damaged_programs_are_refused_or_run_as_they_are_simulated() {
    let _alone = alone();
    let mut groups = Groups::default();
    let (mut ran, mut refused) = (0_u64, 0_u64);
    let seeds = seeds(200);
    for seed in seeds.clone() {
        let plan = random::mutant(&random::program(seed), seed);
        let findings = check(&plan);
        if let Some(finding) = findings.first() {
            let text = finding.to_string();
            // Counts of chunks that do not fit the collective are no operation's.
            let placed = finding.position.is_some() || finding.chunk.is_some() || text.contains("rank ");
            assert!(placed || finding.kind == FindingKind::Settings, "seed {seed}: {text} names no place");
            refused += 1;
            continue;
        }
        // Checks that overlook something would agree with themselves: the definition of the collective judges them.
        assert_eq!(wrong(&plan, 2), None, "AQUEDUCT_TEST_SEED={seed}: the checks find nothing in {plan:#?}");
        match again(seed, &plan, || groups.run(&plan, seed)) {
            Ok(()) => ran += 1,
            // Limits of kernels, each with its place.
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Plan, "{seed}: {error}");
                assert!(error.message().contains("rank "), "{seed}: {error} names no place");
                refused += 1;
            }
        }
    }
    println!("of {} damaged programs {refused} were refused and {ran} ran", seeds.end - seeds.start);
    assert!(seeds.end - seeds.start < 200 || ran > 10 && refused > 100, "{ran} ran, {refused} refused");
}
