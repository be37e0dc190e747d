//! Several blocks: shapes, rows, shares, loops, semaphores, barriers.

use aqueduct_ptx::plan::{
    Base, Block, Element, Kernel, Move, Number, Operand, Reduction, Shape, Share, Step,
};

use crate::rig::{BARRIERS, SEMAPHORES, fixed, kernel, moved, with_packets};
use crate::solo::{Solo, at, sizes};

/// A copy of `count` chunks of which a block does its share.
fn shared(from: Operand, to: Operand, count: u32, member: Number, of: Number) -> Step {
    let share = Some(Share { member, of });
    Step::Move(Move {
        sources: vec![from],
        targets: vec![to],
        count: fixed(count),
        reduction: None,
        share,
        by_rows: false,
    })
}

const SUM: Option<Reduction> = Some(Reduction::Sum);

/// Blocks of shape 0 whose rows are `rows`.
fn blocks(kernel: Kernel, rows: &[&[u32]]) -> Kernel {
    let blocks = rows.iter().map(|row| Block { shape: 0, row: row.to_vec() }).collect();
    Kernel { blocks, ..kernel }
}

#[test]
fn shares_and_loops_cover_a_range_once() {
    let mut solo = Solo::new(4_000, 4, 1152);
    for count in [1, 3] {
        for of in [1, 2, 5] {
            let copy = |base, first| {
                shared(at(Base::Input, 0), at(base, first), count, Number::Row(0), Number::Row(1))
            };
            for loops in [false, true] {
                let steps = vec![copy(Base::Output, 0), copy(Base::Scratch, 1), copy(Base::Packets, 1)];
                let steps = if loops {
                    vec![Step::Loop { unit: 80, chunks: fixed(count), body: steps }]
                } else {
                    steps
                };
                let plan = with_packets(kernel(1, Element::F16, steps), 0, 4);
                let rows: Vec<_> = (0..of).map(|member| vec![member, of]).collect();
                let rows: Vec<_> = rows.iter().map(Vec::as_slice).collect();
                let plan = blocks(plan, &rows);
                for chunk in [2, 14, 16, 18, 240, 1026] {
                    solo.run(&plan, sizes(chunk, u64::from(count) * chunk - 2), [chunk / 2 % 2 * 2, 0]);
                }
            }
        }
    }
}

/// Each block of a shape has numbers of its own: address, chunk, count. Other shapes stand between its blocks.
#[test]
fn rows_give_each_block_its_numbers() {
    let mut solo = Solo::new(60_000, 4, 1024);
    let row = Step::Move(Move {
        sources: vec![Operand { address: Number::Row(0), first: Number::Row(1), ..at(Base::Input, 0) }],
        targets: vec![Operand { first: Number::Row(2), ..at(Base::Output, 0) }],
        count: Number::Row(3),
        reduction: None,
        share: None,
        by_rows: false,
    });
    let other = moved(vec![at(Base::Input, 0)], vec![at(Base::Scratch, 1)], 1, None);
    let mut plan = kernel(1, Element::U8, Vec::new());
    plan.shapes =
        vec![Shape { steps: vec![row] }, Shape { steps: vec![other] }, Shape { steps: vec![Step::Sync] }];
    let block = |shape: u32, row: &[u32]| Block { shape, row: row.to_vec() };
    plan.blocks = vec![
        block(0, &[1, 7, 1, 2]),
        block(1, &[]),
        block(0, &[1, 0, 20, 1]),
        block(0, &[1, 3, 9, 4]),
        block(2, &[5]),
        block(2, &[6]),
        block(0, &[1, 11, 30, 3]),
    ];
    for chunk in [16, 33, 800] {
        solo.run(&plan, sizes(chunk, 40 * chunk), [0, 0]);
    }
}

/// Rows lie in the kernel's parameter, in constant memory if they are longer, and in global memory beyond 32 KiB.
#[test]
fn rows_may_be_long() {
    let mut solo = Solo::new(40_000, 1, 128);
    let step = |index: u32| {
        let place = |base| Operand { first: Number::Row(index), ..at(base, 0) };
        moved(vec![place(Base::Input)], vec![place(Base::Output)], 1, None)
    };
    for length in [3, 40, 400] {
        let mut plan = kernel(1, Element::U32, vec![step(0), step(length - 1)]);
        let row = |block: u32| (0..length).map(|index| if index == 0 { block } else { 60 + block }).collect();
        plan.blocks = (0..40).map(|block| Block { shape: 0, row: row(block) }).collect();
        let text = solo.world.render(&plan).unwrap();
        assert_eq!(text.contains("\n.global"), length == 400, "{length}");
        assert_eq!(text.contains("\n.const"), length == 40, "{length}");
        assert_eq!(plan.args_rows().len(), if length == 3 { 120 } else { 0 });
        solo.run(&plan, sizes(32, 128 * 32), [0, 0]);
    }
}

/// Blocks hand a chunk on by semaphores, and the last one tells all by a barrier.
#[test]
fn semaphores_and_barriers_order_blocks() {
    let mut solo = Solo::new(60_000, 8, 1024);
    let semaphore = |nth: u32| fixed(SEMAPHORES + 4 * nth);
    let hop = |from: u32| moved(vec![at(Base::Scratch, from)], vec![at(Base::Scratch, from + 1)], 1, None);
    let bodies = [
        vec![
            moved(vec![at(Base::Input, 0)], vec![at(Base::Scratch, 0)], 1, None),
            Step::Sync,
            Step::Release { at: semaphore(0) },
        ],
        vec![
            Step::Acquire { at: semaphore(0) },
            Step::Sync,
            hop(0),
            Step::Sync,
            Step::Release { at: semaphore(1) },
        ],
        vec![Step::Acquire { at: semaphore(1) }, Step::Sync, hop(1)],
    ];
    let all = vec![
        Step::Barrier { state: fixed(BARRIERS), blocks: fixed(3) },
        shared(at(Base::Scratch, 2), at(Base::Output, 0), 1, Number::Row(0), fixed(3)),
        Step::Barrier { state: fixed(BARRIERS), blocks: fixed(3) },
        shared(at(Base::Output, 0), at(Base::Output, 1), 1, Number::Row(1), fixed(3)),
    ];
    let mut plan = kernel(1, Element::U8, Vec::new());
    plan.shapes = bodies.into_iter().map(|body| Shape { steps: [body, all.clone()].concat() }).collect();
    let place = |shape: u32| Block { shape, row: vec![shape, (shape + 1) % 3] };
    plan.blocks = (0..3).map(place).collect();
    for chunk in [48, 1000, 1024] {
        solo.run(&plan, sizes(chunk, 8 * chunk), [0, 0]);
    }
}

/// A semaphore has a value before the first call, and is acquired and released as often as a loop turns.
#[test]
fn a_semaphore_in_a_loop() {
    let mut solo = Solo::new(20_000, 2, 8192);
    let [filled, free] = [fixed(SEMAPHORES), fixed(SEMAPHORES + 4)];
    let copy = |from, to| moved(vec![at(from, 0)], vec![at(to, 0)], 1, None);
    let bodies = [
        vec![
            Step::Acquire { at: free },
            Step::Sync,
            copy(Base::Input, Base::Scratch),
            Step::Sync,
            Step::Release { at: filled },
        ],
        vec![
            Step::Acquire { at: filled },
            Step::Sync,
            copy(Base::Scratch, Base::Output),
            Step::Sync,
            Step::Release { at: free },
        ],
    ];
    let mut plan = kernel(1, Element::U8, Vec::new());
    let body = |body| Shape { steps: vec![Step::Loop { unit: 512, chunks: fixed(1), body }] };
    plan.shapes = bodies.into_iter().map(body).collect();
    plan.blocks = (0..2).map(|shape| Block { shape, row: Vec::new() }).collect();
    let at = solo.world.memory[0].control + u64::from(SEMAPHORES);
    let value = |solo: &Solo| solo.world.machine.read(0, at, 8);
    let start = [0u32, 2].map(u32::to_ne_bytes).concat();
    solo.world.machine.write(0, at, &start);
    for chunk in [8, 512, 513, 8000] {
        solo.run(&plan, sizes(chunk, chunk), [0, 0]);
        assert_eq!(value(&solo), start, "every acquire has its release");
    }
}

/// Blocks compete for one semaphore, and whoever has it adds to the same slices: an acquire that another block was quicker to
/// take is none.
#[test]
fn only_one_block_has_a_semaphore() {
    let mut solo = Solo::new(4000, 1, 128);
    let sum = || moved(vec![at(Base::Output, 0), at(Base::Input, 0)], vec![at(Base::Output, 0)], 1, SUM);
    let one = fixed(SEMAPHORES);
    let body = vec![Step::Acquire { at: one }, Step::Sync, sum(), Step::Sync, Step::Release { at: one }];
    let plan = kernel(1, Element::U32, vec![Step::Loop { unit: 64, chunks: fixed(1), body }]);
    let plan = blocks(plan, &[&[][..]; 8]);
    let at = solo.world.memory[0].control + u64::from(SEMAPHORES);
    solo.world.machine.write(0, at, &1u32.to_ne_bytes());
    for _ in 0..4 {
        solo.run(&plan, sizes(3200, 3200), [0, 0]);
        assert_eq!(solo.world.machine.read(0, at, 4), 1u32.to_ne_bytes(), "every acquire has its release");
    }
}

/// A slice that is handled twice is added twice.
#[test]
fn a_loop_adds_each_slice_once() {
    let mut solo = Solo::new(9000, 1, 128);
    for count in [1, 2] {
        let both = vec![at(Base::Output, 0), at(Base::Input, 0)];
        let sum = moved(both, vec![at(Base::Output, 0)], count, Some(Reduction::Sum));
        let repeat = Step::Loop { unit: 1024, chunks: fixed(count), body: vec![sum, Step::Sync] };
        let plan = kernel(1, Element::U32, vec![repeat]);
        for chunk in [1020, 1024, 1028, 4000] {
            solo.run(&plan, sizes(chunk, u64::from(count) * chunk), [0, 0]);
        }
    }
}

#[test]
fn a_reduction_by_several_blocks_in_place() {
    let mut solo = Solo::new(60_000, 1, 128);
    let sum = Step::Move(Move {
        sources: vec![at(Base::Output, 0), at(Base::Input, 0)],
        targets: vec![at(Base::Output, 0)],
        count: fixed(2),
        reduction: Some(Reduction::Sum),
        share: Some(Share { member: Number::Row(0), of: fixed(4) }),
        by_rows: false,
    });
    let plan = blocks(kernel(1, Element::I64, vec![sum]), &[&[2], &[0], &[3], &[1]]);
    for chunk in [8, 1000, 20_000, 20_008] {
        for skew in [[8, 0], [0, 0]] {
            solo.run(&plan, sizes(chunk, 2 * chunk), skew);
        }
    }
}
