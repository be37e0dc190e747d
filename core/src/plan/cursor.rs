//! Walks a block's operations as they run: those of a loop once for each iteration.

use super::ir::{Loop, Op, Operation};

/// A place in a block.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    index: usize,
    inner: usize,
    iteration: u64,
}

/// An operation about to run. It is never a loop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<'p> {
    pub(super) op: &'p Op,
    /// Index in the block.
    pub(super) index: usize,
    /// Loop, index in it and iteration.
    pub(super) turn: Option<(&'p Loop, usize, u64)>,
}

impl Cursor {
    /// The next operation; moves past it. `iterations` says how often a loop runs.
    pub(super) fn next<'p>(
        &mut self,
        ops: &'p [Operation],
        iterations: impl Fn(&Loop) -> u64,
    ) -> Option<Step<'p>> {
        loop {
            let index = self.index;
            match &ops.get(index)?.op {
                Op::Loop(repeated) => {
                    if self.iteration < iterations(repeated) {
                        if let Some(operation) = repeated.body.get(self.inner) {
                            let turn = Some((&**repeated, self.inner, self.iteration));
                            self.inner += 1;
                            return Some(Step { op: &operation.op, index, turn });
                        }
                        if !repeated.body.is_empty() {
                            (self.inner, self.iteration) = (0, self.iteration + 1);
                            continue;
                        }
                    }
                    *self = Self { index: index + 1, ..Self::default() };
                }
                op => {
                    self.index += 1;
                    return Some(Step { op, index, turn: None });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ir::Channel;
    use super::*;

    #[test]
    fn loops_repeat_their_bodies() {
        let channel = |index| Channel { kind: super::super::ir::ChannelKind::Memory, index };
        let wait = |index| Op::Wait { channel: channel(index) }.at(0);
        let repeated = |body| Op::Loop(Box::new(Loop { unit: 1, chunks: 1, body })).at(0);
        let ops = [wait(0), repeated(vec![wait(1), wait(2)]), repeated(Vec::new()), wait(3)];
        let mut cursor = Cursor::default();
        let mut seen = Vec::new();
        while let Some(step) = cursor.next(&ops, |_| 2) {
            let Op::Wait { channel, .. } = step.op else { panic!("{step:?}") };
            seen.push((channel.index, step.index, step.turn.map(|(_, inner, iteration)| (inner, iteration))));
        }
        let expected = [
            (0, 0, None),
            (1, 1, Some((0, 0))),
            (2, 1, Some((1, 0))),
            (1, 1, Some((0, 1))),
            (2, 1, Some((1, 1))),
            (3, 3, None),
        ];
        assert_eq!(seen, expected);
    }
}
