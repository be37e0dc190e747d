//! Several plans prepared in one transaction.

use std::sync::Arc;

use super::super::super::pass::{Policy, replicate};
use super::super::super::{Element, Plan, Reduction, samples};
use super::{Driver, Executor, ExecutorConfig, LIMIT, alone, close, everywhere, ranks, ranks_with};
use crate::comm::{Communicator, CommunicatorConfig, Transport};
use crate::error::ErrorKind;
use crate::gpu::{GpuBuffer, Stream};

const ELEMENTS: usize = 64;

fn settings() -> ExecutorConfig {
    ExecutorConfig::default().with_variants([(Element::I32, None)]).with_max_bytes(4096)
}

fn of_two_blocks() -> Plan {
    replicate(&samples::one_shot(2, true), 2, Policy::Interleaved).unwrap()
}

fn prepare(comm: &Communicator, plans: &[Plan]) -> crate::Result<Vec<Executor>> {
    let wanted: Vec<_> = plans.iter().map(|plan| (plan, settings())).collect();
    Executor::prepare_all(comm, &wanted, LIMIT.into())
}

/// The sum of two ranks' ones, by one call of each executor.
fn sums(comm: &Communicator, executors: &[Executor]) {
    let stream = Stream::new(comm.context()).unwrap();
    for executor in executors {
        let buffer = |value: i32| {
            let buffer = Arc::new(GpuBuffer::new(comm.context(), 4 * ELEMENTS).unwrap());
            buffer.upload(0, &[value; ELEMENTS], LIMIT).unwrap();
            buffer
        };
        let (input, output) = (buffer(1), buffer(0));
        let all = [input.slice(..).unwrap(), output.slice(..).unwrap()];
        executor.execute(&stream, &all[0], &all[1], ELEMENTS, Element::I32, None).unwrap();
        stream.synchronize(LIMIT).unwrap();
        let mut seen = [0_i32; ELEMENTS];
        output.download(0, &mut seen, LIMIT).unwrap();
        assert_eq!(seen, [2; ELEMENTS], "{}", executor.plan().name);
    }
}

#[test]
fn plans_that_are_prepared_together_run_each_for_itself() {
    let _alone = alone();
    let comms = ranks(2);
    // With scratch of their own: the same plan twice is two executors.
    let plans = [samples::one_shot(2, true), of_two_blocks(), samples::one_shot(2, true)];
    everywhere(&comms, |comm| {
        let executors = prepare(comm, &plans)?;
        assert_eq!(executors.len(), 3);
        sums(comm, &executors);
        assert!(prepare(comm, &[])?.is_empty());
        Ok(())
    })
    .into_iter()
    .for_each(Result::unwrap);
    close(&comms);
}

/// One plan of several that differs or fails is every rank's error, and nobody waits for what the others have begun.
#[test]
fn one_wrong_plan_is_an_error_of_all_ranks() {
    let _alone = alone();
    let comms = ranks(2);
    let right = samples::one_shot(2, true);
    let other = of_two_blocks();
    let mut wrong = right.clone();
    wrong.ranks[0].blocks[0].ops.pop();
    let foreign = samples::one_shot(4, true);
    for (first, second, kind) in [
        (vec![right.clone(), right.clone()], vec![right.clone(), other], ErrorKind::InvalidUsage),
        (vec![right.clone(), right.clone()], vec![right.clone()], ErrorKind::InvalidUsage),
        (vec![right.clone(), wrong.clone()], vec![right.clone(), wrong], ErrorKind::Plan),
        (vec![right.clone(), foreign], vec![right.clone(), right.clone()], ErrorKind::InvalidUsage),
    ] {
        let errors = everywhere(&comms, |comm| {
            let plans = if comm.rank() == 0 { &first } else { &second };
            Ok(prepare(comm, plans).unwrap_err())
        });
        let errors: Vec<_> = errors.into_iter().map(Result::unwrap).collect();
        assert_eq!(errors[0].kind(), kind, "{}", errors[0]);
        assert!([kind, ErrorKind::Remote].contains(&errors[1].kind()), "{}", errors[1]);
    }
    everywhere(&comms, |comm| prepare(comm, std::slice::from_ref(&right)).map(|all| sums(comm, &all)))
        .into_iter()
        .for_each(Result::unwrap);
    close(&comms);
}

/// Kernels of other settings would not understand each other.
#[test]
fn other_settings_than_the_peers_are_an_error_of_all_ranks() {
    let _alone = alone();
    let comms = ranks(2);
    let plan = samples::one_shot(2, true);
    let others = [
        settings().with_port_transport(Transport::Ethernet),
        settings().in_any_order(),
        settings().with_variants([(Element::I32, Some(Reduction::Max))]),
    ];
    for other in others {
        let errors = everywhere(&comms, |comm| {
            let config = if comm.rank() == 0 { settings() } else { other.clone() };
            Ok(Executor::prepare(comm, &plan, config, LIMIT).unwrap_err())
        });
        for error in errors.into_iter().map(Result::unwrap) {
            assert!([ErrorKind::InvalidUsage, ErrorKind::Remote].contains(&error.kind()), "{error}");
            assert!(error.to_string().contains("another plan, other variants or other settings"), "{error}");
        }
    }
    close(&comms);
}

/// All plans of a communicator share its scratch, also those of one transaction; the rank that has least left decides, and what is
/// dropped goes back.
#[test]
fn plans_share_the_scratch_of_their_communicator() {
    let _alone = alone();
    let one = || samples::one_shot(2, true);
    let comms = ranks(2);
    let taken = everywhere(&comms, |comm| {
        let executors = prepare(comm, &[one()])?;
        let taken = comm.scratch().taken();
        drop(executors);
        Ok((taken, comm.scratch().taken()))
    });
    let (each, after) = taken.into_iter().next().unwrap().unwrap();
    assert!(each >= 4096, "packets of both ranks");
    assert_eq!(after, 0);
    close(&comms);

    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let room = usize::try_from(2 * each + each / 2).unwrap();
    let comms = ranks_with(&driver, 2, CommunicatorConfig::default().with_scratch_bytes(room));
    let refused = |comm: &Communicator, plans: &[Plan]| {
        let error = prepare(comm, plans).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
        let says = format!("left is {}; set AQUEDUCT_SCRATCH_BYTES to {} or more", each / 2, 3 * each);
        assert!(error.to_string().contains(&says), "{error} does not say {says}");
        assert!(error.to_string().contains("drop plans that are done with"), "{error}");
    };
    everywhere(&comms, |comm| {
        refused(comm, &[one(), one(), one()]);
        assert_eq!(comm.scratch().taken(), 0, "a transaction that failed keeps nothing");
        let first = prepare(comm, &[one()])?;
        let second = prepare(comm, &[one()])?;
        refused(comm, &[one()]);
        sums(comm, &first);
        sums(comm, &second);
        drop(first);
        sums(comm, &prepare(comm, &[one()])?);
        assert!(comm.scratch().taken() <= 2 * each);
        Ok(())
    })
    .into_iter()
    .for_each(Result::unwrap);
    close(&comms);
}

/// Ranks may have different amounts left: what the one with the least can have is what all take, and what it cannot is refused by all.
#[test]
fn the_rank_with_the_least_scratch_decides() {
    let _alone = alone();
    let comms = ranks(2);
    let left = 64 << 10;
    let held = comms[1].scratch().take(comms[1].scratch().left() - left);
    let taken = comms[1].scratch().taken();
    let all = |config: fn() -> ExecutorConfig| {
        let prepare = |comm: &Communicator| {
            let config = config().with_variants([(Element::I32, None)]);
            let executors =
                Executor::prepare_all(comm, &[(&samples::one_shot(2, true), config)], LIMIT.into())?;
            sums(comm, &executors);
            Ok(executors[0].max_bytes())
        };
        everywhere(&comms, prepare)
    };
    for refused in all(|| ExecutorConfig::default().with_max_bytes(64 << 10)) {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("left is {left};")), "{error}");
        let number = |behind| text.split(behind).nth(1)?.split(' ').next()?.parse::<u64>().ok();
        let (needed, enough) = (number("need ").unwrap(), number("SCRATCH_BYTES to ").unwrap());
        assert_eq!(enough, needed + taken, "the rank that has taken most needs it, too: {error}");
    }
    let longest: Vec<u64> = all(ExecutorConfig::default).into_iter().map(Result::unwrap).collect();
    assert!(longest[0] == longest[1] && longest[0] < left, "{longest:?}");
    drop(held);
    let longest = all(|| ExecutorConfig::default().with_max_bytes(64 << 10));
    assert!(longest.into_iter().all(|longest| longest.is_ok_and(|longest| longest == 64 << 10)));
    close(&comms);
}

/// Such a plan takes what there is, so it needs little.
#[test]
fn the_scratch_that_an_error_names_is_enough_for_a_plan_without_a_size() {
    let _alone = alone();
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let plan = samples::one_shot(2, true);
    let prepared = |scratch| {
        let comms = ranks_with(&driver, 2, CommunicatorConfig::default().with_scratch_bytes(scratch));
        let sum = [(Element::I32, Some(Reduction::Sum))];
        let results = everywhere(&comms, |comm| {
            let config = ExecutorConfig::default().with_variants(sum);
            Ok(Executor::prepare_all(comm, &[(&plan, config.clone()), (&plan, config)], LIMIT.into())
                .map(drop))
        });
        close(&comms);
        results.into_iter().map(Result::unwrap).collect::<Vec<_>>()
    };
    let error = prepared(1)[0].as_ref().unwrap_err().to_string();
    let number = error.split("AQUEDUCT_SCRATCH_BYTES to ").nth(1).and_then(|rest| rest.split(' ').next());
    let named: usize = number.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{error}"));
    assert!(named <= 64 << 10, "{error}");
    prepared(named).into_iter().for_each(Result::unwrap);
}

/// Plans without a size take what the others leave, in whatever order they are given: the one with a size must not fail for their sake.
#[test]
fn a_plan_with_a_size_goes_before_plans_without_one() {
    const BYTES: u64 = 1 << 20;
    let _alone = alone();
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let plan = samples::one_shot(2, true);
    let sized = || settings().with_max_bytes(BYTES);
    let unsized_ = || ExecutorConfig::default().with_variants([(Element::I32, None)]);
    let comms = ranks(2);
    let taken = everywhere(&comms, |comm| {
        let _executor = Executor::prepare(comm, &plan, sized(), LIMIT)?;
        Ok(comm.scratch().taken())
    });
    let needed = usize::try_from(taken.into_iter().next().unwrap().unwrap()).unwrap();
    close(&comms);
    let comms =
        ranks_with(&driver, 2, CommunicatorConfig::default().with_scratch_bytes(needed + needed / 32));
    let longest = everywhere(&comms, |comm| {
        let wanted = [(&plan, unsized_()), (&plan, sized()), (&plan, unsized_())];
        let executors = Executor::prepare_all(comm, &wanted, LIMIT.into())?;
        sums(comm, &executors);
        Ok(executors.iter().map(Executor::max_bytes).collect::<Vec<_>>())
    });
    for longest in longest {
        let longest = longest.unwrap();
        assert!(longest[1] == BYTES && longest[0] < BYTES && longest[2] < BYTES, "{longest:?}");
    }
    close(&comms);
}

/// Tags count calls: those of plans that are prepared together differ however many calls there were.
#[test]
fn plans_are_prepared_together_behind_many_collective_calls() {
    let _alone = alone();
    let comms = ranks(2);
    let results = everywhere(&comms, |comm| {
        for _ in 0..1 << 16 {
            drop(comm.collective_call("test", LIMIT.into())?);
        }
        let executors = prepare(comm, &[samples::one_shot(2, true), of_two_blocks()])?;
        sums(comm, &executors);
        prepare(comm, &[samples::port_all_gather(), samples::port_packets()]).map(drop)
    });
    results.into_iter().for_each(Result::unwrap);
    close(&comms);
}
