//! Calls at the end of a lap of flags.

use aqueduct_ptx::plan::Base;

use super::super::super::samples;
use super::super::lower::Control;
use super::{LIMIT, Rig, alone, close, ranks};

/// Two ranks that map nothing of each other: their scratch is full of packets as the lap before could have left them.
#[test]
fn packets_that_proxies_put_pass_the_end_of_a_lap() {
    const BEFORE: u64 = 3;
    let _alone = alone();
    let (comms, plan) = (ranks(2), samples::port_packets());
    assert!(plan.ranks.iter().all(|rank| rank.mapped().next().is_none()));
    let mut rig = Rig::new(&comms, &plan, 1000, &[None]).unwrap();
    for (rank, executor) in (0..).zip(&rig.executors) {
        let arena = &executor.prepared().arena;
        let buffer = arena.buffer();
        let packets = arena.offset(rank, Base::Packets) as usize;
        let stale: Vec<u64> = (0..(buffer.len() - packets) as u64 / 8)
            .map(|i| (2 + i / 2 % 6) << 32 | 0xdead_0000 | i)
            .collect();
        buffer.upload(packets, &stale, LIMIT).unwrap();
        let calls = Control::of(&plan, &plan.ranks[rank as usize]).unwrap().calls() as usize;
        buffer.upload(calls, &[u64::from(u32::MAX) - BEFORE], LIMIT).unwrap();
    }
    // The next lap's flags begin with 2, and what was left has 2 to 7.
    for call in 0..BEFORE + 8 {
        rig.as_simulated([960, 4, 96][call as usize % 3], None);
    }
    drop(rig);
    close(&comms);
}
