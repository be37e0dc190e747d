//! Kernels that wait: for each other, for the host, for another process, or for ever.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::rig::*;
use crate::code::op::{BarrierKind, Cmp, Op};
use crate::code::{Module, Semantics, Ty};
use crate::exec::{FaultKind, Stall, Watchdog};

/// Waits until word 0 is `value`.
fn wait_for(value: u64) -> Module {
    with_prologue(vec![
        ld(Semantics::Acquire, Ty::U64, rd(2), rd(0), 0),
        setp(Cmp::Ne, Ty::U64, 0, rd(2), imm(value)),
        when(0, false, Op::Bra { target: BODY }),
    ])
}

#[test]
fn a_store_by_the_host_without_a_notification_is_seen() {
    let rig = Rig::new(1);
    let done = rig.start(wait_for(7), 8, 128);
    done.recv_timeout(Duration::from_millis(100)).unwrap_err();
    rig.set(0, 7);
    done.recv_timeout(LIMIT).unwrap().unwrap();
}

#[test]
fn two_kernels_play_ping_pong() {
    let rig = Rig::new(2);
    let rounds = 500;
    // Each player waits for its turn in word 0 and passes the turn on.
    let player = |first: u64| {
        with_prologue(vec![
            mov(rd(3), imm(first)),
            ld(Semantics::Acquire, Ty::U64, rd(2), rd(0), 0),
            setp(Cmp::Ne, Ty::U64, 0, rd(2), rd(3)),
            when(0, false, Op::Bra { target: BODY + 1 }),
            bin(crate::code::op::Binary::Add, Ty::U64, rd(4), rd(3), imm(1)),
            st(Semantics::Release, Ty::U64, rd(0), 0, rd(4)),
            bin(crate::code::op::Binary::Add, Ty::U64, rd(3), rd(3), imm(2)),
            setp(Cmp::Lt, Ty::U64, 1, rd(3), imm(2 * rounds)),
            when(1, false, Op::Bra { target: BODY + 1 }),
        ])
    };
    let (a, b) = (rig.start(player(0), 1, 1), rig.start(player(1), 1, 1));
    a.recv_timeout(LIMIT).unwrap().unwrap();
    b.recv_timeout(LIMIT).unwrap().unwrap();
    assert_eq!(rig.get(0), 2 * rounds);
}

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
    let (mut turns, mut took) = (1_000_000, Duration::ZERO);
    while took < Duration::from_millis(50) {
        turns *= 2;
        let module = with_prologue(vec![
            mov(r(4), imm(0)),
            bin(crate::code::op::Binary::Add, Ty::U32, r(4), r(4), imm(1)),
            setp(Cmp::Lt, Ty::U32, 0, r(4), imm(turns)),
            when(0, false, Op::Bra { target: BODY + 1 }),
        ]);
        let start = Instant::now();
        rig.run(module, 1, 32).unwrap();
        took = start.elapsed();
    }
    assert_eq!(stalls.lock().len(), 0);
}

#[test]
fn a_forked_process_answers_through_shared_memory() {
    use crate::mem;
    use crate::mem::object::{Facts, Kind, Object};
    // The same memory object mapped twice, as two processes would; the child is this test binary's
    // twin only as far as fork allows: it touches the mapping and its event count, nothing else.
    let rig = Rig::new(1);
    let facts = Facts { kind: Kind::Physical, device: 0, handle_types: 0 };
    let object = Object::create(4096, facts).expect("memfd");
    let here = mem::backing::Backing::of(&object, 4096, None).expect("map");
    let base = here.base().expect("address");
    let here = Arc::new(here);
    rig.space.insert(base, 4096, mem::Rights::Host { writable: true }, Arc::clone(&here));
    let event_count = here.event_count();
    let mut module = wait_for(3);
    // Waits for the object's first word, then answers in its second.
    module.functions[0].code.insert(BODY as usize, mov(rd(0), imm(base)));
    module.functions[0].code[BODY as usize + 3].op = Op::Bra { target: BODY + 1 };
    module.functions[0].code.push(st(Semantics::Release, Ty::U64, rd(0), 8, imm(4)));
    module.functions[0].lines = (0..module.functions[0].code.len() as u32).collect();
    // SAFETY: the child uses only async-signal-safe calls and the shared mapping, then leaves.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: mapped shared by the parent and inherited; a word of it, accessed atomically.
        let words = unsafe {
            std::slice::from_raw_parts(
                std::ptr::with_exposed_provenance::<std::sync::atomic::AtomicU64>(base as usize),
                2,
            )
        };
        let pause = libc::timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        // SAFETY: the time is valid, and the event count is in the control page, which is mapped.
        unsafe {
            libc::nanosleep(&raw const pause, std::ptr::null_mut());
            words[0].store(3, std::sync::atomic::Ordering::Release);
            (*event_count).notify();
        }
        for _ in 0..1000 {
            if words[1].load(std::sync::atomic::Ordering::Acquire) == 4 {
                // SAFETY: leaves without running the parent's destructors.
                unsafe { libc::_exit(0) };
            }
            let pause = libc::timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            // SAFETY: sleeps.
            unsafe { libc::nanosleep(&raw const pause, std::ptr::null_mut()) };
        }
        // SAFETY: as above.
        unsafe { libc::_exit(1) };
    }
    assert!(child > 0);
    let result: Result<_, mpsc::RecvTimeoutError> = rig.start(module, 2, 64).recv_timeout(LIMIT);
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    result.unwrap().unwrap();
    assert_eq!(status, 0, "the child saw no answer");
    rig.space.remove(base);
}

/// Turns of a loop between two looks at the word that it reads rarely.
const RARELY: u64 = 6000;

/// Waits until word 0 is 7 or word 1 is not 0. It reads word 1 [rarely](RARELY) only.
fn wait_or_leave() -> Module {
    let end = BODY + 12;
    with_prologue(vec![
        mov(rd(3), imm(RARELY)),
        ld(Semantics::Acquire, Ty::U64, rd(2), rd(0), 0),
        setp(Cmp::Eq, Ty::U64, 0, rd(2), imm(7)),
        when(0, false, Op::Bra { target: end }),
        setp(Cmp::Gt, Ty::U64, 0, rd(3), imm(1)),
        bin(crate::code::op::Binary::Sub, Ty::U64, rd(3), rd(3), imm(1)),
        when(0, false, Op::Bra { target: BODY + 1 }),
        ld(Semantics::Relaxed, Ty::U64, rd(4), rd(0), 8),
        mov(rd(3), imm(RARELY)),
        setp(Cmp::Eq, Ty::U64, 0, rd(4), imm(0)),
        when(0, false, Op::Bra { target: BODY + 1 }),
        // Stores the value that ended the wait.
        st(Semantics::Relaxed, Ty::U64, rd(0), 16, rd(4)),
    ])
}

#[test]
fn a_loop_leaves_soon_by_a_word_that_it_reads_rarely() {
    let rig = Rig::new(3);
    // The word is set while the first kernel waits, and before the others start.
    let first = rig.start(wait_or_leave(), 1, 128);
    first.recv_timeout(Duration::from_millis(100)).unwrap_err();
    let told = Instant::now();
    rig.set(1, 1);
    first.recv_timeout(LIMIT).unwrap().unwrap();
    for _ in 0..20 {
        rig.start(wait_or_leave(), 1, 128).recv_timeout(LIMIT).unwrap().unwrap();
    }
    assert_eq!(rig.get(2), 1);
    // Without the look at the word each would take three seconds: two turns between naps of a millisecond. Together that is more
    // than a minute.
    assert!(told.elapsed() < Duration::from_secs(30), "21 waits were left after {:?}", told.elapsed());
}
