//! A warp: its 32 lanes, their positions in the code, and the choice of the lanes that run next.

use super::buffer::{Line, lines};
use super::fault::{FaultKind, Trouble};
use super::memory::Stacks;
use super::rare::Rare;
use super::regs::{ALL, LANES, Lanes, Regs, Window, lanes};
use super::spin::Spin;
use crate::check;
use crate::code::{Function, Module};

/// The state of a warp between turns.
#[derive(Debug)]
pub(super) struct Warp {
    /// The number of the warp in its block.
    pub(super) index: usize,
    pub(super) regs: Regs,
    /// The program counter of each lane.
    pub(super) pc: Lanes<u32>,
    /// The index in `frames` of each lane's current frame.
    frame: Lanes<u16>,
    /// The distinct frames of active calls. Lanes share a frame if function, window, stack offset and depth agree.
    frames: Vec<Frame>,
    /// The call stack of each lane; empty until the first call.
    returns: Vec<Vec<Return>>,
    /// Lanes that have not exited.
    pub(super) live: u32,
    /// Lanes that wait at a collective instruction for other lanes of the warp.
    pub(super) meeting: u32,
    /// The member mask that each of them waits for; once they have met, those who came.
    pub(super) meeting_for: Lanes<u32>,
    /// Lanes whose members have all arrived but that have not executed the instruction yet.
    pub(super) met: u32,
    /// Lanes that have arrived at the cluster's barrier and have not waited yet.
    pub(super) arrived: u32,
    /// Lanes of them that arrived in an odd phase.
    pub(super) arrived_odd: u32,
    /// The value of `clock` when each lane last ran, for fairness.
    stamp: Lanes<u32>,
    clock: u32,
    pub(super) spin: Spin,
    pub(super) rare: Rare,
    /// Lanes found waiting in a loop during this turn.
    pub(super) spinning: u32,
    /// The addresses that they poll.
    pub(super) watches: Vec<u64>,
    stacks: Box<[Line]>,
    pub(super) stack_size: u32,
    /// The warp as the race detector sees it, if that is on.
    pub(super) check: Option<Box<check::Warp>>,
    /// A load that is put off.
    pub(super) deferred: Option<Box<Deferred>>,
    /// If warps must be together at aligned barriers, or loads are weak: a number for the path of each lane since it last met
    /// the others. Equal paths have equal numbers.
    pub(super) paths: Option<Box<Lanes<u64>>>,
}

/// An active call, as far as lanes can share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) function: u32,
    pub(super) window: Window,
    /// The offset of the frame in the lane's stack.
    pub(super) stack: u32,
    pub(super) depth: u16,
}

/// Where a lane continues after a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Return {
    /// The call instruction.
    pub(super) pc: u32,
    frame: u16,
}

/// Lanes at the same instruction of the same frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) mask: u32,
    pub(super) pc: u32,
    pub(super) frame: u16,
}

/// A load that is put off behind later instructions.
#[derive(Debug)]
pub(super) struct Deferred {
    /// The load, and the lanes that perform it.
    pub(super) load: Group,
    /// The last instruction that may run before it.
    pub(super) until: u32,
    pub(super) at: Lanes<u64>,
    /// Bytes that each lane loads.
    pub(super) bytes: u64,
}

impl Warp {
    /// Creates a warp whose lanes `live` are at the beginning of `function`. With a seed, its registers
    /// and local memory hold garbage at first.
    pub(super) fn new(
        index: usize,
        live: u32,
        function: u32,
        code: &Function,
        stack_size: u32,
        garbage: Option<u64>,
    ) -> Self {
        let frame = Frame { function, window: Window::default(), stack: 0, depth: 0 };
        let mut regs = Regs::new(garbage);
        regs.enter(frame.window, code);
        Warp {
            index,
            regs,
            pc: [0; LANES],
            frame: [0; LANES],
            frames: vec![frame],
            returns: Vec::new(),
            live,
            meeting: 0,
            meeting_for: [0; LANES],
            met: 0,
            arrived: 0,
            arrived_odd: 0,
            stamp: [0; LANES],
            clock: 0,
            spin: Spin::default(),
            rare: Rare::default(),
            spinning: 0,
            watches: Vec::new(),
            stacks: lines(u64::from(stack_size) * LANES as u64, garbage),
            stack_size,
            check: None,
            deferred: None,
            paths: None,
        }
    }

    /// The stacks of the lanes.
    pub(super) fn stacks(&self) -> Stacks {
        let base = self.stacks.as_ptr().expose_provenance() as u64;
        Stacks { base, stride: u64::from(self.stack_size) }
    }

    /// The frame with this index.
    #[inline]
    pub(super) fn frame(&self, number: u16) -> Frame {
        self.frames[usize::from(number)]
    }

    /// The current frame of a lane.
    pub(super) fn frame_of(&self, lane: usize) -> Frame {
        self.frame(self.frame[lane])
    }

    /// Chooses the lanes of `ready` that run next: those in the deepest call and, within it, at the lowest program
    /// counter, so that lanes ahead wait where paths join. With `oldest`, chooses the lanes that have not run for the
    /// longest time.
    pub(super) fn choose(&mut self, ready: u32, oldest: bool) -> Option<Group> {
        let first = if oldest {
            lanes(ready).min_by_key(|l| self.stamp[*l])?
        } else if self.frames.len() == 1 {
            lanes(ready).min_by_key(|l| self.pc[*l])?
        } else {
            lanes(ready).min_by_key(|l| (u16::MAX - self.frame_of(*l).depth, self.pc[*l]))?
        };
        let (pc, frame) = (self.pc[first], self.frame[first]);
        self.clock += 1;
        let mut mask = 0;
        for lane in lanes(ready) {
            if self.pc[lane] == pc && self.frame[lane] == frame {
                mask |= 1 << lane;
                self.stamp[lane] = self.clock;
            }
        }
        Some(Group { mask, pc, frame })
    }

    /// The lowest program counter, at or after `pc`, of the lanes of `others` in the same frame.
    pub(super) fn next_join(&self, others: u32, frame: u16, pc: u32) -> u32 {
        lanes(others)
            .filter(|l| self.frame[*l] == frame && self.pc[*l] >= pc)
            .map(|l| self.pc[l])
            .min()
            .unwrap_or(u32::MAX)
    }

    /// Sets the program counter of the lanes of `mask`.
    pub(super) fn place(&mut self, mask: u32, pc: u32) {
        if mask == ALL {
            self.pc = [pc; LANES];
        } else {
            for lane in lanes(mask) {
                self.pc[lane] = pc;
            }
        }
    }

    /// Moves the lanes of `mask` into `callee`. They return to the instruction after the call at `group.pc`.
    ///
    /// # Errors
    /// A stack overflow if the stack has no room for the frame.
    pub(super) fn call(
        &mut self,
        module: &Module,
        group: Group,
        mask: u32,
        callee: u32,
    ) -> Result<Frame, Trouble> {
        let caller = self.frame(group.frame);
        let code = &module.functions[caller.function as usize];
        let frame = Frame {
            function: callee,
            window: caller.window.after(code),
            stack: caller.stack + code.frame_size,
            depth: caller.depth + 1,
        };
        let end = u64::from(frame.stack) + u64::from(module.functions[callee as usize].frame_size);
        if end > u64::from(self.stack_size) || frame.depth > MAX_DEPTH {
            return Err(Trouble::of(FaultKind::StackOverflow, mask));
        }
        let number = self.frames.iter().position(|f| *f == frame).unwrap_or_else(|| {
            self.frames.push(frame);
            self.frames.len() - 1
        });
        self.returns.resize(LANES, Vec::new());
        for lane in lanes(mask) {
            self.returns[lane].push(Return { pc: group.pc, frame: group.frame });
            self.pc[lane] = 0;
            // There are fewer distinct frames than call sites times depth, far below 2^16.
            self.frame[lane] = number as u16;
        }
        Ok(frame)
    }

    /// Returns a lane to its caller. The result is the call and the caller's frame, or `None` in the kernel itself.
    pub(super) fn ret(&mut self, lane: usize) -> Option<(Return, Frame)> {
        let back = self.returns.get_mut(lane)?.pop()?;
        self.frame[lane] = back.frame;
        self.pc[lane] = back.pc + 1;
        Some((back, self.frame(back.frame)))
    }

    /// Releases lanes at a collective instruction once every live lane of their member mask has arrived.
    pub(super) fn meet(&mut self) {
        for lane in lanes(self.meeting) {
            let all = self.meeting_for[lane] & self.live;
            let here = lanes(self.meeting & all)
                .filter(|l| self.meeting_for[*l] == self.meeting_for[lane])
                .fold(0, |m, l| m | 1 << l);
            if all & !here == 0 {
                self.met |= here;
                self.meeting &= !here;
                lanes(here).for_each(|l| self.meeting_for[l] = here);
            }
        }
    }
}

const MAX_DEPTH: u16 = 1024;
