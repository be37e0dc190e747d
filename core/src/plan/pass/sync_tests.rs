//! Each dependence alone, on a block of rank 0 beside a block that shares memory with it.

use super::super::samples::moved;
use super::super::{
    Barrier, Block, Buffer, Channel, ChannelKind, Collective, Form, Kind, Loop, Op, Operand, Operation, Plan,
    PortPut, RankPlan, Settings,
};
use super::sync;

const INPUT: Buffer = Buffer::Input;
const SCRATCH: Buffer = Buffer::Scratch;

fn local(first: u32) -> Operand {
    Operand::local(SCRATCH, first)
}

/// Two ranks of 8 chunks. Block 1 of rank 0 reads scratch chunk 7 and writes scratch chunk 6.
fn plan(ops: Vec<Op>) -> Plan {
    let block = |ops: Vec<Op>| Block::new((0..).zip(ops).map(|(origin, op)| op.at(origin)).collect());
    let rank = |peer| RankPlan {
        input_chunks: 8,
        output_chunks: 8,
        scratch_chunks: 8,
        memory_channels: vec![peer],
        port_channels: vec![peer],
        semaphores: vec![0],
        ..RankPlan::default()
    };
    let other = block(vec![moved(&[local(7)], &[local(6)], 1)]);
    let ranks = vec![RankPlan { blocks: vec![block(ops), other], ..rank(1) }, rank(0)];
    Plan {
        name: "dependences".into(),
        collective: Collective { kind: Kind::AllReduce, in_place: true },
        settings: Settings::default(),
        ranks,
    }
}

/// Block 0 after the pass, a letter for each operation: `|` is a sync.
fn letters(ops: Vec<Op>) -> String {
    fn text(ops: &[Operation]) -> String {
        let letter = |operation: &Operation| match &operation.op {
            Op::Sync => "|".into(),
            Op::Barrier(_) => "B".into(),
            Op::Signal { .. } => "s".into(),
            Op::Wait { .. } => "w".into(),
            Op::Flush { .. } => "f".into(),
            Op::Acquire { .. } => "a".into(),
            Op::Release { .. } => "r".into(),
            Op::Move(_) => "m".into(),
            Op::Port(_) => "p".into(),
            Op::Loop(repeated) => format!("({})", text(&repeated.body)),
        };
        ops.iter().map(letter).collect::<Vec<String>>().concat()
    }
    let placed = sync(&plan(ops)).unwrap();
    assert_eq!(sync(&placed).unwrap(), placed);
    text(&placed.ranks[0].blocks[0].ops)
}

fn copy(from: Operand, to: Operand) -> Op {
    moved(&[from], &[to], 1)
}

fn memory() -> Channel {
    Channel { kind: ChannelKind::Memory, index: 0 }
}

fn signal(relaxed: bool) -> Op {
    Op::Signal { channel: memory(), relaxed }
}

fn wait() -> Op {
    Op::Wait { channel: memory() }
}

fn put(source: u32, form: Form, forward: bool) -> Op {
    let (source, target) = ((SCRATCH, source), (SCRATCH, 5));
    let (signal, flush) = (false, false);
    Op::Port(Box::new(PortPut { channel: 0, source, target, count: 1, form, forward, signal, flush }))
}

fn looped(body: Vec<Op>) -> Op {
    let body = (0..).zip(body).map(|(origin, op)| op.at(origin)).collect();
    Op::Loop(Box::new(Loop { unit: 64, chunks: 1, body }))
}

#[test]
fn moves() {
    let [a, b, c, d] = [0, 1, 2, 3].map(local);
    assert_eq!(letters(vec![copy(a, b), copy(c, d)]), "mm", "nothing in common");
    assert_eq!(letters(vec![copy(a, b), copy(a, c)]), "mm", "two reads");
    assert_eq!(letters(vec![copy(a, b), copy(b, c)]), "m|m", "read after write");
    assert_eq!(letters(vec![copy(a, b), copy(c, a)]), "m|m", "write after read");
    assert_eq!(letters(vec![copy(a, b), copy(c, b)]), "m|m", "write after write");
    let (input, output) = (Operand::local(INPUT, 0), Operand::local(Buffer::Output, 0));
    assert_eq!(letters(vec![copy(input, a), copy(b, output)]), "m|m", "input and output are the same memory");
    let remote = Operand::remote(1, SCRATCH, 0);
    assert_eq!(letters(vec![copy(a, remote), copy(remote, b)]), "m|m", "a peer's memory");
    assert_eq!(letters(vec![copy(b, a), copy(a, remote)]), "m|m");
    assert_eq!(letters(vec![moved(&[a], &[c], 2), copy(d, a)]), "m|m", "the second of two chunks");
    // Two syncs for three dependences, as late as possible.
    assert_eq!(letters(vec![copy(a, b), copy(c, d), copy(b, c), copy(c, a)]), "mm|m|m");
    let barrier = Op::Barrier(Barrier { id: 0, blocks: 1 });
    assert_eq!(letters(vec![copy(a, b), barrier, copy(b, c)]), "mBm", "a barrier is a sync");
    assert_eq!(letters(vec![Op::Sync, copy(a, b), Op::Sync, Op::Sync, copy(c, d), Op::Sync]), "mm");
}

#[test]
fn packets() {
    let [a, b, c] = [0, 1, 2].map(local);
    assert_eq!(letters(vec![copy(a, b.packets()), copy(b.packets(), c)]), "mm", "packets bring their order");
    assert_eq!(
        letters(vec![copy(b.packets(), c), copy(a, b.packets())]),
        "m|m",
        "but the slot is used again"
    );
    assert_eq!(letters(vec![copy(a, b.packets()), put(1, Form::Packets, false)]), "m|p");
    assert_eq!(letters(vec![copy(a, b.packets()), put(1, Form::Packets, true)]), "mp", "it waits for them");
    // A packet of another block tells that its peer is ready for what comes next: only its author knows.
    let came = local(6).packets();
    let ready = |between: Option<Op>| {
        let mut ops = vec![copy(came, b)];
        ops.extend(between);
        ops.push(copy(a, Operand::remote(1, INPUT, 0)));
        ops
    };
    assert_eq!(letters(ready(None)), "mm");
    assert_eq!(letters(ready(Some(Op::Sync))), "m|m");
}

#[test]
fn control_operations() {
    let [a, b] = [0, 1].map(local);
    let (theirs, mine) = (local(6), local(7));
    assert_eq!(letters(vec![copy(a, b), signal(false), wait(), copy(b, a)]), "msw|m", "only for the moves");
    assert_eq!(letters(vec![copy(a, mine), signal(false)]), "m|s", "another block reads it");
    assert_eq!(letters(vec![copy(a, b), signal(false)]), "ms", "nobody else does");
    assert_eq!(letters(vec![copy(a, mine), signal(true)]), "ms", "a relaxed signal tells of reads only");
    assert_eq!(letters(vec![copy(theirs, a), signal(true)]), "m|s");
    let port = Channel { kind: ChannelKind::Port, index: 0 };
    for relaxed in [false, true] {
        let signal = Op::Signal { channel: port, relaxed };
        assert_eq!(letters(vec![copy(a, mine), signal]), "m|s", "a proxy's signal is never relaxed");
    }
    assert_eq!(letters(vec![wait(), copy(theirs, a)]), "w|m");
    assert_eq!(letters(vec![wait(), copy(a, b)]), "wm");
    assert_eq!(letters(vec![wait(), copy(a, Operand::remote(1, INPUT, 0))]), "w|m", "the peer's caller");
    assert_eq!(letters(vec![wait(), copy(Operand::remote(1, INPUT, 0), a)]), "w|m");
    assert_eq!(letters(vec![Op::Acquire { semaphore: 0 }, copy(theirs, a)]), "a|m");
    assert_eq!(letters(vec![copy(a, mine), Op::Release { semaphore: 0 }]), "m|r");
    assert_eq!(letters(vec![copy(a, mine), wait(), signal(false), wait()]), "mw|sw");
    assert_eq!(letters(vec![copy(a, b), put(1, Form::Plain, false)]), "m|p", "the proxy reads it");
    assert_eq!(letters(vec![copy(b, a), put(1, Form::Plain, false)]), "mp");
    let overwrite = || vec![put(0, Form::Plain, false), Op::Flush { channel: 0 }, copy(b, a)];
    assert_eq!(letters(overwrite()), "pf|m");
    assert_eq!(letters(vec![copy(theirs, a), wait(), Op::Sync]), "mw", "the end of a call is a sync");
}

#[test]
fn loops() {
    let [a, b, c] = [0, 1, 2].map(local);
    let (theirs, mine) = (local(6), local(7));
    assert_eq!(letters(vec![looped(vec![copy(a, b), copy(b, c)])]), "(m|m)", "not around: other slices");
    let shifted = vec![looped(vec![moved(&[a], &[c], 2), moved(&[Operand::local(SCRATCH, 3)], &[a], 2)])];
    let mut wide = shifted;
    if let Op::Loop(repeated) = &mut wide[0] {
        repeated.chunks = 2;
    }
    assert_eq!(letters(wide), "(|m|m)", "chunk 3 of one iteration is chunk 2 of another");
    assert_eq!(letters(vec![looped(vec![copy(theirs, a), wait()])]), "(|mw)", "the wait of one iteration");
    assert_eq!(letters(vec![looped(vec![signal(false), copy(a, mine)])]), "(|sm)");
    let pipe = vec![wait(), looped(vec![copy(a, mine), signal(false)])];
    assert_eq!(letters(pipe), "w|(m|s)", "a sync before the loop, not in each iteration");
    let pipe = vec![wait(), looped(vec![Op::Acquire { semaphore: 0 }, copy(theirs, a)])];
    assert_eq!(letters(pipe), "w(a|m)", "one in the loop serves both");
    assert_eq!(letters(vec![looped(vec![copy(a, b)]), copy(b, c)]), "(m)|m");
    assert_eq!(letters(vec![looped(vec![copy(a, b)]), looped(vec![copy(b, c)])]), "(m)|(m)");
    let barrier = Op::Barrier(Barrier { id: 0, blocks: 1 });
    assert_eq!(letters(vec![looped(vec![copy(theirs, a), wait(), barrier])]), "(mwB)");
    assert_eq!(letters(vec![looped(Vec::new()), copy(a, b), looped(Vec::new()), copy(b, c)]), "()m|()m");
}

#[test]
fn wrong_structures_are_refused() {
    let error = sync(&plan(vec![copy(local(0), local(8))])).unwrap_err().to_string();
    assert!(error.contains("scratch chunk 8 of rank 0"), "{error}");
    let mut large = plan(Vec::new());
    large.ranks[0].scratch_chunks = u32::MAX;
    assert!(super::resources(&large).is_err() && super::replicate(&large, 1, super::Policy::None).is_err());
    assert!(sync(&large).unwrap_err().to_string().contains("more than 134217728 chunks"));
}
