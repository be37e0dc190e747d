//! What users give: plans of their own, and calls that are wrong.

use aqueduct::ErrorKind;
use aqueduct::collective::{Collective, CollectiveConfig, PlanSelector};
use aqueduct::gpu::DeviceSlice;
use aqueduct::plan::program::{CollectiveProgram, Pattern, Protocol, SyncType};
use aqueduct::plan::{Element, Kind, Plan, Reduction};

use super::{Bench, F32_SUM, PLACES, config};
use crate::group::{Machine, soon, threads};

/// A plan of the user's own serves the sizes that it was given for and that its chunks divide.
#[test]
fn plans_of_the_users() {
    threads(Machine::Software, 2, "built_in::given::plans_of_the_users", |rank| {
        let program =
            CollectiveProgram::new("mine", Pattern::all_gather(2, 1)).threads_per_block(64).instances(2);
        for end in program.ranks() {
            let (me, channel) = (end.index(), end.memory_channel(1 - end.index()));
            channel.relaxed_signal(0, SyncType::None);
            channel.wait(0, SyncType::After);
            end.copy(end.output().chunk(me), end.input().chunk(0), 0);
            channel.put(program.rank(1 - me).output().chunk(me), end.input().chunk(0), 0);
            channel.signal(0, SyncType::Before);
            channel.wait(0, SyncType::After);
        }
        let plan = program.compile().unwrap();
        let mut bench = Bench::new(&rank, Kind::AllGather, config().with_plan(plan, 800..=8000));
        let way = |shown: bool, count: usize| match shown {
            true => {
                bench.collective.algorithm_on(&bench.shown[0], count, Element::F32, None).unwrap().to_owned()
            }
            false => bench.collective.algorithm(false, count, Element::F32, None).unwrap().to_owned(),
        };
        assert_eq!(
            [98, 99, 100, 1000, 1002].map(|count| way(true, count)),
            ["packets", "packets", "mine", "mine", "zero-copy"]
        );
        assert_eq!(way(true, 101), "packets", "two instances do not divide it");
        assert_eq!(way(false, 100), "packets", "peers reach the plan's buffers");
        for part in [100, 101, 1000, 99] {
            bench.run(PLACES[3], part, Reduction::Sum);
        }
        rank.barrier();
    });
}

/// A plan that was written for some sizes serves no others, whatever it was given for.
#[test]
fn plans_serve_the_sizes_that_they_were_written_for() {
    threads(
        Machine::Software,
        2,
        "built_in::given::plans_serve_the_sizes_that_they_were_written_for",
        |rank| {
            let mut plan = reducing(Reduction::Sum);
            (plan.settings.min_bytes, plan.settings.max_bytes) = (800, 1600);
            let bench = Bench::new(&rank, Kind::AllReduce, config().with_plan(plan, 0..=4000));
            let way =
                |count| bench.collective.algorithm(false, count, Element::F32, None).unwrap().to_owned();
            assert_eq!([199, 200, 400, 401].map(way), ["packets", "mine", "mine", "packets"]);
            rank.barrier();
        },
    );
}

/// An all-reduce of two ranks by packets.
fn reducing(op: Reduction) -> Plan {
    let program = CollectiveProgram::new("mine", Pattern::all_reduce(2, 1))
        .protocol(Protocol::Ll)
        .threads_per_block(64)
        .double_scratch(true);
    let scratch: Vec<_> = program.ranks().map(|end| end.scratch(2)).collect();
    for end in program.ranks() {
        let (input, peer) = (end.input().chunks(..), 1 - end.index());
        end.memory_channel(peer).put_packets(scratch[peer as usize].chunks(..), input, 0);
        let come = [scratch[end.index() as usize].chunks(..)];
        end.reduce_packets_to(end.output().chunks(..), input, come, op, 0);
    }
    program.compile().unwrap()
}

/// Whatever the plan was written for that serves it.
#[test]
fn a_call_without_a_reduction_is_a_sum() {
    threads(Machine::Software, 2, "built_in::given::a_call_without_a_reduction_is_a_sum", |rank| {
        let max = (Element::F32, Reduction::Max);
        let calls = PlanSelector::sizes(0..=4000);
        let config = config().with_variants([F32_SUM, max]).with_plan(reducing(Reduction::Max), calls);
        let mut bench = Bench::new(&rank, Kind::AllReduce, config);
        let (place, part) = (PLACES[3], 1000);
        bench.begin(place, part);
        bench.collective.launch_on(&bench.stream, &bench.shown[0], part, Element::F32, None).unwrap();
        bench.stream.synchronize(soon()).unwrap();
        bench.check(place, part, Reduction::Sum);
        rank.barrier();
    });
}

/// A plan may be for some types, reductions and shapes of the job only.
#[test]
fn plans_for_some_calls() {
    threads(Machine::Software, 2, "built_in::given::plans_for_some_calls", |rank| {
        let plan = reducing(Reduction::Sum);
        let max = (Element::F32, Reduction::Max);
        let prepare = |calls: PlanSelector| {
            let variants = [F32_SUM, max, (Element::I32, Reduction::Max)];
            Bench::new(
                &rank,
                Kind::AllReduce,
                config().with_variants(variants).with_plan(plan.clone(), calls),
            )
        };
        let ways = |bench: &Bench<'_>| {
            let way = |count, element, op| {
                bench.collective.algorithm(false, count, element, op).unwrap().to_owned()
            };
            [
                way(1000, Element::F32, Some(Reduction::Max)),
                way(1000, Element::F32, None),
                way(1000, Element::I32, Some(Reduction::Max)),
                way(1002, Element::F32, Some(Reduction::Max)),
            ]
        };
        let (mine, usual) = ("mine", "packets");
        let sizes = || PlanSelector::sizes(0..=4000);
        for (calls, expected) in [
            (sizes(), [mine, mine, mine, usual]),
            (sizes().with_reductions([Reduction::Max]), [mine, usual, mine, usual]),
            (sizes().with_reductions([Reduction::Sum]), [usual, mine, usual, usual]),
            (sizes().with_elements([Element::F32]), [mine, mine, usual, usual]),
            (sizes().with_ranks(1..=2).with_ranks_per_host(2), [mine, mine, mine, usual]),
            // These are passed over.
            (sizes().with_ranks(3..=8), [usual; 4]),
            (sizes().with_ranks_per_host(1), [usual; 4]),
            (sizes().with_elements([Element::F64]), [usual; 4]),
        ] {
            let mut bench = prepare(calls.clone());
            assert_eq!(ways(&bench), expected, "{calls}");
            bench.run(PLACES[3], 1000, Reduction::Max);
            bench.run(PLACES[3], 1000, Reduction::Sum);
        }
        let error = Collective::prepare(
            &rank.comm,
            Kind::AllGather,
            config().with_plan(
                CollectiveProgram::new("moves", Pattern::all_gather(2, 1)).build().unwrap(),
                PlanSelector::sizes(0..=8).with_reductions([Reduction::Max]),
            ),
            soon(),
        );
        let text = error.map(drop).unwrap_err().to_string();
        assert!(
            text.contains("the plan moves is for some reductions only, and allgather has none"),
            "{text}"
        );
        rank.barrier();
    });
}

/// Settings that differ are refused on every rank, in words that name them; the communicator goes on.
#[test]
fn settings_that_differ_between_ranks_are_refused() {
    threads(
        Machine::Software,
        2,
        "built_in::given::settings_that_differ_between_ranks_are_refused",
        |rank| {
            let plan = CollectiveProgram::new("mine", Pattern::broadcast(2, 1, 0)).build().unwrap();
            let given = |other: bool| -> Vec<(&str, CollectiveConfig)> {
                let one = |small: u64, large: u64| if other { large } else { small };
                let variants = |others: &[(Element, Reduction)]| {
                    let own = [F32_SUM, (Element::F32, Reduction::Max)];
                    config().with_variants(if other { others } else { &own }.iter().copied())
                };
                vec![
                    ("i32 max", variants(&[F32_SUM, (Element::I32, Reduction::Max)])),
                    ("1 types and reductions", variants(&[F32_SUM])),
                    ("packet_bytes 65536", config().with_packet_bytes(one(65536, 65537))),
                    ("line_bytes 0", config().with_line_bytes(one(0, 4096))),
                    ("copy_bytes 1000", config().with_copy_bytes(one(1000, 100_000))),
                    ("push_bytes 1000", config().with_push_bytes(one(1000, 100_000))),
                    ("no push_bytes", if other { config() } else { config().with_push_bytes(0) }),
                    ("staging_bytes 32768", config().with_staging_bytes(one(65536, 32768) as usize)),
                    ("the plan mine for 8 to 100 bytes", config().with_plan(plan.clone(), one(8, 16)..=100)),
                    (
                        "the plan mine for 8 to 100 bytes, 2 to 2 ranks, f16",
                        config().with_plan(plan.clone(), {
                            let calls = PlanSelector::sizes(8..=100).with_ranks(2..=2);
                            calls.with_elements([if other { Element::F32 } else { Element::F16 }])
                        }),
                    ),
                    (
                        "1 plans of its own",
                        if other { config() } else { config().with_plan(plan.clone(), 1..=2) },
                    ),
                ]
            };
            let kind = || Kind::Broadcast { root: 0 };
            for (says, config) in given(rank.me() == 1) {
                let error = Collective::prepare(&rank.comm, kind(), config, soon()).map(drop).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
                assert!(error.to_string().contains(says), "{error} does not say {says}");
            }
            let root = Kind::Broadcast { root: rank.me() };
            let error = Collective::prepare(&rank.comm, root, config(), soon()).map(drop).unwrap_err();
            assert!(error.to_string().contains("broadcast of root 1"), "{error}");
            Bench::new(&rank, kind(), config().with_copy_bytes(1000)).run(PLACES[3], 1000, Reduction::Sum);
            rank.barrier();
        },
    );
}

/// A caller may give any number of bytes for slices, also one that no elements and no vectors fill.
#[test]
fn slices_of_odd_lengths() {
    threads(Machine::Software, 2, "built_in::given::slices_of_odd_lengths", |rank| {
        for (kind, way) in [(Kind::AllReduce, "two-shot"), (Kind::AllGather, "staged")] {
            let mut bench = Bench::new(&rank, kind, config().with_staging_bytes(1001));
            assert_eq!(bench.collective.algorithm(false, 1100, Element::F32, None).unwrap(), way);
            for place in [PLACES[0], PLACES[2], PLACES[4]] {
                bench.run(place, 1100, Reduction::Sum);
            }
            rank.barrier();
        }
    });
}

/// The collectives that have a root.
fn rooted(root: u32) -> [Kind; 4] {
    [Kind::Broadcast { root }, Kind::Reduce { root }, Kind::Gather { root }, Kind::Scatter { root }]
}

#[test]
fn wrong_calls_are_refused_and_do_nothing() {
    threads(Machine::Software, 2, "built_in::given::wrong_calls_are_refused_and_do_nothing", |rank| {
        let prepare =
            |kind, config| Collective::prepare(&rank.comm, kind, config, soon()).map(drop).unwrap_err();
        let says = |error: aqueduct::Error, words: &str| {
            assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
            assert!(error.to_string().contains(words), "{error} does not say {words}");
        };
        let custom = Kind::Custom("mine".into());
        says(prepare(custom, config()), "mine is no built-in collective; run its plan with plan::Executor");
        says(prepare(Kind::AllReduce, CollectiveConfig::default()), "CollectiveConfig::with_variants");
        for root in [2, u32::MAX] {
            for kind in rooted(root) {
                let words =
                    format!("{}: the root, rank {root}, is none of the 2 ranks; use at most 1", kind.name());
                says(prepare(kind, config()), &words);
            }
        }
        // The other rank does not wait for the one that fails.
        if rank.me() == 0 {
            says(prepare(Kind::AllReduce, CollectiveConfig::default()), "CollectiveConfig::with_variants");
        } else {
            let error = prepare(Kind::AllReduce, config());
            assert_eq!(error.kind(), ErrorKind::Remote, "{error}");
            assert!(error.to_string().contains("rank 0 cannot prepare the collective"), "{error}");
        }
        let other = CollectiveProgram::new("other", Pattern::send_recv(2, 1)).build().unwrap();
        says(
            prepare(Kind::AllGather, config().with_plan(other.clone(), 0..=8)),
            "the plan other is one of SendRecv",
        );
        #[expect(clippy::reversed_empty_ranges, reason = "on purpose")]
        let none = config().with_plan(other.clone(), 9..=8);
        says(prepare(Kind::SendRecv, none), "the plan other is for 9 to 8 bytes, which no message has");
        for kind in [Kind::Gather { root: 0 }, Kind::Scatter { root: 1 }] {
            says(prepare(kind, config().with_plan(other.clone(), 0..=8)), "takes no plans of users");
        }
        let variable = CollectiveProgram::new("variable", Pattern::all_to_all(2, 1)).variable_chunks(true);
        let sized = config().with_plan(variable.build().unwrap(), 0..=8);
        says(prepare(Kind::AllToAll, sized), "have sizes of their own, and calls here have one");

        let mut bench = Bench::new(&rank, Kind::ReduceScatter, config());
        let other = Bench::new(&rank, Kind::ReduceScatter, config());
        let [first, second] = bench.buffers.clone();
        let refused = |input: &DeviceSlice, output: &DeviceSlice, count, element, words: &str| {
            let (stream, op) = (&bench.stream, Reduction::Sum);
            says(bench.collective.launch(stream, input, output, count, element, op).unwrap_err(), words);
        };
        let (a, b) = (first.slice(..80).unwrap(), second.slice(..40).unwrap());
        refused(&a, &b, 19, Element::F32, "needs a multiple of 2");
        refused(&a, &b, 22, Element::F32, "needs 88 bytes of input, which has 80");
        refused(&a, &b.slice(..36).unwrap(), 20, Element::F32, "needs 40 bytes of output, which has 36");
        refused(&a.slice(2..).unwrap(), &b, 8, Element::F32, "is not aligned");
        refused(&a.slice(2..).unwrap(), &b, 18, Element::F32, "is not aligned");
        refused(&a, &b.slice(2..).unwrap(), 18, Element::F32, "is not aligned");
        refused(&a, &a.slice(4..).unwrap(), 16, Element::F32, "must lie apart");
        refused(&a, &b, 20, Element::I32, "was not prepared");
        let on =
            |buffers| bench.collective.launch_on(&bench.stream, buffers, 8, Element::F32, Reduction::Sum);
        says(on(&other.shown[0]).unwrap_err(), "shown for another collective");
        let long =
            bench.collective.launch_on(&bench.stream, &bench.shown[0], 1 << 16, Element::F32, Reduction::Sum);
        says(long.unwrap_err(), "bytes of input, which has 131072");
        // Ranks must agree whether a call on shown buffers is in place.
        let output = if rank.me() == 0 { &first } else { &second };
        let error = bench.collective.buffers(&first, output, soon()).map(drop).unwrap_err();
        says(error, "give one on all ranks or two on all");
        bench.run(PLACES[3], 5, Reduction::Sum);
        rank.barrier();
    });
}
