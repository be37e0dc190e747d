//! Errors name the call that the program made, and what the ranks disagree about.

use std::time::Duration;

use aqueduct::collective::{
    Barrier, Collective, CollectiveConfig, PointToPoint, VariableCollective, VariableCounts,
};
use aqueduct::gpu::Stream;
use aqueduct::plan::{Element, Kind, Reduction};
use aqueduct::{Error, ErrorKind};

use super::{F32_SUM, PACKETS, config};
use crate::data::all_variants;
use crate::group::{Machine, Rank, soon, threads};

#[track_caller]
fn says(error: &Error, op: &str, kind: ErrorKind, words: &str) {
    assert_eq!((error.op(), error.kind()), (op, kind), "{error}");
    assert!(error.message().contains(words), "{error} does not say {words}");
    assert!(!error.to_string().contains("Executor"), "the program called none: {error}");
}

fn prepared(rank: &Rank, kind: Kind, config: CollectiveConfig) -> Error {
    Collective::prepare(&rank.comm, kind, config, soon()).map(drop).unwrap_err()
}

#[test]
fn ranks_that_prepare_different_collectives_are_told_which() {
    let test = "built_in::errors::ranks_that_prepare_different_collectives_are_told_which";
    threads(Machine::Software, 2, test, |rank| {
        let me = rank.me();
        let usage =
            |error: &Error, words: &str| says(error, "Collective::prepare", ErrorKind::InvalidUsage, words);
        let error = prepared(&rank, Kind::Broadcast { root: me }, config());
        let words = format!("prepares broadcast of root {}, and rank {me} broadcast of root {me}", 1 - me);
        usage(&error, &words);
        let kind = if me == 0 { Kind::AllReduce } else { Kind::AllGather };
        let (mine, theirs) = if me == 0 { ("allreduce", "allgather") } else { ("allgather", "allreduce") };
        let error = prepared(&rank, kind, config());
        usage(&error, &format!("rank {} prepares {theirs}, and rank {me} {mine}", 1 - me));
        // Another number of plans, another length of the longest packets, and other variants.
        let usual = || CollectiveConfig::default().with_variants([F32_SUM]);
        for theirs in [
            usual().with_packet_bytes(0),
            usual().with_packet_bytes(PACKETS),
            usual().with_variants([(Element::F16, Reduction::Sum)]),
        ] {
            let config = if me == 0 { usual() } else { theirs };
            usage(&prepared(&rank, Kind::Reduce { root: 1 }, config), "reduce of root 1: rank ");
        }
        // One cannot at all, and says why in the words of its own call.
        let config = if me == 0 { usual() } else { usual().with_packet_bytes(1 << 40) };
        let error = prepared(&rank, Kind::AllReduce, config);
        assert_eq!(error.op(), "Collective::prepare", "{error}");
        assert!(!error.to_string().contains("Executor::prepare"), "{error}");
        Collective::prepare(&rank.comm, Kind::AllReduce, usual(), soon()).unwrap();
        rank.barrier();
    });
}

/// Each rank needs longer for its kernels than it may take, and none blames another one. On a loaded machine a try may end before.
#[test]
fn kernels_that_take_too_long_are_said_to() {
    let test = "built_in::errors::kernels_that_take_too_long_are_said_to";
    threads(Machine::Software, 2, test, |rank| {
        let many = || CollectiveConfig::default().with_variants(all_variants());
        let mut said = false;
        for patience in [20, 50, 100, 200, 400] {
            rank.barrier();
            let patience = Duration::from_millis(patience);
            let late = Collective::prepare(&rank.comm, Kind::AllReduce, many(), patience);
            let Err(error) = late else { continue };
            // Of this rank, or told by the other one.
            assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Remote), "{error}");
            said |= error.to_string().contains("AQUEDUCT_CACHE");
        }
        assert!(said, "rank {}", rank.me());
        rank.barrier();
        // Nothing is lost.
        Collective::prepare(&rank.comm, Kind::AllReduce, config(), soon()).unwrap();
        rank.barrier();
    });
}

#[test]
fn calls_name_themselves() {
    threads(Machine::Software, 2, "built_in::errors::calls_name_themselves", |rank| {
        let (me, usage) = (rank.me(), ErrorKind::InvalidUsage);
        let all = Collective::prepare(&rank.comm, Kind::AllToAll, config(), soon()).unwrap();
        let multiple = "needs a multiple of 2";
        says(
            &all.algorithm(false, 3, Element::F32, None).unwrap_err(),
            "Collective::algorithm",
            usage,
            multiple,
        );
        says(
            &all.explain(false, true, 3, Element::F32, None).unwrap_err(),
            "Collective::explain",
            usage,
            multiple,
        );
        // A peer's buffer is too short, which only the executor knows.
        let count = PACKETS as usize;
        let (long, own) = (rank.buffer(4 * count), rank.buffer((4 * count) >> (2 * me)));
        let shown = all.buffers(&long, &own, soon()).unwrap();
        let stream = Stream::new(rank.comm.context()).unwrap();
        says(
            &all.algorithm_on(&shown, 3, Element::F32, None).unwrap_err(),
            "Collective::algorithm_on",
            usage,
            multiple,
        );
        if me == 0 {
            let error = all.launch_on(&stream, &shown, count, Element::F32, None).unwrap_err();
            says(&error, "Collective::launch_on", usage, "the buffer that rank 1 has shown has 4096 bytes");
        }
        rank.barrier();
        // Also of calls that have the same kernel.
        let variable_with = |kind, variants: &[_]| {
            let config = CollectiveConfig::default().with_variants(variants.iter().copied());
            VariableCollective::prepare(&rank.comm, kind, config, soon())
        };
        let variable = |kind| variable_with(kind, &[F32_SUM]).map(drop).unwrap_err();
        let groups = || PointToPoint::prepare(&rank.comm, soon()).map(drop).unwrap_err();
        let barrier = || Barrier::prepare(&rank.comm, soon()).map(drop).unwrap_err();
        let (first, second) = match me {
            0 => ((barrier(), "Barrier::prepare"), (groups(), "PointToPoint::prepare")),
            _ => (
                (groups(), "PointToPoint::prepare"),
                (variable(Kind::AllToAll), "VariableCollective::prepare"),
            ),
        };
        for (error, op) in [first, second] {
            says(&error, op, usage, &format!("rank {} has called ", 1 - me));
            says(&error, op, usage, &format!("and rank {me} {op}() in its place"));
        }
        let kind = if me == 0 { Kind::AllToAll } else { Kind::AllGather };
        let words = format!("{}: rank {} has another plan", kind.name(), 1 - me);
        says(&variable(kind), "VariableCollective::prepare", usage, &words);
        // One rank alone finds something wrong, and tells all.
        let refused = [
            (Kind::ReduceScatter, vec![], "reduces; name its"),
            (Kind::AllReduce, vec![F32_SUM], "use AllToAll,"),
        ];
        for (wrong, variants, words) in refused {
            let given = if me == 0 { (Kind::ReduceScatter, vec![F32_SUM]) } else { (wrong, variants) };
            let error = variable_with(given.0, &given.1).map(drop).unwrap_err();
            let (kind, begins) = match me {
                0 => (ErrorKind::Remote, "rank 1 cannot run the plan: "),
                _ => (usage, ""),
            };
            says(&error, "VariableCollective::prepare", kind, begins);
            says(&error, "VariableCollective::prepare", kind, words);
        }
        // One that a call of the host refuses late.
        let gather = CollectiveConfig::default();
        let gather = VariableCollective::prepare(&rank.comm, Kind::AllGather, gather, soon()).unwrap();
        let output = if me == 0 { &long } else { &own };
        let error = gather.buffers(&long, output, soon()).map(drop).unwrap_err();
        let words = format!("rank {} gives {} buffer", 1 - me, if me == 0 { "two" } else { "one" });
        says(&error, "VariableCollective::buffers", usage, &words);
        let shown = gather.buffers(&long, &own, soon()).unwrap();
        let numbers = long.slice(4..20).unwrap();
        let counts = VariableCounts::of_parts(&numbers, &numbers);
        let error = gather.launch(&stream, &shown, &counts, Element::F32, None).unwrap_err();
        says(&error, "VariableCollective::launch", usage, "at an address that is a multiple of 8");
        // A rank that is alone with its call.
        if me == 0 {
            let error = Barrier::prepare(&rank.comm, Duration::from_millis(200)).map(drop).unwrap_err();
            says(&error, "Barrier::prepare", ErrorKind::Timeout, "rank 1 did not call Barrier::prepare()");
        }
        rank.barrier();
    });
}
