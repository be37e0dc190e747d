//! Executors that do not fit a device together: the order of launches that all ranks follow.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cuda_driver_sys::CUresult;

use super::super::super::samples;
use super::turns::{ELEMENTS, One, most, plan, settings, with_a_copy_engine};
use super::{
    Driver, Element, Executor, ExecutorConfig, LIMIT, Reduction, alone, close, everywhere, ranks, ranks_on,
};
use crate::comm::{Communicator, CommunicatorConfig};
use crate::error::Result;
use crate::gpu::{CaptureMode, Context, GraphExec, Hooks, PinnedBuffer, Room, Stream};
use crate::sync::{Ordering, lock};

/// As long as a call waits in a broken library before the test fails.
const SOON: Duration = Duration::from_secs(20);

mod ends;

fn config() -> ExecutorConfig {
    ExecutorConfig::default()
}

/// Takes so much room on the device that no two plans fit.
fn crowd(comm: &Communicator) -> Result<Room> {
    let room = comm.company().reserve("test", (1, 1), false, None)?;
    room.confirm();
    Ok(room)
}

fn take_turns(executor: &Executor) -> bool {
    executor.prepared().place.turns.are_taken()
}

/// A rank's results after calls on all ranks.
fn seen(one: &One) -> Result<Vec<u32>> {
    let mut seen = vec![0; ELEMENTS];
    one.buffer.download(0, &mut seen, LIMIT)?;
    seen.dedup();
    Ok(seen)
}

/// Waits, or has every kernel and stream leave, so that a broken library fails the test instead of waiting until it is killed.
fn finish(comm: &Communicator, streams: &[&Stream]) -> Result<()> {
    let waited = streams.iter().try_for_each(|stream| stream.synchronize(SOON));
    if let Err(error) = &waited {
        comm.abort(format!("a call did not end: {error}"));
    }
    waited
}

/// Results of all ranks.
fn all<T: Send>(comms: &[Communicator], call: impl Fn(&Communicator) -> Result<T> + Sync) -> Vec<T> {
    everywhere(comms, call).into_iter().map(Result::unwrap).collect()
}

/// Two executors that fill the device, on one buffer, which rank 1 calls in the opposite order: (1, 2) become 3 by a sum and stay 3 by a
/// maximum, or become 2 by a maximum and then 4, on both ranks the same.
#[test]
fn ranks_that_call_in_opposite_orders_run_in_one() {
    let _alone = alone();
    let comms = ranks(2);
    let plan = plan(most(&comms));
    let results = all(&comms, |comm| {
        let first = One::new(comm, &plan, config())?;
        let second = One::on(comm, &plan, config(), &first.buffer)?;
        assert!(take_turns(&first.executor) && take_turns(&second.executor));
        let mut results = Vec::new();
        for round in 0..20 {
            first.buffer.upload(0, &vec![1 + comm.rank(); ELEMENTS], LIMIT)?;
            let calls = [(&first, Reduction::Sum), (&second, Reduction::Max)];
            for nth in [0, 1] {
                let (one, reduction) = calls[(nth + comm.rank() as usize + round / 4) % 2];
                one.call(reduction)?;
            }
            finish(comm, &[&first.stream, &second.stream])?;
            results.push(seen(&first)?);
        }
        Ok(results)
    });
    assert_eq!(results[0], results[1]);
    assert!(results[0].iter().all(|seen| [[3], [4]].contains(&seen[..].try_into().unwrap())), "{results:?}");
    close(&comms);
}

/// On rank 1 the first call cannot begin for a while; the second can, on all ranks, and does not wait for it.
#[test]
fn a_call_waits_for_no_other_that_some_rank_has_not_come_to() {
    let _alone = alone();
    let comms = ranks(2);
    let results = all(&comms, |comm| {
        let _room = crowd(comm)?;
        let first = One::new(comm, &plan(2), config())?;
        let second = One::on(comm, &plan(2), config(), &first.buffer)?;
        let gate = Arc::new(PinnedBuffer::new(comm.context(), 8)?);
        if comm.rank() == 1 {
            first.stream.wait_value64(&gate.slice(..)?, 1)?;
        }
        first.call(Reduction::Sum)?;
        second.call(Reduction::Max)?;
        finish(comm, &[&second.stream])?;
        gate.memory().word64(0)?.store(1, Ordering::Release);
        finish(comm, &[&first.stream])?;
        seen(&first)
    });
    assert_eq!(results, [[4], [4]]);
    close(&comms);
}

/// An executor of a rank, which notes when its calls ran.
struct Timed {
    one: One,
    number: usize,
}

impl Timed {
    /// When the kernel of the last call ran.
    fn span(&self) -> Result<(u64, u64)> {
        let spans = self.one.executor.trace(LIMIT)?;
        let (start, end) =
            (spans.iter().map(|span| span.start).min(), spans.iter().map(|span| span.end).max());
        Ok((start.unwrap_or(0), end.unwrap_or(0)))
    }
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// The order in which calls ran, which do not overlap.
fn order(executors: &[Timed]) -> Result<Vec<usize>> {
    let mut spans = Vec::new();
    for timed in executors {
        spans.push((timed.span()?, timed.number));
    }
    spans.sort_unstable();
    for pair in spans.windows(2) {
        assert!(pair[0].0.1 <= pair[1].0.0, "two calls run at once: {spans:?}");
    }
    Ok(spans.into_iter().map(|(_, number)| number).collect())
}

/// Four ranks with four executors each, and a thread for each that calls when it likes.
#[test]
fn threads_that_call_in_random_orders_run_in_one() {
    let _alone = alone();
    let comms = ranks(4);
    let seed = std::env::var("AQUEDUCT_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7_u64);
    let plan = samples::two_shot(4);
    let results = all(&comms, |comm| {
        let _room = crowd(comm)?;
        let executors = (0..4)
            .map(|number| Ok(Timed { one: One::new(comm, &plan, config().with_trace())?, number }))
            .collect::<Result<Vec<_>>>()?;
        let mut orders = Vec::new();
        for round in 0..12_u64 {
            let call = |timed: &Timed| {
                let mut state = 1 + seed + 1000 * round + 100 * u64::from(comm.rank()) + timed.number as u64;
                (0..3).for_each(|_| _ = random(&mut state));
                std::thread::sleep(Duration::from_micros(random(&mut state) % 2000));
                timed.one.buffer.upload(0, &vec![1 + comm.rank(); ELEMENTS], LIMIT)?;
                timed.one.call(Reduction::Sum)
            };
            std::thread::scope(|scope| {
                let threads: Vec<_> =
                    executors.iter().map(|timed| scope.spawn(move || call(timed))).collect();
                threads.into_iter().try_for_each(|thread| thread.join().unwrap())
            })?;
            let streams: Vec<_> = executors.iter().map(|timed| &timed.one.stream).collect();
            finish(comm, &streams)?;
            for timed in &executors {
                assert_eq!(seen(&timed.one)?, [10], "rank {}, round {round}", comm.rank());
            }
            orders.push(order(&executors)?);
        }
        // And without meeting after each.
        let many = |timed: &Timed| (0..25).try_for_each(|_| timed.one.call(Reduction::Max));
        std::thread::scope(|scope| {
            let threads: Vec<_> = executors.iter().map(|timed| scope.spawn(move || many(timed))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().unwrap())
        })?;
        finish(comm, &executors.iter().map(|timed| &timed.one.stream).collect::<Vec<_>>())?;
        orders.push(order(&executors)?);
        Ok(orders)
    });
    for (rank, orders) in results.iter().enumerate() {
        assert_eq!(orders, &results[0], "rank {rank} ran calls in another order, seed {seed}");
    }
    close(&comms);
}

/// Threads may call two executors on one stream, in an order that only that stream knows: what each call enqueues stays together.
#[test]
fn calls_of_two_threads_on_one_stream_do_not_mix() {
    let _alone = alone();
    let comms = ranks(2);
    all(&comms, |comm| {
        let _room = crowd(comm)?;
        let pair = [One::new(comm, &plan(1), config())?, One::new(comm, &plan(1), config())?];
        // As a call of the first executor holds it up that is being enqueued on the stream of the second.
        let place = &pair[0].executor.prepared().place;
        let calling = place.turns.begin("test", comm, place.caller.as_deref())?;
        let (line, _) = calling.turn.unwrap();
        let enqueuing = line.enqueuing(&pair[1].stream.clone());
        let held = lock(&enqueuing);
        std::thread::scope(|scope| {
            let second = scope.spawn(|| pair[1].call(Reduction::Max));
            pair[0].call(Reduction::Max)?;
            finish(comm, &[&pair[0].stream])?;
            std::thread::sleep(Duration::from_millis(100));
            assert!(!second.is_finished() && pair[1].stream.is_idle()?, "two calls mix");
            drop(held);
            second.join().unwrap()
        })?;
        finish(comm, &[&pair[1].stream])?;
        assert_eq!((seen(&pair[0])?, seen(&pair[1])?), (vec![2], vec![2]));
        Ok(())
    });
    close(&comms);
}

/// Calls of the driver by name.
#[derive(Default)]
struct Count(Mutex<HashMap<&'static str, usize>>);

impl Hooks for Count {
    fn before(&self, function: &'static str) -> Option<CUresult> {
        *self.0.lock().unwrap().entry(function).or_default() += 1;
        None
    }
}

impl Count {
    fn take(&self) -> HashMap<&'static str, usize> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

#[test]
fn executors_that_fit_the_device_pay_nothing() {
    let _alone = alone();
    let count = Arc::new(Count::default());
    let driver = Driver::software(cuda_soft::driver_table()).unwrap().with_hooks(count.clone());
    let comms = ranks_on(&driver, 2);
    let pairs =
        all(&comms, |comm| Ok([One::new(comm, &plan(2), config())?, One::new(comm, &plan(2), config())?]));
    assert!(!take_turns(&pairs[0][0].executor));
    let call = || {
        count.take();
        pairs.iter().flatten().for_each(|one| one.call(Reduction::Sum).unwrap());
        let mut calls = count.take();
        calls.retain(|name, _| {
            name.starts_with("cuLaunch") || name.starts_with("cuStream") || name.starts_with("cuEvent")
        });
        calls
    };
    // The first call of a stream has it counted.
    call();
    assert_eq!(call(), HashMap::from([("cuLaunchKernel", 4)]));
    pairs.iter().flatten().for_each(|one| one.stream.synchronize(LIMIT).unwrap());
    drop(pairs);
    close(&comms);
}

/// Which calls take turns is decided between calls, of which all ranks have made the same.
#[test]
fn a_plan_without_room_comes_between_the_same_calls() {
    let _alone = alone();
    let comms = ranks(2);
    all(&comms, |comm| {
        let one = One::new(comm, &plan(2), config())?;
        one.call(Reduction::Sum)?;
        assert!(one.is_right()? && !take_turns(&one.executor));
        let room = crowd(comm)?;
        if comm.rank() == 0 {
            one.call(Reduction::Max)?;
        }
        let error = Executor::prepare(comm, &plan(2), settings(config()), LIMIT).unwrap_err();
        assert!(error.to_string().contains("make each call before this on all ranks"), "{error}");
        if comm.rank() == 1 {
            one.call(Reduction::Max)?;
        }
        // Calls go on as before, and later ones take turns.
        let other = One::new(comm, &plan(2), config())?;
        assert!(take_turns(&one.executor));
        for nth in 0..4 {
            [&one, &other][(nth + comm.rank() as usize) % 2].call(Reduction::Max)?;
        }
        finish(comm, &[&one.stream, &other.stream])?;
        assert_eq!(seen(&one)?, [3]);
        // Until all executors have gone.
        drop((one, other, room));
        assert!(!take_turns(&One::new(comm, &plan(2), config())?.executor));
        Ok(())
    });
    close(&comms);
}

/// The numbers of calls alone do not say that they are the same. Those that never take turns do not matter.
#[test]
fn a_plan_without_room_comes_between_calls_of_the_same_executors() {
    let _alone = alone();
    let comms = ranks(2);
    all(&comms, |comm| {
        // They fit a device of two multiprocessors, too.
        let pair = [One::new(comm, &plan(1), config())?, One::new(comm, &plan(1), config())?];
        let ordered = One::new(comm, &plan(1), config().in_call_order())?;
        let [mine, other] = [comm.rank() as usize, 1 - comm.rank() as usize];
        pair[mine].call(Reduction::Sum)?;
        if comm.rank() == 0 {
            ordered.call(Reduction::Sum)?;
        }
        let room = crowd(comm)?;
        let error = Executor::prepare(comm, &plan(1), settings(config()), LIMIT).unwrap_err();
        assert!(error.to_string().contains("rank 1 has called other executors than rank 0"), "{error}");
        // All fit, and have no order.
        drop(room);
        pair[other].call(Reduction::Sum)?;
        if comm.rank() == 1 {
            ordered.call(Reduction::Sum)?;
        }
        finish(comm, &[&pair[0].stream, &pair[1].stream, &ordered.stream])?;
        let _room = crowd(comm)?;
        let last = One::new(comm, &plan(1), config())?;
        assert!(take_turns(&last.executor));
        for nth in [mine, other] {
            [&pair[0], &last][nth].call(Reduction::Max)?;
        }
        finish(comm, &[&pair[0].stream, &last.stream])
    });
    close(&comms);
}

/// No rank prepares executors whose calls would all fail on one of them.
#[test]
fn no_rank_prepares_once_one_does_not_know_whether_others_take_turns() {
    let _alone = alone();
    let comms = ranks(2);
    all(&comms, |comm| {
        let one = One::new(comm, &plan(2), config())?;
        if comm.rank() == 1 {
            one.executor.prepared().place.turns.break_off();
        }
        for crowded in [false, true] {
            let _room = crowded.then(|| crowd(comm)).transpose()?;
            let error = Executor::prepare(comm, &plan(2), settings(config()), LIMIT).unwrap_err();
            assert!(error.to_string().contains("did not agree in time"), "{error}");
        }
        Ok(())
    });
    close(&comms);
}

/// The executors of each communicator have room beside each other, and not beside the other one's: preparing the second one takes away
/// nothing from the first. Calls of both come in one order on all ranks.
#[test]
fn two_communicators_on_the_same_devices_order_their_own_calls_only() {
    let _alone = alone();
    let comms = ranks(2);
    let contexts: Vec<Context> = comms.iter().map(|comm| comm.context().clone()).collect();
    let settled = CommunicatorConfig::default().with_peer_timeout(None);
    let others = Communicator::local(&contexts, settled, LIMIT).unwrap();
    all(&comms, |comm| {
        let pair = [One::new(comm, &plan(2), config())?, One::new(comm, &plan(2), config())?];
        let another = &others[comm.rank() as usize];
        let _room = crowd(another)?;
        let theirs = [One::new(another, &plan(2), config())?, One::new(another, &plan(2), config())?];
        assert!(!take_turns(&pair[0].executor) && take_turns(&theirs[0].executor));
        let [mine, other] = [comm.rank() as usize, 1 - comm.rank() as usize];
        for _ in 0..4 {
            for calls in [&pair, &theirs] {
                calls[mine].call(Reduction::Max)?;
                calls[other].call(Reduction::Max)?;
            }
        }
        finish(comm, &[&pair[0].stream, &pair[1].stream, &theirs[0].stream, &theirs[1].stream])?;
        assert_eq!((seen(&pair[0])?, seen(&theirs[1])?), (vec![2], vec![2]));
        Ok(())
    });
    close(&others);
    close(&comms);
}

/// A preparation has counted its kernels on both ranks and has not ended: calls of others have no order yet.
#[test]
fn a_preparation_that_has_not_ended_leaves_calls_their_free_order() {
    let _alone = alone();
    let comms = ranks(2);
    all(&comms, |comm| {
        let pair = [One::new(comm, &plan(2), config())?, One::new(comm, &plan(2), config())?];
        let _prepares = comm.company().reserve("test", (1, 1), false, None)?;
        let mine = comm.rank() as usize;
        pair[mine].call(Reduction::Max)?;
        pair[1 - mine].call(Reduction::Max)?;
        finish(comm, &[&pair[0].stream, &pair[1].stream])
    });
    close(&comms);
}

/// Graphs take turns as calls do: a capture holds no number that changes from call to call.
#[test]
fn captured_calls_take_turns() {
    let _alone = alone();
    let comms = ranks(2);
    let results = all(&comms, |comm| {
        let _room = crowd(comm)?;
        let first = One::new(comm, &plan(2), config())?;
        let second = One::on(comm, &with_a_copy_engine(2), config(), &first.buffer)?;
        let capture = |one: &One, reduction| {
            GraphExec::capture(&one.stream, CaptureMode::ThreadLocal, |stream| {
                one.executor.execute_on(stream, &one.shown, ELEMENTS, Element::I32, reduction)
            })
        };
        let graphs = [capture(&first, Reduction::Sum)?, capture(&second, Reduction::Max)?];
        let mut results = Vec::new();
        for round in 0..8 {
            first.buffer.upload(0, &vec![1 + comm.rank(); ELEMENTS], LIMIT)?;
            for nth in [0, 1] {
                let which = (nth + round + comm.rank() as usize) % 2;
                graphs[which].launch(&[&first, &second][which].stream)?;
            }
            finish(comm, &[&first.stream, &second.stream])?;
            results.push(seen(&first)?);
        }
        Ok(results)
    });
    assert_eq!(results[0], results[1]);
    assert!(results[0].iter().all(|seen| [[3], [4]].contains(&seen[..].try_into().unwrap())), "{results:?}");
    close(&comms);
}
