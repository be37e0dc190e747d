//! Every element type and reduction of the collectives that reduce, by each way.

use std::sync::Arc;

use aqueduct::collective::{Collective, CollectiveBuffers};
use aqueduct::gpu::{GpuBuffer, Stream};
use aqueduct::plan::{Element, Kind, Reduction};

use super::{CANARY, PACKETS, config};
use crate::data::{all_variants, assert_same, elements, outputs, variants};
use crate::group::{Machine, Rank, soon};

struct Bench<'a> {
    rank: &'a Rank,
    collective: Collective,
    stream: Stream,
    buffers: [Arc<GpuBuffer>; 2],
    shown: CollectiveBuffers,
    call: u32,
}

impl Bench<'_> {
    /// A call whose output has `part` elements, by the way that its size and its buffers lead to.
    fn run(&mut self, (ty, op): (Element, Reduction), part: usize, shown: bool, way: &str) {
        self.call += 1;
        let (me, ranks) = (self.rank.me(), self.rank.comm.size());
        let kind = self.collective.kind();
        let count = if *kind == Kind::ReduceScatter { part * ranks as usize } else { part };
        let inputs: Vec<_> = (0..ranks).map(|rank| elements(ty, rank, self.call, count)).collect();
        let [input, output] = &self.buffers;
        input.upload(0, &inputs[me as usize], soon()).unwrap();
        output.fill(CANARY, soon()).unwrap();
        let what = format!("{kind:?} of {ranks}, rank {me}: {} {} of {count}, {way}", ty.name(), op.name());
        if shown {
            assert_eq!(self.collective.algorithm_on(&self.shown, count, ty, None).unwrap(), way, "{what}");
            self.collective.launch_on(&self.stream, &self.shown, count, ty, op).unwrap();
        } else {
            assert_eq!(self.collective.algorithm(false, count, ty, None).unwrap(), way, "{what}");
            let (input, output) = (input.slice(..count * ty.bytes()), output.slice(..part * ty.bytes()));
            self.collective.launch(&self.stream, &input.unwrap(), &output.unwrap(), count, ty, op).unwrap();
        }
        self.stream.synchronize(soon()).unwrap();
        // With bytes behind it, which nobody may touch.
        let mut seen = vec![0; part * ty.bytes() + 64];
        output.download(0, &mut seen, soon()).unwrap();
        let mut expected = vec![CANARY; seen.len()];
        if let Some(output) = &outputs(kind, ty, op, &inputs)[me as usize] {
            expected[..output.len()].copy_from_slice(output);
        }
        assert_same(&seen, &expected, format_args!("{what}"));
    }
}

/// Each type and reduction as packets, through memory of the library's own, and between buffers that were shown to the peers.
fn types(rank: &Rank, machine: Machine) {
    let ranks = rank.comm.size();
    // The smallest group that exchanges anything has all, where no driver takes half a second for each kernel of each way.
    let variants = if ranks == 2 && machine == Machine::Software { all_variants() } else { variants(ranks) };
    for kind in [Kind::AllReduce, Kind::ReduceScatter, Kind::Reduce { root: ranks - 1 }] {
        let hidden = if kind == Kind::AllReduce { "two-shot" } else { "staged" };
        // Compiled before the deadline.
        for variants in variants.chunks(6) {
            let config = config().with_variants(variants.to_vec());
            let collective = Collective::prepare(&rank.comm, kind.clone(), config, soon()).unwrap();
            let buffers = [rank.buffer(1 << 15), rank.buffer(1 << 15)];
            let shown = collective.buffers(&buffers[0], &buffers[1], soon()).unwrap();
            let stream = Stream::new(rank.comm.context()).unwrap();
            let mut bench = Bench { rank, collective, stream, buffers, shown, call: 0 };
            for variant in variants {
                let vector = 16 / variant.0.bytes();
                let most = PACKETS as usize / variant.0.bytes();
                bench.run(*variant, vector + 1, false, "packets");
                bench.run(*variant, most + 3, false, hidden);
                bench.run(*variant, most + vector - 1, true, "zero-copy");
            }
            rank.barrier();
        }
    }
}

macro_rules! instances {
    ($($machine:ident $which:ident: $($ranks:literal $name:ident $(#[$ignored:meta])?,)+)+) => {$(
        mod $machine {
            use super::types;
            use crate::group::{Machine, threads};
            $(#[test]
            $(#[$ignored])?
            fn $name() {
                let name = concat!("built_in::types::", stringify!($machine), "::", stringify!($name));
                threads(Machine::$which, $ranks, name, |rank| types(&rank, Machine::$which));
            })+
        }
    )+};
}

// Ranks that are processes share memory differently but reduce alike.
instances! {
    soft Software: 2 two_threads, 3 three_threads,
    hardware Hardware:
        2 two_threads #[ignore = "needs two NVIDIA GPUs"],
        3 three_threads #[ignore = "needs three NVIDIA GPUs"],
}
