//! Plans and calls that are refused, and ranks that go away.

use std::time::Duration;

use aqueduct::ErrorKind;
use aqueduct::gpu::DeviceSlice;
use aqueduct::plan::{Element, Executor, ExecutorConfig, Kind, Op, Plan, Reduction};
use aqueduct_tests::ranks;

use super::{Bench, MAX_BYTES, config, programs};
use crate::group::{Machine, processes, soon, threads};

const LONG: Duration = Duration::from_secs(60);

/// Every rank gets the error, and the communicator goes on.
#[test]
fn ranks_that_disagree_all_hear_it() {
    threads(Machine::Software, 3, "plans::failures::ranks_that_disagree_all_hear_it", |rank| {
        let odd = rank.me() == 1;
        let prepare = |plan: &Plan, config: ExecutorConfig| {
            Executor::prepare(&rank.comm, plan, config, soon()).map(drop).unwrap_err()
        };
        let plan = if odd { programs::zero_copy(3) } else { programs::packets(3) };
        let error = prepare(&plan, config());
        assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
        assert!(error.to_string().contains("another plan"), "{error}");
        let bytes = if odd { MAX_BYTES / 2 } else { MAX_BYTES };
        let error = prepare(&programs::packets(3), config().with_max_bytes(bytes));
        assert!(error.to_string().contains("another largest message"), "{error}");
        // A rank that cannot run its plan says why, and the others say so.
        let plan = programs::packets(if odd { 2 } else { 3 });
        let error = prepare(&plan, config());
        let text = error.to_string();
        assert!(text.contains("the plan is one of 2 ranks, the communicator has 3"), "{text}");
        assert_eq!(error.kind(), if odd { ErrorKind::InvalidUsage } else { ErrorKind::Remote });
        assert_eq!(error.peer(), (!odd).then_some(1));
        // After all that, the ranks still agree about everything.
        Bench::new(&rank, &programs::packets(3), config()).run(480, Reduction::Sum);
    });
}

/// Every rank learns which call was left out, and the calls behind it go on.
#[test]
fn a_call_that_one_rank_leaves_out_is_named() {
    let test = "plans::failures::a_call_that_one_rank_leaves_out_is_named";
    threads(Machine::Software, 3, test, |rank| {
        let plan = programs::zero_copy(3);
        let executor = Executor::prepare(&rank.comm, &plan, config(), soon()).unwrap();
        let buffer = rank.buffer(64);
        let show = |wait: Duration| executor.prepare_buffers(&buffer, &buffer, wait).map(drop);
        let prepare = || Executor::prepare(&rank.comm, &programs::packets(3), config(), soon()).map(drop);
        // The others give up a call, and rank 1 makes the next one in its place.
        if rank.me() != 1 {
            // Rank 0 gives up first, and tells.
            let wait = if rank.me() == 0 { Duration::from_millis(200) } else { LONG };
            let error = show(wait).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            assert!(error.message().contains("rank 1 did not call Executor::prepare_buffers()"), "{error}");
        }
        rank.barrier();
        if rank.me() == 1 {
            let error = prepare().unwrap_err();
            assert_eq!((error.kind(), error.op()), (ErrorKind::Timeout, "Executor::prepare"), "{error}");
            let words = "a call of Executor::prepare_buffers() that this rank has left out";
            assert!(error.message().contains(words), "{error}");
        }
        prepare().unwrap();
        // The others wait in another call than rank 1.
        let error = if rank.me() == 1 { prepare() } else { show(LONG) }.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
        let op = if rank.me() == 1 { "Executor::prepare" } else { "Executor::prepare_buffers" };
        assert_eq!((error.op(), error.peer()), (op, Some(u32::from(rank.me() != 1))), "{error}");
        let words = if rank.me() == 1 {
            "rank 0 has called Executor::prepare_buffers(), and rank 1 Executor::prepare() in its place"
        } else {
            "rank 1 has called Executor::prepare(), and rank 0 Executor::prepare_buffers() in its place"
        };
        assert!(error.message().contains(words), "{error}");
        show(LONG).unwrap();
        rank.barrier();
    });
}

/// The other ranks learn it where that call's place is, or once the rank has gone on, and the ranks can meet again.
#[test]
fn a_call_that_one_rank_makes_too_often_is_named() {
    let test = "plans::failures::a_call_that_one_rank_makes_too_often_is_named";
    threads(Machine::Software, 3, test, |rank| {
        let executor = Executor::prepare(&rank.comm, &programs::zero_copy(3), config(), soon()).unwrap();
        let buffer = rank.buffer(64);
        let show = |wait: Duration| executor.prepare_buffers(&buffer, &buffer, wait).map(drop);
        let prepare =
            |wait: Duration| Executor::prepare(&rank.comm, &programs::packets(3), config(), wait).map(drop);
        let odd = rank.me() == 2;
        // Another call stands in the place of the one too many.
        if odd {
            let error = show(Duration::from_millis(50)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        }
        rank.barrier();
        if !odd {
            let error = prepare(LONG).unwrap_err();
            assert_eq!((error.kind(), error.peer()), (ErrorKind::InvalidUsage, Some(2)), "{error}");
            let words =
                "rank 2 has called Executor::prepare_buffers(), and rank 0 Executor::prepare() in its place";
            assert!(error.message().contains(words), "{error}");
        }
        prepare(LONG).unwrap();
        rank.barrier();
        // The same call stands there: rank 2 has given it up, and is in the next one.
        if odd {
            // Long enough to say that it can run the plan.
            prepare(Duration::from_secs(1)).unwrap_err();
        }
        rank.barrier();
        if !odd {
            let error = prepare(LONG).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
            assert!(error.message().contains("has gone on to a later call"), "{error}");
        }
        prepare(LONG).unwrap();
        rank.barrier();
    });
}

/// Otherwise peers would write what is meant for one executor's buffers to those of the other one.
#[test]
fn ranks_that_show_buffers_for_different_executors_hear_it() {
    let test = "plans::failures::ranks_that_show_buffers_for_different_executors_hear_it";
    threads(Machine::Software, 3, test, |rank| {
        let prepare = || Executor::prepare(&rank.comm, &programs::zero_copy(3), config(), soon()).unwrap();
        let mut executors = [prepare(), prepare()];
        if rank.me() == 2 {
            executors.swap(0, 1);
        }
        let buffer = rank.buffer(64);
        for executor in &executors {
            let error = executor.prepare_buffers(&buffer, &buffer, LONG).map(drop).unwrap_err();
            assert_eq!(
                (error.kind(), error.op()),
                (ErrorKind::InvalidUsage, "Executor::prepare_buffers"),
                "{error}"
            );
            assert_eq!(error.peer(), Some(if rank.me() == 2 { 0 } else { 2 }), "{error}");
            assert!(error.message().contains("for another executor or collective than this rank"), "{error}");
        }
        if rank.me() == 2 {
            executors.swap(0, 1);
        }
        executors.iter().for_each(|executor| drop(executor.prepare_buffers(&buffer, &buffer, LONG).unwrap()));
        rank.barrier();
    });
}

/// A wrong plan is refused with the place of the mistake, unless checks are turned off, and what kernels cannot do always.
#[test]
fn wrong_plans_are_refused() {
    threads(Machine::Software, 2, "plans::failures::wrong_plans_are_refused", |rank| {
        let prepare =
            |plan: &Plan, config| Executor::prepare(&rank.comm, plan, config, soon()).map(drop).unwrap_err();
        let mut plan = programs::zero_copy(2);
        for mine in &mut plan.ranks {
            let ops = &mut mine.blocks[0].ops;
            let wait = ops.iter().rposition(|operation| matches!(operation.op, Op::Wait { .. })).unwrap();
            ops.remove(wait);
        }
        let error = prepare(&plan, config());
        assert_eq!(error.kind(), ErrorKind::Plan, "{error}");
        assert!(error.to_string().contains("wait"), "{error}");
        let mut plan = programs::zero_copy(2);
        plan.settings.threads_per_block = 100;
        let error = prepare(&plan, config().unchecked());
        assert_eq!(error.kind(), ErrorKind::Plan, "{error}");
        // The average of a plan that reduces in steps.
        let average = ExecutorConfig::default().with_variants([(Element::I32, Some(Reduction::Avg))]);
        let error = prepare(&stepwise(), average);
        assert!(error.to_string().contains("an average needs the data of all 2 ranks"), "{error}");
        // Scratch that exceeds the communicator's limit.
        let error = prepare(&programs::packets(2), config().with_max_bytes(1 << 40));
        assert!(error.to_string().contains("AQUEDUCT_SCRATCH_BYTES"), "{error}");
        rank.barrier();
    });
}

/// Adds the own input to itself before the peer's: no operation has the inputs of all ranks alone.
fn stepwise() -> Plan {
    let mut plan = programs::packets(2);
    plan.collective.kind = Kind::Custom("three operands".into());
    for operation in plan.ranks.iter_mut().flat_map(|rank| &mut rank.blocks).flat_map(|block| &mut block.ops)
    {
        if let Op::Move(moved) = &mut operation.op
            && moved.sources.len() == 2
        {
            moved.sources.insert(0, moved.sources[0]);
        }
    }
    plan
}

#[test]
fn a_call_longer_than_the_address_space_is_refused() {
    threads(
        Machine::Software,
        3,
        "plans::failures::a_call_longer_than_the_address_space_is_refused",
        |rank| {
            let bench = Bench::new(&rank, &programs::gathered(3), config());
            let shown = bench.shown.clone().unwrap();
            for count in [usize::MAX, usize::MAX / 4, usize::MAX / 12] {
                let call = bench.executor.execute_on(&bench.stream, &shown, count, Element::I32, None);
                assert_eq!(call.unwrap_err().kind(), ErrorKind::InvalidUsage);
            }
            rank.barrier();
        },
    );
}

#[test]
fn wrong_calls_are_refused_and_do_nothing() {
    threads(Machine::Software, 2, "plans::failures::wrong_calls_are_refused_and_do_nothing", |rank| {
        let mut bench = Bench::new(&rank, &programs::packets(2), config());
        let (input, output) = bench.slices(480);
        let (executor, stream) = (bench.executor.clone(), &bench.stream);
        let refused =
            |input: &DeviceSlice, output: &DeviceSlice, count, element, op: Option<Reduction>, says: &str| {
                let error = executor.execute(stream, input, output, count, element, op).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
                assert!(error.to_string().contains(says), "{error} does not say {says}");
            };
        let sum = Some(Reduction::Sum);
        refused(&input, &output, 481, Element::I32, sum, "needs 1924 bytes of input, which has 1920");
        refused(&input, &output.slice(..1916).unwrap(), 480, Element::I32, sum, "bytes of output");
        refused(&input, &output, usize::MAX / 2, Element::I32, sum, "with_max_bytes");
        refused(&input, &output, 1 << 15, Element::I32, sum, "with_max_bytes");
        refused(&input.slice(2..).unwrap(), &output, 8, Element::I32, sum, "is not aligned");
        refused(&input, &input, 8, Element::I32, sum, "must lie apart");
        refused(&input, &output, 8, Element::F32, sum, "was not prepared");
        refused(&input, &output, 8, Element::I32, Some(Reduction::Min), "was not prepared");
        bench.run(480, Reduction::Sum);

        let mut bench = Bench::new(&rank, &programs::zero_copy(2), config());
        let (input, _) = bench.slices(480);
        let error = bench.executor.execute(&bench.stream, &input, &input, 480, Element::I32, Reduction::Sum);
        let text = error.unwrap_err().to_string();
        assert!(text.contains("prepare_buffers"), "{text}");
        // Buffers that are long enough here and too short at the peer.
        let short = rank.buffer(if rank.me() == 0 { 4096 } else { 64 });
        let shown = bench.executor.prepare_buffers(&short, &short, soon()).unwrap();
        let call = bench.executor.execute_on(&bench.stream, &shown, 400, Element::I32, Reduction::Sum);
        let text = call.unwrap_err().to_string();
        let says =
            if rank.me() == 0 { "the buffer that rank 1 has shown has 64 bytes" } else { "which has 64" };
        assert!(text.contains(says), "{text}");
        let other = Bench::new(&rank, &programs::zero_copy(2), config());
        let call = other.executor.execute_on(&bench.stream, &shown, 8, Element::I32, Reduction::Sum);
        let text = call.unwrap_err().to_string();
        assert!(text.contains("another executor has shown these buffers"), "{text}");
        bench.run(480, Reduction::Sum);

        let mut bench = Bench::new(&rank, &programs::pipelined(2), config());
        let (input, output) = bench.slices(7);
        let elements = |count| {
            bench.executor.execute(
                &bench.stream,
                &input.slice(..2 * count).unwrap(),
                &output,
                count,
                Element::F16,
                None,
            )
        };
        elements(3).unwrap();
        bench.stream.synchronize(soon()).unwrap();
        bench.run(480, Reduction::Sum);
    });
}

/// Objects that a call uses live until it has ended, whatever the user drops.
#[test]
fn dropped_objects_live_as_long_as_a_call() {
    threads(Machine::Software, 2, "plans::failures::dropped_objects_live_as_long_as_a_call", |rank| {
        for plan in [programs::packets(2), programs::zero_copy(2)] {
            let mut bench = Bench::new(&rank, &plan, config());
            bench.call = 1;
            bench.begin(480);
            rank.barrier();
            // Rank 1 begins its call only when rank 0 has dropped everything.
            if rank.me() == 1 {
                rank.barrier();
            }
            bench.enqueue(480, Reduction::Sum).unwrap();
            let Bench { stream, executor, input, output, shown, .. } = bench;
            let result = output.clone();
            drop((executor, input, output, shown));
            if rank.me() == 0 {
                rank.barrier();
            }
            stream.synchronize(soon()).unwrap();
            let mut seen = [0_i32; 480];
            result.download(0, &mut seen, soon()).unwrap();
            let value = |rank: u32, index| crate::data::mix(rank, 1, index).cast_signed();
            let expected: Vec<i32> =
                (0..480).map(|index| value(0, index).wrapping_add(value(1, index))).collect();
            assert_eq!(seen.as_slice(), expected);
            rank.barrier();
        }
    });
}

/// Kernels of the others leave when a rank is killed, and every wait says so.
fn killed(plan: fn(u32) -> Plan, test: &str) {
    processes(Machine::Software, 3, test, |rank| {
        let bench = Bench::new(&rank, &plan(3), config());
        bench.begin(480);
        rank.barrier();
        if rank.me() == 1 {
            ranks::die();
        }
        // The loss may be known before the call.
        let ended = bench.enqueue(480, Reduction::Sum).and_then(|()| bench.stream.synchronize(soon()));
        let error = ended.unwrap_err();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(1)), "{error}");
        let next = bench.enqueue(480, Reduction::Sum).unwrap_err();
        assert_eq!(next.kind(), ErrorKind::PeerLost, "{next}");
    });
}

#[test]
fn a_rank_is_killed_that_sends_packets() {
    killed(programs::packets, "plans::failures::a_rank_is_killed_that_sends_packets");
}

#[test]
fn a_rank_is_killed_that_signals() {
    killed(programs::zero_copy, "plans::failures::a_rank_is_killed_that_signals");
}

#[test]
fn a_rank_is_killed_whose_peers_wait_for_semaphores() {
    killed(programs::pipelined, "plans::failures::a_rank_is_killed_whose_peers_wait_for_semaphores");
}

#[test]
fn a_rank_is_killed_that_a_proxy_serves() {
    killed(programs::ports, "plans::failures::a_rank_is_killed_that_a_proxy_serves");
}
