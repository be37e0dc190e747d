//! Random programs are right, and passes keep them so; damaged ones never make a pass panic or a right plan wrong.

use std::collections::BTreeSet;

use super::super::pass::tests::{syncs, without, wrong};
use super::super::pass::{Policy, Shapes};
use super::super::{Plan, check, pass};
use super::{bare_program, mutant, program};

/// How many programs: enough to see every feature often, or as many as `AQUEDUCT_TEST_PROGRAMS` says.
fn programs() -> u64 {
    std::env::var("AQUEDUCT_TEST_PROGRAMS").map_or(40, |programs| programs.parse().unwrap())
}

#[test]
fn programs_are_right() {
    let (mut kinds, mut operations) = (BTreeSet::new(), 0);
    for seed in 0..programs() {
        let plan = program(seed);
        assert_eq!(check::check(&plan), [], "seed {seed}: {plan:#?}");
        assert_eq!(wrong(&plan, 3), None, "seed {seed}");
        kinds.insert(plan.collective.kind.name().to_owned());
        operations += plan.operations();
    }
    assert_eq!(kinds.len(), 9, "{kinds:?}");
    assert!(operations > 20 * usize::try_from(programs()).unwrap(), "{operations}");
}

#[test]
fn sync_leaves_no_sync_out_and_none_too_many() {
    let (mut needed, mut harmless) = (0, 0);
    for seed in 0..programs() {
        let plan = pass::sync(&bare_program(seed)).unwrap();
        assert_eq!(pass::sync(&plan).unwrap(), plan, "seed {seed}");
        for nth in (0..syncs(&plan)).step_by(3) {
            let less = without(&plan, Some(nth));
            if !check::check(&less).is_empty() {
                needed += 1;
            } else {
                assert_eq!(wrong(&less, 3), None, "seed {seed}: sync {nth}");
                harmless += 1;
            }
        }
    }
    // A wait that nobody after it needs, because another has told the same, still gets its sync.
    assert!(needed > harmless, "{needed} {harmless}");
}

#[test]
fn passes_keep_results() {
    let mut fewer = 0;
    for seed in 0..programs() {
        let plan = program(seed);
        let judge = |plan: &Plan, what: &str| {
            assert_eq!(check::check(plan), [], "seed {seed} {what}");
            assert_eq!(wrong(plan, 2), None, "seed {seed} {what}");
        };
        let fused = pass::fuse(&plan, Shapes::Any).unwrap();
        judge(&fused, "fused");
        fewer += plan.operations().saturating_sub(fused.operations());
        let named = pass::fuse(&plan, Shapes::Named).unwrap();
        judge(&named, "fused with names");
        let (instances, policy) = if seed % 2 == 0 { (2, Policy::None) } else { (3, Policy::Interleaved) };
        let many = pass::replicate(&fused, instances, policy).unwrap();
        judge(&many, "replicated");
        judge(&pass::replicate(&plan, instances, policy).unwrap(), "replicated without fusion");
        let compact = pass::resources(&many).unwrap();
        judge(&compact, "with dense resources");
        assert_eq!(pass::resources(&compact).unwrap(), compact, "seed {seed}");
    }
    assert!(fewer > 20, "{fewer} operations fewer");
}

#[test]
fn damaged_programs_are_refused_or_stay_as_they_are() {
    let mut right = 0;
    for seed in 0..2 * programs() {
        let plan = mutant(&program(seed % programs()), seed);
        let good = check::check(&plan).is_empty();
        right += usize::from(good);
        for pass in pass::PASSES {
            let mut options = pass::Options::default();
            (options.instances, options.policy) = (2, Policy::None);
            let Ok(after) = pass.apply(&plan, &options) else {
                assert!(!good, "seed {seed}: {} refuses a right plan", pass.name);
                continue;
            };
            if good {
                assert_eq!(check::check(&after), [], "seed {seed} {}", pass.name);
            }
        }
    }
    assert!(right > 5, "{right} still right");
}
