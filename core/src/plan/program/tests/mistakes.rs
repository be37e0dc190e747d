//! Each mistake of a call is an error with the author's line, the operation and the chunk.

use std::panic::Location;

use super::super::{
    BufferType, CollectiveProgram, Pattern, Reduction, ReplicationPolicy, SyncType, ThreadBlockGroup,
};
use crate::error::ErrorKind;
use crate::plan::check::check;
use crate::plan::{Op, Position};

/// Expects the error of a program of two ranks, in which `calls` is wrong. Returns the message behind the author's line, which
/// must be of this file.
#[track_caller]
fn refused(calls: impl FnOnce(&CollectiveProgram)) -> String {
    let program = CollectiveProgram::new("wrong", Pattern::all_reduce(2, 1));
    calls(&program);
    let error = program.build().expect_err("the program is wrong");
    assert_eq!(error.kind(), ErrorKind::Plan);
    let text = error.message();
    let behind = text.strip_prefix(file!()).unwrap_or_else(|| panic!("no line of this file: {text}"));
    let mut parts = behind.splitn(4, ':');
    let numbers = (parts.next(), parts.next(), parts.next());
    assert!(matches!(numbers, (Some(""), Some(line), Some(_)) if line.parse::<u32>().is_ok()), "{text}");
    format!("{}:{}", error.op(), parts.next().unwrap())
}

#[test]
fn a_mistake_names_its_line_and_operation() {
    let program = CollectiveProgram::new("wrong", Pattern::all_reduce(2, 1));
    let (rank, other) = (program.rank(0), program.rank(1));
    rank.copy(rank.output().chunk(0), rank.input().chunk(0), 0);
    let line = line!() + 1;
    rank.copy(rank.output().chunk(1), other.input().chunk(1), 0);
    // Later mistakes may only follow from the first.
    rank.copy(rank.output().chunk(7), rank.input().chunk(7), 0);
    let error = program.build().unwrap_err().to_string();
    let expected = format!(
        "{}:{line}:10: rank 0 block 0 operation 1: the source is input chunk 1 of rank 1; use a chunk of rank 0 here",
        file!()
    );
    assert!(error.contains(&expected), "{error}");
}

#[test]
fn chunks_of_the_wrong_rank() {
    let text = refused(|program| {
        let (rank, other) = (program.rank(0), program.rank(1));
        rank.copy(other.output().chunk(0), rank.input().chunk(0), 3);
    });
    assert_eq!(
        text,
        "Rank::copy: rank 0 block 3 operation 0: the target is output chunk 0 of rank 1; use a chunk of rank 0 here"
    );
    let text = refused(|program| {
        let rank = program.rank(0);
        let channel = rank.memory_channel(1);
        channel.signal(0, SyncType::Both);
        channel.put(rank.output().chunks(..), rank.input().chunks(..), 0);
    });
    assert_eq!(
        text,
        "MemoryChannel::put: rank 0 block 0 operation 1: the target is output chunks 0..2 of rank 0; use a chunk of rank 1 here"
    );
    let text = refused(|program| {
        let rank = program.rank(0);
        rank.memory_channel(1).get(rank.output().chunk(0), rank.input().chunk(0), 0);
    });
    assert!(text.contains("the source is input chunk 0 of rank 0; use a chunk of rank 1"), "{text}");
    let text = refused(|program| {
        let (rank, other) = (program.rank(0), program.rank(1));
        let channel = rank.memory_channel(1);
        let theirs = [other.input().chunk(0), rank.input().chunk(1)];
        channel.reduce(rank.input().chunk(0), theirs, Reduction::Sum, 0);
    });
    assert!(text.contains("the source is input chunk 1 of rank 0; use a chunk of rank 1"), "{text}");
    let text = refused(|program| {
        let (rank, other) = (program.rank(0), program.rank(1));
        rank.port_channel(1).put_with_signal(other.output().chunk(0), other.input().chunk(0), 0);
    });
    assert!(text.starts_with("PortChannel::put_with_signal: rank 0 block 0"), "{text}");
    assert!(text.contains("the source is input chunk 0 of rank 1; use a chunk of rank 0"), "{text}");
    let text = refused(|program| {
        let switch = program.switch_channel(0..2, BufferType::Input);
        switch.at_rank(1).reduce(program.rank(0).input().chunk(0), 0, Reduction::Sum, 0);
    });
    assert!(text.contains("rank 1 block 0 operation 0: the target is input chunk 0 of rank 0"), "{text}");
}

#[test]
fn ranges() {
    let text = refused(|program| {
        program.rank(1).input().chunks(1..3);
    });
    assert_eq!(text, "Buffer::chunks: chunks 1..3 do not exist; this input buffer of rank 1 has 2");
    let text = refused(|program| {
        program.rank(1).scratch(4).chunk(4);
    });
    assert_eq!(text, "Buffer::chunk: chunks 4..5 do not exist; this scratch buffer of rank 1 has 4");
    let text = refused(|program| {
        program.rank(0).output().chunk(u32::MAX);
    });
    assert!(text.contains("chunks 4294967295..4294967296 do not exist"), "{text}");
    let text = refused(|program| {
        program.rank(0).output().chunks(1..1);
    });
    assert_eq!(text, "Buffer::chunks: 1..1 are no chunks; the range must not be empty");
    let text = refused(|program| {
        program.rank(0).scratch(u32::MAX);
        program.rank(0).scratch(1);
    });
    assert_eq!(text, "Rank::scratch: 4294967295 scratch chunks and 1 more are too many");
}

#[test]
fn lengths() {
    let text = refused(|program| {
        let rank = program.rank(0);
        rank.copy(rank.output().chunks(0..2), rank.input().chunk(1), 0);
    });
    assert_eq!(
        text,
        "Rank::copy: rank 0 block 0 operation 0: the source, input chunk 1 of rank 0, is not as long as the target, output chunks 0..2 of rank 0"
    );
    let text = refused(|program| {
        let (rank, other) = (program.rank(0), program.rank(1));
        rank.port_channel(1).put(other.output().chunk(0), rank.input().chunks(..), 0);
    });
    assert!(text.contains("is not as long as the target"), "{text}");
    let text = refused(|program| {
        let rank = program.rank(0);
        rank.reduce(rank.input().chunk(0), [], Reduction::Sum, 0);
    });
    assert!(text.contains("name at least one more source"), "{text}");
}

#[test]
fn handles() {
    let text = refused(|program| {
        program.rank(2).input();
    });
    assert_eq!(text, "CollectiveProgram::rank: rank 2 is none of the program's 2 ranks");
    let text = refused(|program| {
        program.rank(0).memory_channel(0);
    });
    assert_eq!(text, "Rank::memory_channel: a channel of rank 0 to itself; name another rank");
    let text = refused(|program| {
        program.rank(0).port_channel(9);
    });
    assert_eq!(text, "Rank::port_channel: rank 9 is none of the program's 2 ranks");
    let text = refused(|program| {
        program.switch_channel([], BufferType::Input);
    });
    assert_eq!(text, "CollectiveProgram::switch_channel: a switch channel needs at least one rank");
    let text = refused(|program| {
        program.switch_channel([0, 1, 0], BufferType::Input);
    });
    assert!(text.contains("a switch channel has rank 0 twice"), "{text}");
    let text = refused(|program| {
        program.switch_channel([0, 5], BufferType::Input);
    });
    assert!(text.contains("rank 5 is none"), "{text}");
    let text = refused(|program| {
        program.switch_channel([0], BufferType::Input).at_rank(1);
    });
    assert_eq!(text, "SwitchChannel::at_rank: rank 1 is no member of this switch channel");
}

#[test]
fn blocks() {
    let copy = |program: &CollectiveProgram, group: &[u32]| {
        let (rank, group) = (program.rank(0), ThreadBlockGroup::new(group.iter().copied()));
        rank.copy(rank.output().chunk(0), rank.input().chunk(0), &group);
    };
    let text = refused(|program| copy(program, &[0, 1, 0]));
    assert_eq!(text, "Rank::copy: a thread block group has block 0 twice; name each once");
    let text = refused(|program| copy(program, &[]));
    assert_eq!(text, "Rank::copy: a thread block group needs at least one block");
    let text = refused(|program| program.rank(0).barrier([3, 3]));
    assert_eq!(text, "Rank::barrier: a barrier has block 3 twice; name each once");
    let text = refused(|program| program.rank(0).barrier([]));
    assert_eq!(text, "Rank::barrier: a barrier needs at least one block");
    let text = refused(|program| program.rank(1).barrier([1_000_000]));
    assert_eq!(
        text,
        "CollectiveProgram::build: rank 1 has operations of block 1000000, but none of block 0; number its blocks from 0 without gaps"
    );
}

#[test]
fn loops() {
    let text = refused(|program| program.loop_of(1, 1, || program.loop_of(1, 1, || ())));
    assert_eq!(text, "CollectiveProgram::loop_of: a loop cannot stand in a loop; end the outer one first");
    for (unit, chunks) in [(0, 1), (1, 0)] {
        let text = refused(|program| program.loop_of(unit, chunks, || ()));
        assert!(text.contains("a loop needs a unit of at least one byte and at least one chunk"), "{text}");
    }
    let text = refused(|program| {
        let (rank, other) = (program.rank(0), program.rank(1));
        rank.barrier([0]);
        program.loop_of(16, 2, || {
            rank.barrier([0]);
            rank.copy(rank.output().chunks(..), other.input().chunks(..), 0);
        });
    });
    assert!(text.contains("rank 0 block 0 operation 1 (operation 1 of its loop): the source is"), "{text}");
    let text = refused(|program| {
        let rank = program.rank(0);
        program.loop_of(16, 1, || rank.copy(rank.output().chunks(..), rank.input().chunks(..), 0));
    });
    let expected =
        "rank 0 block 0 operation 0 (operation 0 of its loop): the operation is of 2 chunks in a loop over 1";
    assert!(text.contains(expected), "{text}");
}

/// The check of structure finds the others; their lines are known, too.
#[test]
fn structure() {
    let text = refused(|program| {
        let (rank, other) = (program.rank(0), program.rank(1));
        other.memory_channel(0);
        rank.memory_channel(1).put_packets(other.output().chunk(0), rank.input().chunk(0), 0);
    });
    assert_eq!(
        text,
        "CollectiveProgram::build: operands: rank 0 block 0 operation 0: packets lie in scratch only; the user's buffers hold plain data"
    );
    let text = refused(|program| {
        let switch = program.switch_channel(0..2, BufferType::Input);
        switch.at_rank(0).broadcast(1, program.rank(0).input().chunks(..), 0);
    });
    assert!(text.contains("chunks 1..3 do not exist; the buffer has 2"), "{text}");
    let built = |program: CollectiveProgram| program.build().unwrap_err().to_string();
    let program = CollectiveProgram::new("wrong", Pattern::all_reduce(2, 1));
    program.rank(0).memory_channel(1);
    let text = built(program);
    assert!(text.contains("Memory channel 0 of rank 0 leads to rank 1, which has no channel"), "{text}");
    let program = || CollectiveProgram::new("wrong", Pattern::all_reduce(2, 1));
    assert!(built(program().threads_per_block(100)).contains("100 threads per block"));
    assert!(built(program().alignment(3)).contains("an alignment of 3 bytes"));
    assert!(built(program().message_bytes(2, 1)).contains("the smallest message, 2 bytes, is larger"));
    assert!(built(program().instances(0)).contains("0 instances"));
    let of = |pattern: Pattern| built(CollectiveProgram::new("wrong", pattern));
    assert!(of(Pattern::all_reduce(0, 1)).contains("the plan has no ranks"));
    assert!(of(Pattern::all_gather(2, 0)).contains("0 input and 0 output chunks"));
    assert!(of(Pattern::broadcast(2, 1, 2)).contains("the root, rank 2, is none"));
    assert!(of(Pattern::all_reduce(u32::MAX, 1)).contains("4294967295 ranks"));
}

/// Findings of the check lead back to the author's lines, also in loops.
#[test]
fn findings_have_lines() {
    let program = CollectiveProgram::new("race", Pattern::all_reduce(1, 2));
    let rank = program.rank(0);
    let line = line!() + 4;
    program.loop_of(16, 1, || {
        let (input, output) = (rank.input(), rank.output());
        rank.copy(output.chunk(0), input.chunk(0), 0);
        rank.copy(output.chunk(1), output.chunk(0), 0);
    });
    rank.barrier([0]);
    rank.copy(rank.output().chunks(..), rank.input().chunks(..), 0);
    let lines = program.lines();
    let position = |op, inner| Position { rank: 0, block: 0, op, inner };
    let line_of = |position: Position| lines.at(&position).map(Location::line);
    assert_eq!(line_of(position(0, None)), Some(line - 3));
    assert_eq!(line_of(position(0, Some(1))), Some(line));
    assert_eq!(line_of(position(1, None)), Some(line + 2));
    assert_eq!(line_of(position(3, None)), None);
    assert_eq!(line_of(position(1, Some(0))), None);
    assert_eq!(line_of(Position { block: 1, ..position(0, None) }), None);
    let findings = check(&program.build().unwrap());
    let explained = lines.explain(&findings[0]);
    let expected =
        format!("{}:{line}:14: race: rank 0 block 0 operation 0 (operation 1 of its loop)", file!());
    assert!(explained.starts_with(&expected), "{explained}");
}

/// `compile` gives up blocks without work and numbers the others densely; the lines follow.
#[test]
fn blocks_behind_an_idle_one_keep_their_lines() {
    for policy in [ReplicationPolicy::Interleaved, ReplicationPolicy::None] {
        let program = CollectiveProgram::new("lines", Pattern::all_reduce(1, 1));
        let rank = program.rank(0);
        rank.barrier([0]);
        program.loop_of(16, 1, || rank.barrier([1]));
        let line = line!() + 1;
        rank.copy(rank.output().chunk(0), rank.input().chunk(0), 2);
        let program = program.instances(2).replication(policy);
        let lines = program.compiled_lines();
        let plan = program.compile().unwrap();
        assert_eq!(plan.ranks[0].blocks.len(), 2);
        for block in 0..2 {
            let found = lines.at(&Position { rank: 0, block, op: 0, inner: None }).map(Location::line);
            assert_eq!(found, Some(line), "{policy:?} block {block}");
        }
    }
}

/// A number of instances that `compile` refuses takes no memory before that.
#[test]
fn lines_of_too_many_instances_are_cut() {
    for policy in [ReplicationPolicy::Interleaved, ReplicationPolicy::None] {
        let program = CollectiveProgram::new("lines", Pattern::all_reduce(1, 1));
        let rank = program.rank(0);
        rank.copy(rank.output().chunk(0), rank.input().chunk(0), 0);
        let program = program.instances(1_000_000).replication(policy);
        let at = |block| Position { rank: 0, block, op: 0, inner: None };
        let lines = program.compiled_lines();
        assert!(lines.at(&at(295)).is_some());
        assert!(lines.at(&at(296)).is_none());
        assert_eq!(program.compile().unwrap_err().kind(), ErrorKind::Plan);
    }
}

/// Instances keep the lines of what they are copies of.
#[test]
fn instances_have_lines() {
    for policy in [ReplicationPolicy::Interleaved, ReplicationPolicy::None] {
        let program = CollectiveProgram::new("lines", Pattern::all_reduce(1, 2));
        let (rank, line) = (program.rank(0), line!());
        rank.copy(rank.output().chunk(0), rank.input().chunk(0), 0);
        rank.copy(rank.output().chunk(1), rank.input().chunk(1), 1);
        let program = program.instances(3).replication(policy);
        let lines = program.compiled_lines();
        let plan = program.compile().unwrap();
        for (block, contents) in (0..).zip(&plan.ranks[0].blocks) {
            let Op::Move(moved) = &contents.ops[0].op else { panic!("{contents:?}") };
            let chunk = moved.sources[0].first;
            let old = if policy == ReplicationPolicy::None { chunk % 2 } else { chunk / 3 };
            let found = lines.at(&Position { rank: 0, block, op: 0, inner: None }).map(Location::line);
            assert_eq!(found, Some(line + 1 + old), "{policy:?} block {block}");
        }
        assert_eq!(plan.ranks[0].blocks.len(), 6);
    }
}

/// The example of `docs/plans.md` without the pair of relaxed signal and wait has the finding that the document shows.
#[test]
fn the_documented_finding() {
    let n = 4;
    let program = CollectiveProgram::new("ring", Pattern::all_gather(n, 1));
    let mut line = 0;
    for rank in program.ranks() {
        let r = rank.index();
        let (next, before) = ((r + 1) % n, (r + n - 1) % n);
        let (to, from) = (rank.memory_channel(next), rank.memory_channel(before));
        let (mine, theirs) = (rank.output(), program.rank(next).output());
        line = line!() + 1;
        rank.copy(mine.chunk(r), rank.input().chunk(0), 0);
        for step in 0..n - 1 {
            let chunk = (r + n - step) % n;
            to.put(theirs.chunk(chunk), mine.chunk(chunk), 0);
            to.signal(0, SyncType::Before);
            from.wait(0, SyncType::After);
        }
    }
    let lines = program.compiled_lines();
    let findings = check(&program.compile().unwrap());
    let expected =
        format!("{}:{line}:14: reuse: rank 0 block 0 operation 0: output chunk 0 of rank 1: ", file!());
    let explained: Vec<String> = findings.iter().map(|finding| lines.explain(finding)).collect();
    assert!(explained.iter().any(|text| text.starts_with(&expected)), "{explained:#?}");
}
