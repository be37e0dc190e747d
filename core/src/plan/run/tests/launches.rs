//! How many blocks of how many threads a call takes.

use aqueduct_ptx::abi::PlanArgs;

use super::super::super::program::{CollectiveProgram, Pattern, ThreadBlockGroup};
use super::super::super::{Plan, Protocol};
use super::{Element, Executor, ExecutorConfig, LIMIT, alone, close, everywhere, ranks};

const BLOCKS: u32 = 16;

/// An all-gather of packets by up to [`BLOCKS`] blocks.
fn plan(protocol: Protocol, threads: u32) -> Plan {
    let program = CollectiveProgram::new("all-gather packets", Pattern::all_gather(2, 1))
        .threads_per_block(threads)
        .protocol(protocol)
        .double_scratch(true);
    let group = ThreadBlockGroup::new(0..BLOCKS);
    let scratch: Vec<_> = program.ranks().map(|rank| rank.scratch(1)).collect();
    for rank in program.ranks() {
        let (me, peer) = (rank.index(), 1 - rank.index());
        let come = scratch[me as usize].chunk(0);
        rank.memory_channel(peer).put_packets(scratch[peer as usize].chunk(0), rank.input().chunk(0), &group);
        rank.unpack_packets(rank.output().chunk(peer), come, &group);
        rank.copy(rank.output().chunk(me), rank.input().chunk(0), &group);
    }
    program.compile().unwrap()
}

/// Each thread that waits has one packet of 8 bytes, and each warp one unit of lines, while there are blocks, as long as blocks are small.
#[test]
fn blocks_have_a_packet_for_each_thread_that_waits() {
    let _alone = alone();
    let comms = ranks(2);
    // Vectors of 16 bytes, blocks and threads.
    let packets = [(1, 1, 128), (64, 1, 128), (65, 2, 128), (1024, 16, 128), (2048, 16, 128), (2049, 9, 480)];
    let lines = [(1, 1, 128), (240, 1, 128), (241, 2, 128), (3840, 16, 128), (3841, 5, 480), (9999, 12, 480)];
    for (protocol, sizes) in [(Protocol::Ll, packets), (Protocol::Ll128, lines)] {
        let threads = 480;
        let prepare = |comm: &_| {
            let config = ExecutorConfig::default().with_max_bytes(1 << 17);
            Executor::prepare(comm, &plan(protocol, threads), config, LIMIT)
        };
        for executor in everywhere(&comms, prepare) {
            let executor = executor.unwrap();
            let kernel = executor.inner.kernel((Element::U8, None), false).unwrap().expect("it has moves");
            for (vectors, blocks, few) in sizes {
                let mut args = PlanArgs { vectors, ..PlanArgs::default() };
                let (_, config) = kernel.launch(&mut args);
                let found = [config.grid[0], config.block[0]];
                assert_eq!(found, [blocks, few], "{vectors} vectors by {threads} threads, {protocol:?}");
            }
        }
    }
    close(&comms);
}
