//! The watchdog: it takes some events for progress, and names the thread that makes none.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::rig::*;
use super::waiting::{wait_for, wait_or_leave};
use crate::check::{Chance, Checker};
use crate::code::op::{AtomOp, BarrierKind, Binary, Cmp, Op};
use crate::code::{Inst, Module, Semantics, Space, Src, Ty};
use crate::config::Weak;
use crate::exec::{Engine, Fault, FaultKind, Stall, Watchdog};

/// After this long without progress the tests' kernels are killed.
const KILLED_AFTER: Duration = Duration::from_millis(300);

const SLEEP: Op = Op::Nanosleep { duration: Src::Imm(100) };

fn recording() -> (Watchdog, Arc<Mutex<Vec<Stall>>>) {
    let stalls = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&stalls);
    let watchdog = Watchdog {
        report_after: Duration::from_millis(50),
        fault_after: None,
        report: Arc::new(move |stall| kept.lock().push(stall.clone())),
    };
    (watchdog, stalls)
}

#[test]
fn the_watchdog_names_who_waits_for_what() {
    let (watchdog, stalls) = recording();
    let rig = Rig::with(1, 2, watchdog);
    let done = rig.start(wait_for(7), 1, 32);
    done.recv_timeout(Duration::from_millis(400)).unwrap_err();
    let seen = stalls.lock().clone();
    assert_eq!(seen.len(), 1, "once per kernel: {seen:?}");
    assert_eq!((seen[0].address, seen[0].line), (Some(rig.base()), BODY + 1));
    assert!(seen[0].to_string().contains("kernel test, block (0,0,0)"));
    rig.set(0, 7);
    done.recv_timeout(LIMIT).unwrap().unwrap();
}

#[test]
fn a_barrier_that_nobody_completes_is_named_and_can_be_a_fault() {
    let (mut watchdog, stalls) = recording();
    watchdog.fault_after = Some(Duration::from_millis(200));
    let rig = Rig::with(1, 2, watchdog);
    let bar = Op::Barrier { kind: BarrierKind::Sync, id: imm(1), threads: Some(imm(64)) };
    let fault = rig.run(with_prologue(vec![op(bar)]), 1, 32).unwrap_err();
    assert_eq!((fault.kind, fault.line), (FaultKind::Timeout, BODY + 1));
    assert_eq!(stalls.lock()[0].address, None);
}

#[test]
fn a_busy_kernel_is_not_called_stalled() {
    let (watchdog, stalls) = recording();
    let rig = Rig::with(1, 2, watchdog);
    // Counts in a register only, further each time, until that takes longer than the watchdog's limit.
    for pause in [Op::Nop, SLEEP] {
        let (mut turns, mut took) = (1000, Duration::ZERO);
        while took < Duration::from_millis(200) {
            turns *= 2;
            let module = with_prologue(vec![
                mov(r(4), imm(0)),
                op(pause.clone()),
                bin(Binary::Add, Ty::U32, r(4), r(4), imm(1)),
                setp(Cmp::Lt, Ty::U32, 0, r(4), imm(turns)),
                when(0, false, Op::Bra { target: BODY + 1 }),
            ]);
            let start = Instant::now();
            rig.run(module, 1, 32).unwrap();
            took = start.elapsed();
        }
    }
    assert_eq!(stalls.lock().len(), 0);
}

fn deadly(limit: Duration) -> Watchdog {
    Watchdog { fault_after: Some(limit), report: Arc::new(|_| {}), ..Watchdog::default() }
}

/// `compare` and `swap` of word 0, which never holds what is compared; `rd(2)` gets what it holds.
fn failing_cas() -> Inst {
    let mem = mem(Semantics::Relaxed, Space::Global, Ty::B64, rd(0), 0);
    op(Op::Atom { op: AtomOp::Cas, mem, d: Some(rd(2)), b: imm(7), c: imm(1) })
}

/// Loops that wait for ever and change nothing.
fn endless() -> Vec<(&'static str, Vec<Inst>)> {
    let poll = |body: Vec<Inst>| {
        let mut code = body;
        let back = BODY + code.len() as u32;
        code.extend([
            setp(Cmp::Eq, Ty::U64, 0, rd(2), imm(7)),
            when(0, false, Op::Bra { target: back + 4 }),
            op(SLEEP),
            bra(BODY),
        ]);
        code
    };
    vec![
        ("a lock with back-off", poll(vec![failing_cas()])),
        (
            "a lock that is taken by an exchange",
            poll(vec![op(Op::Atom {
                op: AtomOp::Exch,
                mem: mem(Semantics::Acquire, Space::Global, Ty::B64, rd(0), 0),
                d: Some(rd(2)),
                b: imm(0),
                c: imm(0),
            })]),
        ),
        ("a poll with back-off", poll(vec![ld(Semantics::Acquire, Ty::U64, rd(2), rd(0), 0)])),
        ("a sleep", vec![op(SLEEP), bra(BODY)]),
        ("nothing", vec![bra(BODY)]),
        (
            "a branch that is always taken",
            vec![setp(Cmp::Eq, Ty::U32, 0, imm(0), imm(0)), when(0, false, Op::Bra { target: BODY + 1 })],
        ),
        ("a branch to a branch", vec![bra(BODY + 2), bra(BODY), bra(BODY + 1)]),
        ("a look at one word behind the other", scan(WORDS)),
    ]
}

/// Number of words of the memory that [`endless`] loops look at.
const WORDS: u64 = 40;

/// Reads so many words one after the other until one is not 0, as a kernel does that waits for any of its peers.
fn scan(words: u64) -> Vec<Inst> {
    vec![
        mov(r(4), imm(0)),
        mov(rd(3), rd(0)),
        ld(Semantics::Acquire, Ty::U64, rd(2), rd(3), 0),
        setp(Cmp::Ne, Ty::U64, 0, rd(2), imm(0)),
        when(0, false, Op::Bra { target: BODY + 10 }),
        bin(Binary::Add, Ty::U64, rd(3), rd(3), imm(8)),
        bin(Binary::Add, Ty::U32, r(4), r(4), imm(1)),
        setp(Cmp::Lt, Ty::U32, 0, r(4), imm(words)),
        when(0, false, Op::Bra { target: BODY + 2 }),
        when(0, true, Op::Bra { target: BODY }),
    ]
}

fn is_killed(name: &str, result: &Result<(), Fault>) {
    assert_eq!(result.as_ref().map_err(|fault| fault.kind), Err(FaultKind::Timeout), "{name}");
}

#[test]
fn loops_that_change_nothing_are_killed() {
    for (name, body) in endless() {
        let rig = Rig::with(WORDS as usize, 2, deadly(KILLED_AFTER));
        is_killed(name, &rig.run(with_prologue(body), 2, 64));
    }
    // It reads another word now and then, which is no change.
    let rig = Rig::with(3, 2, deadly(KILLED_AFTER));
    is_killed("a word that is read rarely", &rig.run(wait_or_leave(), 1, 64));
}

#[test]
fn loops_that_change_nothing_are_killed_where_memory_is_weak() {
    for (name, body) in endless() {
        let chance = Arc::new(Chance::new(Weak::default()));
        let checker = Arc::new(Checker::new(Some(Arc::clone(&chance)), 1 << 30));
        let mut rig = Rig::new(WORDS as usize);
        rig.engine = Engine::in_any_order(1, deadly(KILLED_AFTER), Some(chance));
        rig.check = Some(checker.begin(0, &checker.submitted(), std::iter::empty()));
        is_killed(name, &rig.run(with_prologue(body), 2, 64));
    }
}

/// Waits for the values 1 to `count` in word 0, one after another; with `answers` it stores each to word 1.
fn follows(count: u64, answers: bool) -> Module {
    let answer = st(Semantics::Release, Ty::U64, rd(0), 8, rd(3));
    with_prologue(vec![
        mov(rd(3), imm(1)),
        ld(Semantics::Acquire, Ty::U64, rd(2), rd(0), 0),
        setp(Cmp::Lt, Ty::U64, 0, rd(2), rd(3)),
        when(0, false, Op::Bra { target: BODY + 1 }),
        if answers { answer } else { op(Op::Nop) },
        bin(Binary::Add, Ty::U64, rd(3), rd(3), imm(1)),
        setp(Cmp::Le, Ty::U64, 0, rd(3), imm(count)),
        when(0, false, Op::Bra { target: BODY + 1 }),
    ])
}

#[test]
fn a_kernel_that_waits_many_times_is_not_killed() {
    for answers in [true, false] {
        let limit = Duration::from_secs(2);
        let rig = Rig::with(2, 2, deadly(limit));
        let (count, pause) = (30, Duration::from_millis(100));
        let done = rig.start(follows(count, answers), 1, 32);
        for value in 1..=count {
            rig.set(0, value);
            let end = done.recv_timeout(pause);
            assert!(end.is_err() || value == count, "{value}, answers {answers}: {end:?}");
            if value == count {
                end.unwrap_or_else(|_| done.recv_timeout(LIMIT).expect("the last value ends it"))
                    .expect("progress");
            }
        }
    }
}

/// Each warp waits for a word of its own, and all the others see nothing new when one leaves.
#[test]
fn a_block_whose_warps_leave_one_after_another_is_not_killed() {
    const WARPS: usize = 30;
    let limit = Duration::from_secs(2);
    let rig = Rig::with(32 * WARPS, 2, deadly(limit));
    let module = with_prologue(vec![
        bin(Binary::And, Ty::B32, r(4), r(0), imm(!31 & 0xffff_ffff)),
        bin(Binary::MulWide, Ty::U32, rd(3), r(4), imm(8)),
        bin(Binary::Add, Ty::U64, rd(3), rd(3), rd(0)),
        ld(Semantics::Acquire, Ty::U64, rd(2), rd(3), 0),
        setp(Cmp::Eq, Ty::U64, 0, rd(2), imm(0)),
        when(0, false, Op::Bra { target: BODY + 3 }),
    ]);
    let done = rig.start(module, 1, 32 * WARPS as u32);
    for warp in 0..WARPS - 1 {
        rig.set(32 * warp, 1);
        let end = done.recv_timeout(Duration::from_millis(100));
        assert!(end.is_err(), "warps are left behind number {warp}: {end:?}");
    }
    rig.set(32 * (WARPS - 1), 1);
    done.recv_timeout(LIMIT).expect("the last one ends it").expect("progress");
}
