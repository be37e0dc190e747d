//! Every element type and reduction through plans of every way to move data: kernels against the simulator, and against the definition of the
//! collective, with which neither shares code.

use std::sync::Arc;

use aqueduct::gpu::{GpuBuffer, Stream};
use aqueduct::plan::{
    Element, Executor, ExecutorConfig, Plan, PlanBuffers, Protocol, Reduction, programs, simulate,
};

use super::programs::{lines, packets, zero_copy};
use super::{CANARY, GUARD};
use crate::data::{all_variants, assert_same, elements, outputs, variants};
use crate::group::{Machine, Rank, soon, threads};

/// Vectors of which each of a block's threads has several.
const MANY: usize = 1100;

struct Bench<'a> {
    rank: &'a Rank,
    executor: Executor,
    stream: Stream,
    input: Arc<GpuBuffer>,
    output: Arc<GpuBuffer>,
    shown: Option<PlanBuffers>,
    call: u32,
}

impl Bench<'_> {
    fn run(&mut self, count: usize, (ty, op): (Element, Reduction)) {
        self.call += 1;
        let (me, plan, kind) = (self.rank.me(), self.executor.plan(), &self.executor.plan().collective.kind);
        let inputs: Vec<_> =
            (0..self.rank.comm.size()).map(|rank| elements(ty, rank, self.call, count)).collect();
        let what = format!("{}, rank {me}: {} {} of {count}", plan.name, ty.name(), op.name());
        let config = simulate::Config { seed: u64::from(self.call), reduction: Some(op) };
        let simulated =
            simulate::run_bytes(plan, ty, std::slice::from_ref(&inputs), config).expect("the plan is right");
        let simulated = &simulated[0][me as usize];
        // Reals of two ranks are rounded once, whatever their order.
        let defined = &outputs(kind, ty, op, &inputs)[me as usize];
        if let Some(defined) = defined {
            assert_same(simulated, defined, format_args!("the simulator: {what}"));
        }

        // Peers write into shown buffers once they have begun the call, and so before this rank has.
        self.output.fill(CANARY, soon()).unwrap();
        self.input.upload(0, &inputs[me as usize], soon()).unwrap();
        self.rank.barrier();
        match &self.shown {
            Some(shown) => self.executor.execute_on(&self.stream, shown, count, ty, op),
            None => {
                let [input, output] = [&self.input, &self.output].map(|buffer| buffer.slice(..).unwrap());
                self.executor.execute(&self.stream, &input, &output, count, ty, op)
            }
        }
        .unwrap();
        self.stream.synchronize(soon()).unwrap();
        let mut seen = vec![0; simulated.len() + GUARD];
        self.output.download(0, &mut seen, soon()).unwrap();
        let (result, behind) = seen.split_at(simulated.len());
        if defined.is_some() {
            assert_same(result, simulated, format_args!("{what}"));
        }
        assert_eq!(behind, [CANARY; GUARD], "{what}: behind the output");
        self.rank.barrier();
    }
}

/// Sizes around the ends of vectors, chunks, packets and LL128 units.
fn counts(plan: &Plan, ty: Element) -> Vec<usize> {
    let (chunks, vector) = (plan.ranks[0].input_chunks as usize, 16 / ty.bytes());
    let mut counts =
        vec![1, vector - 1, vector + 1, chunks * vector - 1, chunks * vector + 1, MANY * vector + 1];
    if plan.settings.protocol == Protocol::Ll128 {
        counts.extend([60 * vector - 1, 60 * vector + 1]);
    }
    counts
}

fn types(rank: &Rank, machine: Machine) {
    let ranks = rank.comm.size();
    let all = if machine == Machine::Hardware { all_variants() } else { variants(ranks) };
    let compiled = |collective: &str, name: &str| {
        let program = programs::find(collective, Some(name)).unwrap();
        program.program(ranks, &programs::Choices::default()).unwrap().compile().unwrap()
    };
    let plans = [
        packets(ranks),
        lines(ranks),
        zero_copy(ranks),
        compiled("all-reduce", "ring"),
        compiled("reduce", "direct"),
    ];
    for plan in plans {
        // Compiled before the deadline.
        for variants in all.chunks(8) {
            let config = ExecutorConfig::default().with_max_bytes(1 << 16);
            let config = config.with_variants(variants.iter().map(|&(ty, op)| (ty, Some(op))));
            let executor = Executor::prepare(&rank.comm, &plan, config, soon()).unwrap();
            let input = rank.buffer((1 << 16) + GUARD);
            let output =
                if plan.collective.in_place { input.clone() } else { rank.buffer((1 << 16) + GUARD) };
            let shows = executor.reaches_buffers();
            let shown = shows.then(|| executor.prepare_buffers(&input, &output, soon()).unwrap());
            let stream = Stream::new(rank.comm.context()).unwrap();
            let mut bench = Bench { rank, executor, stream, input, output, shown, call: 0 };
            for &variant in variants {
                counts(&plan, variant.0).into_iter().for_each(|count| bench.run(count, variant));
            }
            rank.barrier();
        }
    }
}

#[test]
fn some_on_the_software_device() {
    let test = "plans::types::some_on_the_software_device";
    threads(Machine::Software, 2, test, |rank| types(&rank, Machine::Software));
}

mod hardware {
    use super::*;

    #[test]
    #[ignore = "needs two NVIDIA GPUs"]
    fn all_of_two_ranks() {
        let test = "plans::types::hardware::all_of_two_ranks";
        threads(Machine::Hardware, 2, test, |rank| types(&rank, Machine::Hardware));
    }
}
