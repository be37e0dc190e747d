//! Calls at the end of a lap of flags.

use aqueduct_ptx::plan::Base;

use super::super::super::program::{CollectiveProgram, Pattern, Protocol, SyncType};
use super::super::super::{Plan, samples};
use super::super::lower::Control;
use super::{ExecutorConfig, LIMIT, Rig, alone, close, ranks};
use crate::comm::Transport;

/// All-gather: packets go to ranks of the same half through memory, and are put to the others by proxies.
fn gathered(ranks: u32) -> Plan {
    let program = CollectiveProgram::new("gathered", Pattern::all_gather(ranks, 1))
        .protocol(Protocol::Ll)
        .threads_per_block(64)
        .double_scratch(true);
    let scratch: Vec<_> = program.ranks().map(|rank| rank.scratch(ranks)).collect();
    for rank in program.ranks() {
        let (me, input) = (rank.index(), rank.input().chunk(0));
        let (own, there) = (scratch[me as usize].chunk(me), |peer: u32| scratch[peer as usize].chunk(me));
        let (near, far): (Vec<_>, Vec<_>) = rank.peers().partition(|peer| peer / 2 == me / 2);
        let far: Vec<_> = far.into_iter().map(|peer| rank.port_channel(peer)).collect();
        rank.copy_packets(own, input, 0);
        far.iter().for_each(|channel| channel.put_packets(there(channel.peer()), own, 0));
        near.into_iter().for_each(|peer| rank.memory_channel(peer).put_packets(there(peer), input, 0));
        rank.copy(rank.output().chunk(me), input, 0);
        for peer in rank.peers() {
            rank.unpack_packets(rank.output().chunk(peer), scratch[me as usize].chunk(peer), 0);
        }
        far.iter().for_each(|channel| channel.flush(0, SyncType::Before));
    }
    program.compile().unwrap()
}

/// Scratch is full of packets as the lap before could have left them.
#[test]
fn packets_that_proxies_put_pass_the_end_of_a_lap() {
    const BEFORE: u64 = 3;
    let _alone = alone();
    for plan in [samples::port_packets(), gathered(4)] {
        for transport in [Transport::CudaIpc, Transport::Ethernet] {
            let comms = ranks(plan.ranks.len());
            let config = |_| ExecutorConfig::default().with_port_transport(transport);
            let mut rig = Rig::of_config(&comms, &plan, 1000, &[None], config).unwrap();
            for (rank, executor) in (0..).zip(&rig.executors) {
                let arena = &executor.prepared().arena;
                let buffer = arena.buffer();
                let packets = arena.offset(rank, Base::Packets) as usize;
                // Each word has the flag of one of the next lap's first calls: 2 to 7.
                let stale: Vec<u64> = (0..(buffer.len() - packets) as u64 / 8)
                    .map(|i| (2 + i / 2 % 6) << 32 | 0xdead_0000 | i)
                    .collect();
                buffer.upload(packets, &stale, LIMIT).unwrap();
                let calls = Control::of(&plan, &plan.ranks[rank as usize]).unwrap().calls() as usize;
                buffer.upload(calls, &[u64::from(u32::MAX) - BEFORE], LIMIT).unwrap();
            }
            for call in 0..BEFORE + 8 {
                rig.as_simulated([960, 4, 96][call as usize % 3], None);
            }
            drop(rig);
            close(&comms);
        }
    }
}
