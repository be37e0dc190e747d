//! Steps that lanes of the first warp take at once, before and behind steps of the first thread.
//!
//! Rank 2 writes into the memory of rank 1 and tells rank 0. Rank 0 hears of ranks 1 and 2 by a lane each, and its first thread
//! then tells rank 1, which reads. So the lane that hears of rank 2 has to hand this on to the first thread.

use aqueduct_ptx::plan::{Base, Element, Signal, Step};

use crate::rig::{CANARY, Sizes, World, fixed, kernel, moved, noise, operand, signal, wait};

const BYTES: u64 = 256;

fn tell(me: u32, peer: u32) -> Step {
    Step::Signal(vec![signal(me, peer)])
}

/// Both lanes of rank 0.
fn hear() -> Step {
    Step::Wait(vec![wait(1), wait(2)])
}

/// A move of rank 0 that has nothing to do with the data.
fn other() -> Step {
    moved(vec![operand(0, Base::Input, 0)], vec![operand(0, Base::Scratch, 0)], 1, None)
}

/// Runs rank 0 with `middle`, which hears and tells `times` in a call.
fn goes_around(middle: Vec<Step>, times: usize) {
    let write = moved(vec![operand(2, Base::Input, 0)], vec![operand(1, Base::Scratch, 0)], 1, None);
    let read = moved(vec![operand(1, Base::Scratch, 0)], vec![operand(1, Base::Output, 0)], 1, None);
    let often = |step: Step| vec![step; times];
    let reader = [often(tell(1, 0)), often(Step::Wait(vec![wait(0)])), vec![Step::Sync, read]].concat();
    let writer = [vec![write, Step::Sync], often(tell(2, 0))].concat();
    let kernels = [middle, reader, writer].map(|steps| kernel(3, Element::U8, steps));
    let world = World::new(3, 1024, 1, 1024);
    for call in 1..10 {
        let data = noise(call, BYTES as usize);
        world.machine.write(2, world.memory[2].input + CANARY as u64, &data);
        world.run(&kernels, Sizes { chunk: BYTES, input: BYTES, output: BYTES }, [0, 0]);
        let found = world.machine.read(1, world.memory[1].output + CANARY as u64, data.len());
        assert!(found == data, "call {call}");
    }
}

#[test]
fn what_a_lane_heard_comes_before_what_the_first_thread_tells() {
    goes_around(vec![hear(), tell(0, 1)], 1);
}

/// Another entry of the same list is relaxed.
#[test]
fn entries_of_one_list_may_differ_in_strength() {
    let also = Signal { relaxed: true, ..signal(0, 2) };
    goes_around(vec![hear(), Step::Signal(vec![also, signal(0, 1)])], 1);
}

/// The block does not meet between the two.
#[test]
fn what_a_lane_heard_comes_before_steps_behind_a_move() {
    goes_around(vec![hear(), other(), tell(0, 1)], 1);
}

#[test]
fn what_a_lane_heard_in_a_loop_comes_before_steps_behind_it() {
    let body = vec![hear()];
    goes_around(vec![Step::Loop { unit: BYTES, chunks: fixed(1), body }, tell(0, 1)], 1);
}

/// The same between the end of a loop's body and its beginning: the first turn tells what nobody heard, the second what the
/// first heard.
#[test]
fn what_a_lane_heard_comes_before_the_next_turn_of_a_loop() {
    let body = vec![tell(0, 1), other(), hear()];
    goes_around(vec![Step::Loop { unit: BYTES / 2, chunks: fixed(1), body }], 2);
}
