//! New numbers for everything that operations name.

use super::ir::{Barrier, Block, Buffer, Channel, ChannelKind, Op, Operand, Operation};

/// How a rank's numbers change.
pub(super) struct Numbers<'n> {
    pub(super) channel: &'n dyn Fn(Channel) -> Channel,
    pub(super) semaphore: &'n dyn Fn(u32) -> u32,
    pub(super) operand: &'n dyn Fn(Operand) -> Operand,
    /// A side of a port put: this rank's, or that of the peer of a port channel (by its old number).
    pub(super) chunk: &'n dyn Fn(Option<u32>, (Buffer, u32)) -> (Buffer, u32),
    pub(super) barrier: &'n mut dyn FnMut(Barrier) -> Barrier,
}

/// Changes the numbers in all operations.
pub(super) fn blocks(blocks: &mut [Block], mut numbers: Numbers<'_>) {
    blocks.iter_mut().for_each(|block| numbers.operations(&mut block.ops));
}

impl Numbers<'_> {
    fn operations(&mut self, ops: &mut [Operation]) {
        let port = |index| Channel { kind: ChannelKind::Port, index };
        for operation in ops {
            match &mut operation.op {
                Op::Sync => {}
                Op::Barrier(barrier) => *barrier = (self.barrier)(*barrier),
                Op::Signal { channel, .. } | Op::Wait { channel, .. } => *channel = (self.channel)(*channel),
                Op::Flush { channel } => *channel = (self.channel)(port(*channel)).index,
                Op::Acquire { semaphore } | Op::Release { semaphore } => {
                    *semaphore = (self.semaphore)(*semaphore);
                }
                Op::Move(moved) => {
                    for operand in moved.sources.iter_mut().chain(&mut moved.targets) {
                        *operand = (self.operand)(*operand);
                    }
                }
                Op::Port(put) => {
                    put.source = (self.chunk)(None, put.source);
                    put.target = (self.chunk)(Some(put.channel), put.target);
                    put.channel = (self.channel)(port(put.channel)).index;
                }
                Op::Loop(repeated) => self.operations(&mut repeated.body),
            }
        }
    }
}
