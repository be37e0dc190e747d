//! FIFOs, semaphores without a channel, and barriers.

use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Instant;

use aqueduct_ptx::abi::{
    ABORT_RECORD_COMPLETE, GridBarrierHandle, NO_PEER, Operation, ProxyTrigger, SemaphoreHandle,
};

use crate::calls::{CLOSED, Calls, Form, NOT, NOTHING, ODD_ONE, REFUSED, TOLD, WHILE, in_both_forms};
use crate::device::{Args, Machine, patience};
use crate::ring::{Ring, word};

in_both_forms! {
    a_trigger_of_a_users_own,
    who_waits_for_the_host_leaves_when_told,
    semaphores,
    a_barrier_spreads_the_worst_status_within_a_group,
    a_barrier_of_a_grid_spreads_the_worst_status_to_all,
    a_grid_barrier_that_was_given_up_is_used_again,
    a_grid_barrier_at_which_all_have_arrived_is_not_given_up,
    the_last_group_learns_that_it_is,
}

fn trigger(first: u64) -> ProxyTrigger {
    ProxyTrigger { words: [first, 1, 2, 3] }
}

fn a_trigger_of_a_users_own(form: Form) {
    let mut ring = Ring::new(2, 7);
    let calls = Calls::new(&ring.machine, 0, form);
    let start = |ring: &Ring, name, args: fn(Args) -> Args| {
        calls.start(&ring.machine, name, 1, 32, args(Args::default().structure(&ring.handle)));
    };
    // A word of 64 bits is refused.
    for (first, expected) in
        [(1 << 63, [REFUSED, 0]), ((1 << 63) - 1, [NOT, 7]), (u64::MAX, [REFUSED, 0]), (0, [NOT, 8])]
    {
        let args = Args::default().structure(&ring.handle).structure(&trigger(first));
        calls.run(&ring.machine, "fifo_push", 1, 32, args);
        assert_eq!([0, 1].map(|slot| calls.result(0, slot)), expected, "{first:#x}");
        let payload = ring.poll().map(|trigger| trigger.payload());
        if expected[0] == NOT {
            assert_eq!(payload, Some([first, 1, 2, 3]));
            start(&ring, "fifo_sync", if first == 0 { |args| args.u64(8) } else { |args| args.u64(7) });
            sleep(WHILE);
            assert_eq!(calls.result(0, 0), NOTHING, "it was not popped");
            ring.pop();
            ring.machine.finish();
            assert_eq!(calls.result(0, 0), NOT);
        } else {
            assert_eq!(payload, None);
        }
    }
    let poll = |ring: &Ring, position| {
        let args = Args::default().structure(&ring.handle).u64(position);
        calls.run(&ring.machine, "fifo_poll", 1, 32, args)
    };
    assert_eq!([7, 8, 9].map(|position| poll(&ring, position)), [1, 1, 0]);
    ring.close();
    start(&ring, "fifo_push", |args| args.structure(&trigger(0)));
    ring.machine.finish();
    assert_eq!(calls.result(0, 0), CLOSED);
}

fn who_waits_for_the_host_leaves_when_told(form: Form) {
    for name in ["fifo_push", "fifo_sync"] {
        let ring = Ring::new(2, 0);
        let calls = Calls::new(&ring.machine, 0, form);
        let push = || Args::default().structure(&ring.handle).structure(&trigger(4));
        assert_eq!([(); 2].map(|()| calls.run(&ring.machine, "fifo_push", 1, 32, push())), [NOT; 2]);
        let (args, awaited) = match name {
            "fifo_push" => (push(), 2),
            _ => (Args::default().structure(&ring.handle).u64(1), 1),
        };
        calls.start(&ring.machine, name, 1, 32, args);
        sleep(WHILE);
        assert_eq!(calls.result(0, 0), NOTHING, "{name} waits");
        ring.machine.abort();
        ring.machine.finish();
        assert_eq!(calls.result(0, 0), TOLD, "{name}");
        let record = ring.machine.record(0);
        assert_eq!((record.state, record.operation), (ABORT_RECORD_COMPLETE, Operation::FIFO.0), "{name}");
        assert_eq!((record.peer, record.awaited), (NO_PEER, awaited), "{name}");
    }
}

fn semaphores(form: Form) {
    let machine = Machine::new(2);
    let counters = [0, 1].map(|rank| machine.alloc(rank, 64));
    let ends = [0, 1].map(|rank: usize| SemaphoreHandle {
        inbound: counters[rank],
        expected_inbound: counters[rank] + 8,
        outbound: counters[rank] + 16,
        remote_inbound: counters[1 - rank],
        abort: machine.abort_handle(rank, 1 - rank as u32),
    });
    let calls = [0, 1].map(|rank| Calls::new(&machine, rank, form));
    let end = |rank: usize| Args::default().structure(&ends[rank]);
    let poll = || calls[1].run(&machine, "semaphore_poll", 1, 32, end(1));
    for (signal, wait) in
        [("semaphore_signal", "semaphore_wait"), ("semaphore_relaxed_signal", "semaphore_relaxed_wait")]
    {
        calls[1].start(&machine, wait, 1, 32, end(1));
        sleep(WHILE);
        assert_eq!(calls[1].result(0, 0), NOTHING, "{wait} waits");
        calls[0].run(&machine, signal, 1, 32, end(0));
        assert_eq!(calls[1].result(0, 0), NOT, "{wait}");
        assert_eq!(poll(), 0);
        calls[0].run(&machine, signal, 1, 32, end(0));
        assert_eq!([poll(), poll()], [1, 0]);
    }
    // Once told, every later wait leaves too.
    machine.abort();
    for wait in ["semaphore_wait", "semaphore_relaxed_wait"] {
        assert_eq!(calls[1].run(&machine, wait, 1, 32, end(1)), TOLD, "{wait}");
    }
    let record = machine.record(1);
    assert_eq!((record.operation, record.peer, record.awaited), (Operation::WAIT.0, 0, 5));
}

fn a_barrier_spreads_the_worst_status_within_a_group(form: Form) {
    let machine = Machine::new(1);
    let calls = Calls::new(&machine, 0, form);
    for status in [NOT, CLOSED, NOT] {
        let args = Args::default().u32(u32::try_from(status).unwrap()).u32(2);
        calls.run(&machine, "group_barrier", 3, 64, args);
        for thread in 0..3 * 64 {
            let odd = thread / 64 == ODD_ONE / 64 && status != NOT;
            assert_eq!(calls.result(thread, 0), if odd { TOLD } else { NOT }, "{status} in {thread}");
        }
    }
}

/// A barrier in memory of its own, zeroed once.
fn grid(machine: &Machine) -> GridBarrierHandle {
    GridBarrierHandle { state: machine.alloc(0, 8), abort: machine.abort_handle(0, NO_PEER) }
}

fn a_barrier_of_a_grid_spreads_the_worst_status_to_all(form: Form) {
    let machine = Machine::new(1);
    let calls = Calls::new(&machine, 0, form);
    let grid = grid(&machine);
    // `grid_sync` takes blocks of any size.
    for (name, block) in [("grid_barrier", 64), ("grid_sync", 64), ("grid_sync", 41), ("grid_sync", 7)] {
        for status in [NOT, CLOSED, CLOSED, NOT, NOT] {
            let args = Args::default().structure(&grid).u32(u32::try_from(status).unwrap());
            let args = if name == "grid_barrier" { args.u32(3).u32(2) } else { args };
            calls.run(&machine, name, 3, block, args);
            let expected = if status == NOT { NOT } else { TOLD };
            for thread in 0..3 * u64::from(block) {
                assert_eq!(
                    calls.result(thread, 0),
                    expected,
                    "{name}, blocks of {block}: {status} in {thread}"
                );
            }
        }
    }
}

fn a_grid_barrier_that_was_given_up_is_used_again(form: Form) {
    let machine = Machine::new(1);
    let calls = Calls::new(&machine, 0, form);
    let mut grid = grid(&machine);
    grid.abort.word = machine.host(8) as u64;
    let abort_word = word(grid.abort.word);
    let args = |groups: u32| Args::default().structure(&grid).u32(0).u32(groups).u32(0);
    for turn in 0..3 {
        // One group more than there are.
        calls.start(&machine, "grid_barrier", 2, 32, args(3));
        sleep(WHILE);
        assert_eq!([0, 63].map(|thread| calls.result(thread, 0)), [NOTHING; 2]);
        abort_word.store(1, Ordering::Release);
        machine.finish();
        assert!((0..64).all(|thread| calls.result(thread, 0) == TOLD), "every thread leaves");
        abort_word.store(0, Ordering::Release);
        // No host resets it. As often as it takes to come back to both phases.
        for _ in 0..turn {
            calls.run(&machine, "grid_barrier", 3, 32, args(3));
            assert!((0..96).all(|thread| calls.result(thread, 0) == NOT), "turn {turn}");
        }
    }
    let record = machine.record(0);
    assert_eq!((record.operation, record.awaited, record.peer), (Operation::GRID_BARRIER.0, 3, NO_PEER));
    // The group that takes back the second arrival, and saw only its own, may be the one that writes the record.
    assert!((1..=2).contains(&record.seen), "{} groups had arrived", record.seen);
}

fn a_grid_barrier_at_which_all_have_arrived_is_not_given_up(form: Form) {
    let machine = Machine::new(1);
    let calls = Calls::new(&machine, 0, form);
    let mut grid = grid(&machine);
    grid.abort.word = machine.host(8) as u64;
    calls.start(&machine, "grid_barrier", 1, 32, Args::default().structure(&grid).u32(0).u32(2).u32(0));
    let since = Instant::now();
    while machine.read(0, grid.state, 8) != 1_u64.to_ne_bytes() {
        assert!(since.elapsed() < patience(), "the group did not arrive");
    }
    // The host is the last group: between its arrival and the opening, the others are told to leave.
    machine.write(0, grid.state, &2_u64.to_ne_bytes());
    word(grid.abort.word).store(1, Ordering::Release);
    sleep(WHILE);
    assert_eq!(calls.result(0, 0), NOTHING, "the barrier is about to open");
    machine.write(0, grid.state, &(1_u64 << 63).to_ne_bytes());
    machine.finish();
    assert!((0..32).all(|thread| calls.result(thread, 0) == NOT), "all pass or none does");
    assert_eq!(machine.read(0, grid.state, 8), (1_u64 << 63).to_ne_bytes());
}

fn the_last_group_learns_that_it_is(form: Form) {
    let machine = Machine::new(1);
    let calls = Calls::new(&machine, 0, form);
    let arrived = machine.alloc(0, 4);
    let last =
        [(); 7].map(|()| calls.run(&machine, "last_group", 1, 32, Args::default().u64(arrived).u32(3)));
    assert_eq!(last, [0, 0, 1, 0, 0, 1, 0]);
}
