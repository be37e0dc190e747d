//! Several plans prepared in one transaction.

use std::sync::Arc;

use super::super::super::pass::{Policy, replicate};
use super::super::super::{Element, Plan, samples};
use super::{Executor, ExecutorConfig, LIMIT, alone, close, everywhere, ranks};
use crate::comm::Communicator;
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
