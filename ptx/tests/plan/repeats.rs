//! Repetitions: in each turn other numbers of the block's row.

use aqueduct_ptx::plan::{
    Base, Block, Element, Kernel, Move, Number, Operand, Reduction, Shape, Share, Step,
};

use crate::rig::{fixed, kernel, moved};
use crate::solo::{Solo, at, sizes};

/// Adds a chunk of the input to one of the output, by the numbers of a turn; all blocks share each.
fn add(from: u32, to: u32, member: u32) -> Step {
    let [from, to] = [(Base::Input, from), (Base::Output, to)]
        .map(|(base, entry)| Operand { first: Number::Row(entry), ..at(base, 0) });
    Step::Move(Move {
        sources: vec![to, from],
        targets: vec![to],
        count: fixed(1),
        reduction: Some(Reduction::Sum),
        share: Some(Share { member: Number::Row(member), of: fixed(2) }),
        by_rows: false,
    })
}

fn of(steps: Vec<Step>, rows: [Vec<u32>; 2]) -> Kernel {
    let blocks = rows.into_iter().map(|row| Block { shape: 0, row }).collect();
    Kernel { shapes: vec![Shape { steps }], blocks, ..kernel(1, Element::U32, Vec::new()) }
}

/// A row has numbers before, in and behind the repetition.
#[test]
fn a_turn_has_numbers_of_its_own() {
    let mut solo = Solo::new(60_000, 1, 128);
    for turns in [2_u32, 3, 17, 100] {
        let steps = vec![
            add(0, 1, 2),
            Step::Sync,
            Step::Repeat { turns, stride: 3, body: vec![add(3, 4, 5), Step::Sync] },
            add(3 + 3 * turns, 1, 2),
        ];
        let row = |member: u32| {
            let turn = |turn: u32| [turn * 5 % 9, turn * turn % 7, member];
            [vec![8, 3, member], (0..turns).flat_map(turn).collect(), vec![turns % 9]].concat()
        };
        let plan = of(steps, [0, 1].map(row));
        for chunk in [16, 800, 1028] {
            solo.run(&plan, sizes(chunk, 9 * chunk), [0, 0]);
        }
    }
}

/// Numbers that are equal in all turns need no row, and one block's repetition needs one.
#[test]
fn a_turn_may_have_the_numbers_of_all() {
    let mut solo = Solo::new(20_000, 1, 128);
    let both = vec![at(Base::Output, 0), at(Base::Input, 1)];
    let body = vec![moved(both, vec![at(Base::Output, 0)], 2, Some(Reduction::Sum)), Step::Sync];
    let plan = kernel(1, Element::U32, vec![Step::Repeat { turns: 5, stride: 0, body }]);
    assert_eq!(plan.args_rows(), []);
    solo.run(&plan, sizes(1600, 4800), [0, 0]);
    let copy = Step::Move(Move {
        sources: vec![Operand { first: Number::Row(0), ..at(Base::Input, 0) }],
        targets: vec![Operand { first: Number::Row(1), ..at(Base::Output, 0) }],
        count: fixed(1),
        reduction: None,
        share: None,
        by_rows: false,
    });
    let mut plan = kernel(1, Element::U32, vec![Step::Repeat { turns: 3, stride: 2, body: vec![copy] }]);
    plan.blocks[0].row = vec![0, 2, 2, 1, 1, 0];
    solo.run(&plan, sizes(1600, 4800), [0, 0]);
}

/// The text does not grow with the turns.
#[test]
fn turns_take_no_text() {
    let solo = Solo::new(64, 1, 128);
    let text = |turns: u32| {
        let body = vec![add(0, 1, 2), Step::Sync];
        let row = |member: u32| (0..turns).flat_map(|turn| [turn, turn + 1, member]).collect();
        let plan = of(vec![Step::Repeat { turns, stride: 3, body }], [0, 1].map(row));
        solo.world.render(&plan).unwrap().lines().count()
    };
    assert_eq!(text(30), text(60));
}

#[test]
fn wrong_repetitions_are_refused() {
    let solo = Solo::new(64, 1, 128);
    let refused = |step: Step| {
        let plan = of(vec![step], [0, 1].map(|member| vec![0, 0, member, 1, 0, member]));
        solo.world.render(&plan).unwrap_err().to_string()
    };
    let body = || vec![add(0, 1, 2), Step::Sync];
    let repeat = |turns, body| Step::Repeat { turns, stride: 3, body };
    assert!(refused(repeat(1, body())).contains("at least 2"));
    assert!(refused(repeat(3, body())).contains("more than the 6 numbers"));
    assert!(refused(repeat(2, vec![repeat(2, vec![Step::Sync])])).contains("a loop in a loop"));
    let slices = Step::Loop { unit: 16, chunks: fixed(1), body: vec![repeat(2, body())] };
    assert!(refused(slices).contains("a loop in a loop"));
}
