//! Calls that wait for their turns when ranks abort or leave, and executors that come and go or have nothing to do.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cuda_driver_sys::CUresult;

use super::super::super::super::{Kind, Plan, samples};
use super::super::turns::{ELEMENTS, One, plan, with_a_copy_engine};
use super::super::{Driver, LIMIT, Reduction, alone, close, ranks, ranks_on};
use super::{SOON, all, config, crowd, finish, seen};
use crate::abort::AbortCause;
use crate::comm::Communicator;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{Hooks, Room};

/// Calls that wait for their turns, because no executor was called on both ranks.
fn waiting(comm: &Communicator) -> Result<(One, Room)> {
    let room = crowd(comm)?;
    let pair = [One::new(comm, &plan(2), config())?, One::new(comm, &plan(2), config())?];
    let [first, second] = pair;
    let one = if comm.rank() == 0 { first } else { second };
    one.call(Reduction::Sum)?;
    let patience = Instant::now();
    while patience.elapsed() < Duration::from_millis(50) {
        // An error if the peer has ended it already.
        assert!(!one.stream.is_idle().unwrap_or(false), "a call did not wait for the peer");
    }
    Ok((one, room))
}

#[test]
fn calls_that_wait_for_their_turn_leave_when_the_communicator_is_aborted() {
    let _alone = alone();
    for lost in [false, true] {
        let comms = ranks(2);
        let errors = all(&comms, |comm| {
            let (one, _room) = waiting(comm)?;
            if comm.rank() == 1 && lost {
                comm.group().abort().abort(AbortCause::peer_lost(0, "for the test"));
            } else if comm.rank() == 1 {
                comm.abort("for the test");
            }
            Ok((one.stream.synchronize(SOON).unwrap_err(), one.call(Reduction::Sum).unwrap_err()))
        });
        for error in errors.iter().flat_map(|(waited, called)| [waited, called]) {
            assert!(matches!(error.kind(), ErrorKind::Aborted | ErrorKind::PeerLost), "{error}");
        }
    }
}

#[test]
fn calls_that_wait_for_their_turn_leave_when_a_peer_has_left() {
    let _alone = alone();
    let [first, second] = <[Communicator; 2]>::try_from(ranks(2)).unwrap();
    std::thread::scope(|scope| {
        let stays = scope.spawn(|| {
            let (one, _room) = waiting(&first).unwrap();
            one.stream.synchronize(SOON).unwrap_err()
        });
        let leaves = scope.spawn(move || {
            let (one, _room) = waiting(&second).unwrap();
            second.close(LIMIT).unwrap();
            drop(second);
            one.stream.synchronize(SOON).unwrap_err()
        });
        let errors: [Error; 2] = [stays.join().unwrap(), leaves.join().unwrap()];
        assert!(errors.iter().all(|error| error.kind() != ErrorKind::Timeout), "{errors:?}");
    });
}

/// Fails one call of a function.
#[derive(Default)]
struct Fails(Mutex<Option<&'static str>>);

impl Hooks for Fails {
    fn before(&self, function: &'static str) -> Option<CUresult> {
        let mut next = self.0.lock().unwrap();
        next.take_if(|next| *next == function).map(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }
}

/// The driver fails in the middle of what comes before the call's work, and the executor is dropped before the abort.
#[test]
fn waits_of_a_call_that_failed_end_though_its_executor_is_gone() {
    let _alone = alone();
    let fails = Arc::new(Fails::default());
    let driver = Driver::software(cuda_soft::driver_table()).unwrap().with_hooks(fails.clone());
    let comms = ranks_on(&driver, 2);
    let errors = all(&comms, |comm| {
        let room = crowd(comm)?;
        let pair = [One::new(comm, &plan(1), config())?, One::new(comm, &plan(1), config())?];
        let [one, _other] = pair;
        if comm.rank() == 1 {
            return Ok(None);
        }
        *fails.0.lock().unwrap() = Some("cuLaunchKernel");
        let error = one.call(Reduction::Sum).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cuda, "{error}");
        let stream = one.stream.clone();
        drop((one, _other, room));
        assert!(!stream.is_idle()?, "it waits for the other rank");
        comm.abort("for the test");
        Ok(Some(stream.synchronize(SOON)))
    });
    // Work that gave up nothing may have been enqueued, and an error says that the communicator was aborted.
    let waited = errors.into_iter().flatten().next().unwrap();
    assert!(waited.as_ref().map_or_else(|error| error.kind() != ErrorKind::Timeout, |()| true), "{waited:?}");
}

/// A plan in which rank 2 has nothing to do.
fn of_two_among_three() -> Plan {
    let mut plan = samples::two_shot(2);
    let mut idle = plan.ranks[0].clone();
    (idle.blocks, idle.memory_channels, idle.scratch_chunks) = (Vec::new(), Vec::new(), 0);
    plan.ranks.push(idle);
    plan.collective.kind = Kind::Custom("two of three".into());
    plan
}

#[test]
fn a_rank_without_kernels_lets_the_others_go_on() {
    let _alone = alone();
    let comms = ranks(3);
    all(&comms, |comm| {
        let _room = crowd(comm)?;
        let idle = One::new(comm, &of_two_among_three(), config().unchecked())?;
        let whole = One::new(comm, &samples::two_shot(3), config())?;
        for round in 0..6 {
            whole.buffer.upload(0, &vec![1 + comm.rank(); ELEMENTS], LIMIT)?;
            idle.buffer.upload(0, &vec![1 + comm.rank(); ELEMENTS], LIMIT)?;
            let pair = [&idle, &whole];
            pair[(round + comm.rank() as usize) % 2].call(Reduction::Sum)?;
            pair[(1 + round + comm.rank() as usize) % 2].call(Reduction::Sum)?;
            finish(comm, &[&idle.stream, &whole.stream])?;
            assert_eq!(seen(&whole)?, [6]);
            assert_eq!(seen(&idle)?, [3]);
        }
        Ok(())
    });
    close(&comms);
}

/// One executor is dropped while calls of it and of others are on their way, and a new one gets its number.
#[test]
fn executors_come_and_go_while_others_take_turns() {
    let _alone = alone();
    let comms = ranks(2);
    all(&comms, |comm| {
        let _room = crowd(comm)?;
        let stays = One::new(comm, &plan(2), config())?;
        for round in 0..5 {
            let copies = round % 2 == 1;
            let goes = One::new(comm, &if copies { with_a_copy_engine(2) } else { plan(1) }, config())?;
            let calls = [&stays, &goes];
            for nth in 0..4 {
                calls[(nth + comm.rank() as usize) % 2].call(Reduction::Max)?;
            }
            let stream = goes.stream.clone();
            drop(goes);
            stays.call(Reduction::Max)?;
            finish(comm, &[&stays.stream, &stream])?;
            assert_eq!(seen(&stays)?, [2]);
        }
        Ok(())
    });
    close(&comms);
}
