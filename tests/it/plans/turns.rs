//! Plans of which each fills the devices, called by every rank in an order of its own.

use aqueduct::plan::pass::{Policy, replicate};

use super::*;

const COUNT: usize = 12_000;

/// An all-reduce whose blocks all wait for those of the peers.
fn plan(ranks: u32, blocks: u32) -> aqueduct::Result<Plan> {
    replicate(&programs::wide(ranks), blocks, Policy::Interleaved)
}

/// The largest of these plans that the devices run.
fn largest(rank: &Rank) -> Plan {
    let ranks = rank.comm.size();
    // A plan may have fewer blocks than fit a device.
    let fits = |blocks: u32| {
        plan(ranks, blocks).is_ok_and(|plan| Executor::prepare(&rank.comm, &plan, config(), soon()).is_ok())
    };
    let (mut low, mut high) = (1, 512);
    while high - low > 1 {
        let middle = u32::midpoint(low, high);
        *(if fits(middle) { &mut low } else { &mut high }) = middle;
    }
    plan(ranks, low).unwrap()
}

/// Which executor comes first, on each rank and in each round another one.
fn first(rank: &Rank, round: u32, of: usize) -> usize {
    mix(rank.me(), round, 0) as usize % of
}

fn run(rank: &Rank) {
    const EXECUTORS: usize = 3;
    // An interpreter takes a while for so many blocks.
    let rounds = if rank.comm.context().driver().is_software() { 2 } else { 20 };
    let plan = largest(rank);
    // All on the same buffers, so that calls which nothing orders would be a race.
    let mut benches = vec![Bench::new(rank, &plan, config())];
    while benches.len() < EXECUTORS {
        let buffers = [&benches[0].input, &benches[0].output].map(Arc::clone);
        benches.push(Bench::on(rank, &plan, config(), buffers));
    }
    let order = |round| {
        let first = first(rank, round, EXECUTORS);
        (0..EXECUTORS).map(move |nth| (first + nth) % EXECUTORS)
    };
    let begin = |benches: &mut Vec<Bench<'_>>| {
        for bench in benches {
            bench.call += 1;
            bench.begin(COUNT);
        }
        rank.barrier();
    };
    let end = |benches: &[Bench<'_>], op| {
        benches.iter().for_each(|bench| bench.stream.synchronize(soon()).unwrap());
        benches.iter().for_each(|bench| bench.check(COUNT, op));
        rank.barrier();
    };
    for round in 0..rounds {
        begin(&mut benches);
        order(round).for_each(|nth| benches[nth].enqueue(COUNT, Reduction::Sum).unwrap());
        end(&benches, Reduction::Sum);
    }
    // Without the host in between. A maximum gives the same result again.
    begin(&mut benches);
    for round in 0..10 * rounds {
        order(round).for_each(|nth| benches[nth].enqueue(COUNT, Reduction::Max).unwrap());
    }
    end(&benches, Reduction::Max);
    // By threads, of which each has one executor.
    begin(&mut benches);
    std::thread::scope(|scope| {
        for bench in &benches {
            scope.spawn(move || (0..5 * rounds).for_each(|_| bench.enqueue(COUNT, Reduction::Max).unwrap()));
        }
    });
    end(&benches, Reduction::Max);
    let capture = |bench: &Bench<'_>| {
        let call = |_: &Stream| bench.enqueue(COUNT, Reduction::Sum);
        GraphExec::capture(&bench.stream, CaptureMode::ThreadLocal, call).unwrap()
    };
    let graphs: Vec<_> = benches.iter().map(capture).collect();
    for round in 0..rounds {
        begin(&mut benches);
        order(round).for_each(|nth| graphs[nth].launch(&benches[nth].stream).unwrap());
        end(&benches, Reduction::Sum);
    }
    rank.barrier();
}

/// Calls of two small executors on one stream, of which one takes turns: what a turn costs a GPU.
fn compare(rank: &Rank) {
    const CALLS: u32 = 500;
    let ranks = rank.comm.size();
    let full = largest(rank);
    // They fill the devices, and are not called.
    let _full = [(); 2].map(|()| Executor::prepare(&rank.comm, &full, config(), soon()).unwrap());
    let small = programs::packets(ranks);
    let in_turns = Bench::new(rank, &small, config());
    let buffers = [&in_turns.input, &in_turns.output].map(Arc::clone);
    let in_order = Bench::on(rank, &small, config().in_call_order(), buffers);
    let mut costs = [f64::INFINITY; 2];
    for _ in 0..5 {
        for (bench, best) in [&in_order, &in_turns].into_iter().zip(&mut costs) {
            let graph = rank
                .capture(&bench.stream, |_| (0..CALLS).try_for_each(|_| bench.enqueue(256, Reduction::Max)));
            graph.launch(&bench.stream).unwrap();
            bench.stream.synchronize(soon()).unwrap();
            rank.barrier();
            let begin = std::time::Instant::now();
            graph.launch(&bench.stream).unwrap();
            bench.stream.synchronize(soon()).unwrap();
            *best = best.min(begin.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS));
            rank.barrier();
        }
    }
    let [plain, turn] = costs;
    if rank.me() == 0 {
        aqueduct_tests::report(&format!(
            "turns: a call of 1 KiB takes {plain:.2} us in order and {turn:.2} us in turns, of {CALLS} in a graph"
        ));
    }
    assert!(plain < turn && turn < 200.0, "{plain} us in order, {turn} us in turns");
}

macro_rules! groups {
    ($($module:ident $machine:ident { $($name:ident $kind:ident $ranks:literal $(#[$ignore:meta])?;)+ })+) => {
        $(mod $module {
            use super::*;
            $(#[test]
            $(#[$ignore])?
            fn $name() {
                let name = concat!("plans::turns::", stringify!($module), "::", stringify!($name));
                $kind(Machine::$machine, $ranks, name, |rank| run(&rank));
            })+
        })+
    };
}

groups! {
    soft Software {
        two_threads threads 2;
        three_processes processes 3;
    }
    hardware Hardware {
        two_threads threads 2 #[ignore = "needs two NVIDIA GPUs"];
        two_processes processes 2 #[ignore = "needs two NVIDIA GPUs"];
        four_processes processes 4 #[ignore = "needs four NVIDIA GPUs"];
    }
}

#[test]
#[ignore = "needs two NVIDIA GPUs"]
fn a_turn_costs_two_gpus() {
    processes(Machine::Hardware, 2, "plans::turns::a_turn_costs_two_gpus", |rank| compare(&rank));
}
