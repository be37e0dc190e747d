//! Kernels that wait: for each other, for the host, or for another process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use super::rig::*;
use crate::code::op::{AtomOp, Cmp, Multimem, MultimemOp, Op};
use crate::code::{Addr, Base, Inst, Module, Scope, Semantics, Space, Ty};
use crate::exec::{Engine, Step};
use crate::mem::backing::Backing;
use crate::mem::multicast::Team;
use crate::mem::object::{Facts, Kind, Object};
use crate::mem::{EventCount, Rights};

/// Waits until word 0 is `value`.
pub(super) fn wait_for(value: u64) -> Module {
    with_prologue(vec![
        ld(Semantics::Acquire, Ty::U64, rd(2), rd(0), 0),
        setp(Cmp::Ne, Ty::U64, 0, rd(2), imm(value)),
        when(0, false, Op::Bra { target: BODY }),
    ])
}

/// Waits until the word at `address` is `value`.
fn wait_at(address: u64, value: u64) -> Module {
    with_prologue(vec![
        mov(rd(0), imm(address)),
        ld(Semantics::Acquire, Ty::U64, rd(2), rd(0), 0),
        setp(Cmp::Ne, Ty::U64, 0, rd(2), imm(value)),
        when(0, false, Op::Bra { target: BODY + 1 }),
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

/// Waits until a thread sleeps on `event_count`, or is about to.
fn until_asleep(event_count: &EventCount) {
    let start = Instant::now();
    while event_count.waiters.load(Ordering::SeqCst) == 0 {
        assert!(start.elapsed() < LIMIT, "nobody sleeps");
        std::thread::yield_now();
    }
}

/// Has a kernel sleep until the word at `address` is 7, runs `code` on another thread once it sleeps, and checks that this wakes it. At its
/// start the code has that address in `rd0`.
fn wakes_a_kernel(rig: &mut Rig, address: u64, mut code: Vec<Inst>) {
    rig.engine = Engine::that_must_be_woken(2);
    // Memory of its own, so that what the code does before disturbs nobody's sleep.
    let apart = [const { AtomicU64::new(0) }; 2];
    let go = apart.as_ptr().expose_provenance() as u64;
    rig.space.insert(go, 16, Rights::Host { writable: true }, Arc::new(Backing::borrowed()));
    let event_count = rig.space.enter(0).event_count(address).expect("inserted");
    // The loop stores, so that it is not taken for one that waits: its thread stays with it.
    let mut body = vec![
        mov(rd(0), imm(address)),
        mov(rd(5), imm(go)),
        st(Semantics::Relaxed, Ty::U64, rd(5), 8, imm(1)),
        ld(Semantics::Acquire, Ty::U64, rd(2), rd(5), 0),
        setp(Cmp::Eq, Ty::U64, 0, rd(2), imm(0)),
        when(0, false, Op::Bra { target: BODY + 2 }),
    ];
    body.append(&mut code);
    let (waiting, storing) = (rig.start(wait_at(address, 7), 1, 32), rig.start(with_prologue(body), 1, 1));
    until_asleep(&event_count);
    apart[0].store(1, Ordering::Release);
    storing.recv_timeout(LIMIT).unwrap().unwrap();
    waiting.recv_timeout(LIMIT).expect("it is woken").unwrap();
    rig.space.remove(go);
}

#[test]
fn a_store_wakes_a_kernel_that_waits_for_the_word() {
    let mut rig = Rig::new(2);
    let store = || st(Semantics::Release, Ty::U64, rd(0), 0, imm(7));
    let base = rig.base();
    wakes_a_kernel(&mut rig, base, vec![store()]);
    rig.set(0, 0);
    // Memory that the kernel has read just before is found another way.
    wakes_a_kernel(&mut rig, base, vec![ld(Semantics::Relaxed, Ty::U64, rd(2), rd(0), 8), store()]);
}

#[test]
fn an_atomic_wakes_a_kernel_that_waits_for_the_word() {
    let mut rig = Rig::new(1);
    let word = mem(Semantics::AcqRel, Space::Global, Ty::U64, rd(0), 0);
    let base = rig.base();
    let add = Op::Atom { op: AtomOp::Add, mem: word, d: None, b: imm(7), c: imm(0) };
    wakes_a_kernel(&mut rig, base, vec![op(add)]);
}

#[test]
fn a_store_to_all_devices_wakes_a_kernel_that_waits_for_the_word_of_one() {
    const SIZE: usize = 2 << 20;
    let mut rig = Rig::new(1);
    let object =
        Object::create(SIZE, Facts { kind: Kind::Physical, device: 0, handle_types: 0 }).expect("memfd");
    let team = Team::create(1, SIZE as u64, 0).expect("team");
    team.add(0).expect("it has nobody");
    team.bind(0, &object, [0, 0, SIZE as u64]).expect("nothing is bound");
    let memory = Arc::new(Backing::of(&object, SIZE, None).expect("map"));
    let base = memory.base().expect("address");
    let rights = || Rights::Host { writable: true };
    rig.space.insert(base, SIZE as u64, rights(), memory);
    // Nothing is mapped there, as behind any multicast address.
    let all = 1 << 60;
    rig.space.insert(all, SIZE as u64, rights(), Arc::new(Backing::Multicast { base: all, team }));
    let store = Multimem {
        op: MultimemOp::St,
        ty: Ty::B64,
        sem: Semantics::Release,
        scope: Scope::Sys,
        space: Space::Global,
        addr: Addr { base: Base::Reg(rd(1)), offset: 0 },
        d: Vec::new(),
        src: vec![imm(7)],
    };
    let store = op(Op::Multimem(Box::new(store)));
    wakes_a_kernel(&mut rig, base, vec![mov(rd(1), imm(all)), store]);
    rig.space.remove(all);
    rig.space.remove(base);
}

#[test]
fn a_kernel_that_goes_on_to_wait_for_other_memory_is_woken_there() {
    let mut rig = Rig::new(1);
    rig.engine = Engine::that_must_be_woken(1);
    let apart = AtomicU64::new(0);
    let other = (&raw const apart).expose_provenance() as u64;
    rig.space.insert(other, 8, Rights::Host { writable: true }, Arc::new(Backing::borrowed()));
    let [first, second] = [rig.base(), other].map(|at| rig.space.enter(0).event_count(at).expect("inserted"));
    let module = with_prologue(vec![
        mov(rd(0), imm(rig.base())),
        ld(Semantics::Acquire, Ty::U64, rd(2), rd(0), 0),
        setp(Cmp::Ne, Ty::U64, 0, rd(2), imm(7)),
        when(0, false, Op::Bra { target: BODY + 1 }),
        mov(rd(0), imm(other)),
        ld(Semantics::Acquire, Ty::U64, rd(2), rd(0), 0),
        setp(Cmp::Ne, Ty::U64, 0, rd(2), imm(7)),
        when(0, false, Op::Bra { target: BODY + 5 }),
    ]);
    let done = rig.start(module, 1, 32);
    until_asleep(&first);
    rig.set(0, 7);
    first.notify();
    until_asleep(&second);
    apart.store(7, Ordering::SeqCst);
    second.notify();
    done.recv_timeout(LIMIT).expect("it is woken").unwrap();
    rig.space.remove(other);
}

#[test]
fn new_work_wakes_a_thread_that_sleeps_on_what_waits_or_for_want_of_work() {
    let mut rig = Rig::new(2);
    rig.engine = Engine::that_must_be_woken(1);
    let nothing = || with_prologue(vec![st(Semantics::Relaxed, Ty::U64, rd(0), 8, imm(1))]);
    let asleep = || {
        let start = Instant::now();
        while rig.engine.sleepers() == 0 {
            assert!(start.elapsed() < LIMIT, "nobody sleeps");
            std::thread::yield_now();
        }
    };
    let task = || {
        let (sender, receiver) = mpsc::channel();
        rig.engine.task(move || {
            let _ = sender.send(());
            Step::Done
        });
        receiver.recv_timeout(LIMIT).expect("the task runs");
    };
    // Its only thread has no work.
    rig.run(nothing(), 1, 1).unwrap();
    asleep();
    task();
    asleep();
    rig.run(nothing(), 1, 1).unwrap();
    // Now it sleeps on the words that a kernel waits for.
    let waiting = rig.start(wait_for(7), 1, 32);
    let event_count = rig.space.enter(0).event_count(rig.base()).expect("inserted");
    until_asleep(&event_count);
    task();
    until_asleep(&event_count);
    rig.run(with_prologue(vec![st(Semantics::Release, Ty::U64, rd(0), 0, imm(7))]), 1, 1).unwrap();
    waiting.recv_timeout(LIMIT).unwrap().unwrap();
}

#[test]
fn a_forked_process_answers_through_shared_memory() {
    // The same memory object mapped twice, as two processes would; the child is this test binary's
    // twin only as far as fork allows: it touches the mapping and its event count, nothing else.
    let mut rig = Rig::new(1);
    rig.engine = Engine::that_must_be_woken(2);
    let facts = Facts { kind: Kind::Physical, device: 0, handle_types: 0 };
    let object = Object::create(4096, facts).expect("memfd");
    let here = Backing::of(&object, 4096, None).expect("map");
    let base = here.base().expect("address");
    let here = Arc::new(here);
    rig.space.insert(base, 4096, Rights::Host { writable: true }, Arc::clone(&here));
    let event_count = here.event_count();
    let mut module = wait_at(base, 3);
    // Waits for the object's first word, then answers in its second.
    module.functions[0].code.push(st(Semantics::Release, Ty::U64, rd(0), 8, imm(4)));
    module.functions[0].lines = (0..module.functions[0].code.len() as u32).collect();
    // SAFETY: asks for a number.
    let parent = unsafe { libc::getpid() };
    // SAFETY: the child uses only async-signal-safe calls and the shared mapping, then leaves.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: mapped shared by the parent and inherited; a word of it, accessed atomically.
        let words = unsafe {
            std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<AtomicU64>(base as usize), 2)
        };
        // SAFETY: the event count is in the control page, which is mapped.
        let event_count = unsafe { &*event_count };
        // Until the kernel's thread sleeps, or the parent has given up.
        while event_count.waiters.load(Ordering::SeqCst) == 0 {
            // SAFETY: asks who the parent is.
            if unsafe { libc::getppid() } != parent {
                // SAFETY: leaves without running the parent's destructors.
                unsafe { libc::_exit(2) };
            }
            std::hint::spin_loop();
        }
        words[0].store(3, Ordering::Release);
        event_count.notify();
        for _ in 0..1000 {
            if words[1].load(Ordering::Acquire) == 4 {
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
    if result.is_err() {
        // It may still wait for the kernel to sleep.
        // SAFETY: ends the child made above, which was not waited for yet.
        unsafe { libc::kill(child, libc::SIGKILL) };
    }
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
pub(super) fn wait_or_leave() -> Module {
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
    let before = rig.engine.naps();
    rig.set(1, 1);
    first.recv_timeout(LIMIT).unwrap().unwrap();
    for _ in 0..20 {
        rig.start(wait_or_leave(), 1, 128).recv_timeout(LIMIT).unwrap().unwrap();
    }
    assert_eq!(rig.get(2), 1);
    // Without the look at the word each would take a nap for every second turn, before it reads the word.
    let naps = rig.engine.naps() - before;
    assert!(naps < RARELY / 2, "21 waits were left after {naps} naps");
}
