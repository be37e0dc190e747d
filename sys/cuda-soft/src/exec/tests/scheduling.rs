//! Residency, the order of grids, and tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use super::rig::*;
use crate::code::op::{AtomOp, Cmp, Op};
use crate::code::{Module, Semantics, Space, Ty};
use crate::exec::{Residency, Step, Watch, Watchdog};

/// Each block increments a counter and waits until all blocks have.
fn grid_barrier(blocks: u64) -> Module {
    let count = mem(Semantics::AcqRel, Space::Global, Ty::U32, rd(0), 0);
    with_prologue(vec![
        setp(Cmp::Ne, Ty::U32, 0, r(0), imm(0)),
        when(0, false, Op::Exit),
        op(Op::Atom { op: AtomOp::Add, mem: count, d: None, b: imm(1), c: imm(0) }),
        ld(Semantics::Acquire, Ty::U32, r(4), rd(0), 0),
        setp(Cmp::Lt, Ty::U32, 1, r(4), imm(blocks)),
        when(1, false, Op::Bra { target: BODY + 3 }),
    ])
}

#[test]
fn a_grid_that_fits_may_wait_for_all_its_blocks() {
    let rig = Rig::new(1);
    rig.run(grid_barrier(64), 64, 64).unwrap();
    assert_eq!(rig.get(0), 64);
}

#[test]
fn a_grid_that_does_not_fit_must_not() {
    let mut rig = Rig::new(1);
    rig.limits = Residency { sms: 2, blocks_per_sm: 2, ..DEVICE };
    let stuck = rig.start(grid_barrier(5), 5, 32);
    stuck.recv_timeout(Duration::from_millis(300)).expect_err("five blocks where four fit");
    assert_eq!(rig.get(0), 4, "the fifth block has not started");
    // The increment of the fifth block, made by the test, releases all of them.
    rig.set(0, 5);
    stuck.recv_timeout(LIMIT).unwrap().unwrap();
    assert_eq!(rig.get(0), 6);
}

#[test]
fn a_later_kernel_runs_beside_one_that_waits_if_it_fits() {
    let rig = Rig::new(2);
    let waiter = rig.start(
        with_prologue(vec![
            ld(Semantics::Acquire, Ty::U32, r(4), rd(0), 0),
            setp(Cmp::Eq, Ty::U32, 0, r(4), imm(0)),
            when(0, false, Op::Bra { target: BODY }),
        ]),
        4,
        64,
    );
    waiter.recv_timeout(Duration::from_millis(50)).unwrap_err();
    rig.run(with_prologue(vec![st(Semantics::Release, Ty::U32, rd(0), 0, imm(1))]), 1, 1).unwrap();
    waiter.recv_timeout(LIMIT).unwrap().unwrap();
}

#[test]
fn one_thread_runs_many_blocks_that_wait_for_each_other() {
    let rig = Rig::with(1, 1, Watchdog::default());
    rig.run(grid_barrier(100), 100, 32).unwrap();
}

#[test]
fn tasks_step_until_done_and_wake_by_memory() {
    let rig = Rig::new(2);
    let (sender, receiver) = mpsc::channel();
    let steps = Arc::new(AtomicU32::new(0));
    let (count, space, addr) = (Arc::clone(&steps), Arc::clone(&rig.space), rig.base());
    rig.engine.task(move || {
        let n = count.fetch_add(1, Ordering::SeqCst);
        if n < 5 {
            return Step::Again;
        }
        let view = space.enter(0);
        assert!(view.find(addr, false).is_some());
        drop(view);
        // SAFETY: the buffer outlives the tasks of this test, and all accesses are atomic.
        let word = unsafe { crate::exec::memory::word::<std::sync::atomic::AtomicU64>(addr) };
        if word.load(Ordering::Acquire) == 0 {
            let watched = Some(Watch { space: Arc::clone(&space), device: 0, addr });
            return Step::Waiting { watched };
        }
        let _ = sender.send(());
        Step::Done
    });
    receiver.recv_timeout(Duration::from_millis(50)).unwrap_err();
    assert!(steps.load(Ordering::SeqCst) < 2000, "a waiting task spins");
    rig.run(with_prologue(vec![st(Semantics::Release, Ty::U64, rd(0), 0, imm(1))]), 1, 1).unwrap();
    receiver.recv_timeout(LIMIT).unwrap();
}

#[test]
fn a_task_that_panics_takes_nothing_with_it() {
    let rig = Rig::with(32, 1, Watchdog::default());
    rig.engine.task(|| panic!("a defect in a task, as the test means it"));
    rig.run(with_prologue(vec![st(Semantics::Weak, Ty::U64, rd(1), 0, imm(1))]), 1, 32).unwrap();
    assert!((0..32).all(|i| rig.get(i) == 1));
}
