//! Blocks that programs give to copy engines.

use super::super::{CollectiveProgram, Pattern, ReplicationPolicy, SyncType, ThreadBlockGroup};
use crate::plan::check::check;
use crate::plan::file;

fn exchange(program: &CollectiveProgram) {
    for rank in program.ranks() {
        let (me, channel) = (rank.index(), rank.memory_channel(1 - rank.index()));
        channel.signal(1, SyncType::None);
        channel.wait(1, SyncType::After);
        rank.copy(rank.output().chunk(me), rank.input().chunk(0), &ThreadBlockGroup::new([0]));
        // A group of one shares nothing, so a copy engine can be its block.
        let there = program.rank(1 - me).output().chunk(me);
        channel.put(there, rank.input().chunk(0), &ThreadBlockGroup::new([1]));
        channel.signal(1, SyncType::Before);
        channel.wait(1, SyncType::After);
        rank.copy_engine(1);
    }
}

#[test]
fn a_block_of_a_copy_engine_stays_one_in_all_passes_and_in_files() {
    for policy in [ReplicationPolicy::Interleaved, ReplicationPolicy::None] {
        let program = CollectiveProgram::new("copies", Pattern::all_gather(2, 1));
        let program = program.instances(2).replication(policy);
        exchange(&program);
        let plan = program.compile().unwrap();
        for rank in &plan.ranks {
            let kinds: Vec<bool> = rank.blocks.iter().map(|block| block.copy_engine).collect();
            let expected = match policy {
                ReplicationPolicy::Interleaved => [false, false, true, true],
                ReplicationPolicy::None => [false, true, false, true],
            };
            assert_eq!(kinds, expected, "{policy:?}");
        }
        assert_eq!(check(&plan), []);
        assert_eq!(file::read(&file::write(&plan).unwrap()).unwrap(), plan);
    }
}

#[test]
fn a_copy_engine_without_operations_is_a_mistake() {
    let program = CollectiveProgram::new("wrong", Pattern::all_gather(2, 1));
    exchange(&program);
    let line = line!() + 1;
    program.rank(1).copy_engine(7);
    let error = program.build().unwrap_err().to_string();
    let expected =
        format!("{}:{line}:21: rank 1 gives block 7 to a copy engine, but it has no operations", file!());
    assert!(error.contains(&expected), "{error}");
}
