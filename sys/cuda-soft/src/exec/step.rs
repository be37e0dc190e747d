//! The turn of a warp: groups of lanes run until they diverge, join, wait or have used up their share.

use super::alu;
use super::buffer::Range;
use super::fault::{FaultKind, Trouble};
use super::memory;
use super::regs::lanes;
use super::spin::{Loop, changes_nothing};
use super::turn::{Context, Flow, Turn};
use super::warp::{Frame, Group, Warp};
use crate::code::op::{Call, CallTarget, FrameCopy, Mem};
use crate::code::{self, Inst, Op, Semantics, Space};

/// Instructions in one turn.
const TURN: u32 = 4096;
/// Instructions after which lanes at other instructions get a chance.
const FAIR: u32 = 512;

/// Operations that the race detector does not follow: it would miss races, or report some that are none. Among them are
/// copies that here are complete at once, but elsewhere only behind a wait that a kernel may lack.
/// Returns the instruction's name.
fn unknown_to_the_race_detector(op: &Op) -> Option<&'static str> {
    let cluster = |mem: &Mem, name| (mem.space == Space::Cluster).then_some(name);
    match op {
        Op::CpAsync { .. } => Some("cp.async"),
        Op::Mbarrier(_) => Some("mbarrier"),
        Op::BulkCopy(_) => Some("cp.async.bulk"),
        Op::Mapa { .. } => Some("mapa"),
        Op::CtaRank { .. } => Some("getctarank"),
        Op::ClusterArrive => Some("barrier.cluster.arrive"),
        Op::ClusterWait => Some("barrier.cluster.wait"),
        Op::Ld { mem, .. } => cluster(mem, "ld.shared::cluster"),
        Op::St { mem, .. } => cluster(mem, "st.shared::cluster"),
        Op::Atom { mem, d: Some(_), .. } => cluster(mem, "atom.shared::cluster"),
        Op::Atom { mem, d: None, .. } => cluster(mem, "red.shared::cluster"),
        _ => None,
    }
}

/// Why a group stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// Lanes diverged, joined or blocked, so the groups must be formed anew.
    Regroup,
    /// The group ran for [`FAIR`] instructions while other lanes were ready.
    Unfair,
    /// The turn is over: its share is used up.
    Over,
    /// An instruction ends the turn.
    Pause,
}

impl Warp {
    /// Runs until the turn is over or all lanes wait.
    ///
    /// # Errors
    /// The first fault; the counter of its lane is at the instruction.
    pub(super) fn turn(&mut self, cx: &mut Context<'_, '_>) -> Result<Turn, Trouble> {
        self.spin.begin();
        self.spinning = 0;
        self.watches.clear();
        let mut left = TURN;
        let mut oldest = false;
        loop {
            let blocked = self.meeting | cx.barriers.waiting(self.index) | self.spinning;
            let ready = self.live & !blocked;
            let Some(group) = self.choose(ready, oldest) else { break };
            match self.run(cx, group, ready & !group.mask, &mut left)? {
                Stop::Regroup => oldest = false,
                Stop::Unfair => oldest = true,
                stop => return Ok(self.goes_on(stop == Stop::Pause)),
            }
        }
        Ok(match (self.live, self.spin.changed()) {
            (0, _) => Turn::Exited,
            (_, true) => self.goes_on(true),
            (_, false) => Turn::Waiting,
        })
    }

    fn goes_on(&self, pauses: bool) -> Turn {
        if self.spin.advanced(pauses) { Turn::Progress } else { Turn::Idle }
    }

    fn run(
        &mut self,
        cx: &mut Context<'_, '_>,
        group: Group,
        others: u32,
        left: &mut u32,
    ) -> Result<Stop, Trouble> {
        let Group { mask, mut pc, frame: number } = group;
        let frame = self.frame(number);
        let grid = cx.grid;
        let function = &grid.image().code.functions[frame.function as usize];
        self.regs.enter(frame.window, function);
        let mut join = self.next_join(others, number, pc);
        let mut fair = FAIR;
        loop {
            if pc >= join {
                self.place(mask, pc);
                return Ok(Stop::Regroup);
            }
            if *left == 0 {
                self.place(mask, pc);
                return Ok(Stop::Over);
            }
            if self.deferred.is_some() {
                let here = Group { mask, pc, frame: number };
                if self.pauses(cx, here) {
                    self.place(mask, pc);
                    return Ok(Stop::Pause);
                }
                if !self.may_wait(cx, here, function.code.get(pc as usize)) {
                    self.place(mask, pc);
                    self.perform(cx, frame)?;
                }
            }
            *left -= 1;
            if others != 0 {
                if fair == 0 {
                    self.place(mask, pc);
                    return Ok(Stop::Unfair);
                }
                fair -= 1;
            }
            let Some(Inst { guard, op }) = function.code.get(pc as usize) else {
                self.leave(cx, mask);
                return Ok(Stop::Regroup);
            };
            let active = match guard.pred {
                None => mask,
                Some(p) => mask & if guard.negate { !self.regs.pred(p) } else { self.regs.pred(p) },
            };
            if self.paths.is_some()
                && guard.pred.is_some()
                && let Err(trouble) = self.parts(cx, op, pc, mask, active)
            {
                self.place(mask, pc);
                return Err(trouble);
            }
            if active == 0 {
                pc += 1;
                continue;
            }
            if let Op::Bra { target } = *op {
                let mut waits = match target <= pc {
                    true => self.spin.backward((frame.function, pc), active, || {
                        changes_nothing(&function.code[target as usize..=pc as usize])
                    }),
                    false => Loop::Working,
                };
                if waits != Loop::Working && self.hurries(cx, frame, (pc, target), active) {
                    waits = Loop::Working;
                }
                if active != mask || waits != Loop::Working {
                    self.place(mask & !active, pc + 1);
                    self.place(active, target);
                    if let Loop::Waiting(watch) = waits {
                        self.wait(active, watch);
                    }
                    return Ok(Stop::Regroup);
                }
                // After a forward branch the known join is still the nearest one: the loop stops at or beyond it.
                let back = target <= pc;
                pc = target;
                if back && others != 0 {
                    join = self.next_join(others, number, pc);
                }
                continue;
            }
            if alu::run(&mut self.regs, active, op) {
                pc += 1;
                continue;
            }
            if self.check.is_some() && self.yields(cx, op) {
                self.place(mask, pc);
                return Ok(Stop::Pause);
            }
            let here = Group { mask: active, pc, frame: number };
            if self.check.is_some() && self.defers(cx, function, here, frame, op) {
                pc += 1;
                continue;
            }
            self.notice(cx, frame, pc, active);
            let flow = match self.execute(cx, here, frame, op) {
                Ok(flow) => flow,
                Err(trouble) => {
                    self.place(mask, pc);
                    return Err(trouble);
                }
            };
            match flow {
                Flow::Next => pc += 1,
                Flow::Some(on) if on == active => pc += 1,
                Flow::Some(on) => {
                    self.place(active & !on, pc);
                    self.place(on | mask & !active, pc + 1);
                    return Ok(Stop::Regroup);
                }
                Flow::Placed => {
                    self.place(mask & !active, pc + 1);
                    return Ok(Stop::Regroup);
                }
                Flow::Rest => {
                    self.place(mask, pc + 1);
                    return Ok(Stop::Pause);
                }
            }
        }
    }

    /// Executes an instruction that is neither arithmetic nor a branch.
    fn execute(
        &mut self,
        cx: &mut Context<'_, '_>,
        here: Group,
        frame: Frame,
        op: &Op,
    ) -> Result<Flow, Trouble> {
        let mask = here.mask;
        self.names(frame.function, here.pc);
        if self.check.is_some()
            && let Some(name) = unknown_to_the_race_detector(op)
        {
            return Err(Trouble::of(FaultKind::Unchecked(name), mask));
        }
        match op {
            Op::Ld { mem, d } => self.ld(cx, mask, frame, mem, d)?,
            Op::St { mem, src } => self.st(cx, mask, frame, mem, src)?,
            Op::Atom { op, mem, d, b, c } => self.atom(cx, mask, frame, *op, mem, *d, [*b, *c])?,
            Op::Discard { space, addr } => self.discard(cx, mask, frame, *space, *addr)?,
            Op::CpAsync { dst, src, size, src_size } => {
                self.cp_async(cx, mask, frame, [*dst, *src], *size, *src_size)?;
            }
            Op::Mbarrier(m) => self.mbarrier(cx, mask, frame, m)?,
            Op::BulkCopy(copy) => self.bulk_copy(cx, mask, frame, copy)?,
            Op::Multimem(m) => self.multimem(cx, mask, frame, m)?,
            Op::Mapa { generic, d, a, rank } => self.mapa(cx, mask, *generic, *d, [*a, *rank]),
            Op::CtaRank { generic, d, a } => self.cta_rank(cx, mask, *generic, *d, *a),
            Op::ClusterArrive => self.cluster_arrive(cx, mask),
            Op::ClusterWait => return Ok(Flow::Some(self.cluster_wait(cx, mask))),
            Op::Fence { sem, scope } => {
                memory::fence_of(*sem);
                self.tell_fence(cx, mask, *sem, *scope);
            }
            Op::FenceAliases => {
                memory::fence_of(Semantics::AcqRel);
                self.tell_fence_aliases(mask);
            }
            Op::Special { d, special } => self.special(cx, mask, frame, *d, *special),
            Op::GlobalAddress { d, global, addend } => {
                let address = cx.grid.image().globals[*global as usize].wrapping_add_signed(*addend);
                self.regs.put64(*d, &[address; 32], mask);
            }
            Op::FunctionAddress { d, function } => {
                self.regs.put64(*d, &[code::function_address(*function); 32], mask);
            }
            Op::ToGeneric { space, d, a } => self.cvta(cx, mask, *space, *d, *a),
            Op::FromGeneric { space, d, a } => self.cvta_to(cx, mask, *space, *d, *a),
            Op::IsSpace { space, p, a } => self.is_space(cx, mask, *space, *p, *a),
            Op::Aligned if cx.grid.launch().aligned => self.together(mask)?,
            Op::Aligned => {}
            Op::Barrier { kind, id, threads } => {
                return self.barrier(cx, mask, *kind, *id, *threads);
            }
            Op::WarpSync { .. }
            | Op::Vote { .. }
            | Op::Shfl { .. }
            | Op::Match { .. }
            | Op::Redux { .. }
            | Op::Elect { .. } => return Ok(Flow::Some(self.collective(mask, op))),
            Op::ActiveMask { d } => self.regs.put32(*d, &[mask; 32], mask),
            Op::Brx { index, targets } => {
                for lane in lanes(mask) {
                    let index = self.regs.lane(*index, lane) as u32;
                    let target = targets.get(index as usize);
                    let target = target.ok_or(Trouble::of(FaultKind::InvalidPc, 1 << lane))?;
                    self.pc[lane] = *target;
                    self.turns(lane, u64::from(*target));
                }
                return Ok(Flow::Placed);
            }
            Op::Call(call) => return self.calls(cx, here, frame, call),
            Op::Ret => {
                self.leave(cx, mask);
                return Ok(Flow::Placed);
            }
            Op::Exit => {
                self.exit(cx, mask);
                return Ok(Flow::Placed);
            }
            Op::Trap => return Err(Trouble::of(FaultKind::Trap, mask)),
            Op::Nanosleep { .. } => return Ok(Flow::Rest),
            Op::Nop => {}
            // `run` has already executed arithmetic and branches.
            _ => return Err(Trouble::of(FaultKind::IllegalInstruction, mask)),
        }
        Ok(Flow::Next)
    }

    fn wait(&mut self, mask: u32, watch: Option<u64>) {
        self.spinning |= mask;
        if let Some(watch) = watch
            && !self.watches.contains(&watch)
        {
            self.watches.push(watch);
        }
    }

    fn calls(
        &mut self,
        cx: &mut Context<'_, '_>,
        here: Group,
        frame: Frame,
        call: &Call,
    ) -> Result<Flow, Trouble> {
        let mask = here.mask;
        let module = &cx.grid.image().code;
        let invalid = || Trouble::of(FaultKind::InvalidPc, mask);
        match call.target {
            CallTarget::Function(callee) => {
                let inner = self.call(module, here, mask, callee)?;
                self.copy(mask, frame, inner, &call.args)?;
            }
            CallTarget::Indirect(reg) => {
                let callees = self.regs.get64(reg.into());
                for lane in lanes(mask) {
                    let callee = code::function_at(callees[lane]).ok_or_else(invalid)?;
                    let function = module.functions.get(callee as usize).ok_or_else(invalid)?;
                    let fits = |c: &FrameCopy| c.to.saturating_add(c.size) <= function.frame_size;
                    if !call.args.iter().all(fits) {
                        return Err(invalid());
                    }
                    let inner = self.call(module, here, 1 << lane, callee)?;
                    self.copy(1 << lane, frame, inner, &call.args)?;
                }
            }
            CallTarget::Service(service) => {
                self.service(cx, mask, frame, call, service)?;
                return Ok(Flow::Next);
            }
        }
        Ok(Flow::Placed)
    }

    /// Copies between the frames of caller and callee, per lane.
    fn copy(&mut self, mask: u32, from: Frame, to: Frame, copies: &[FrameCopy]) -> Result<(), Trouble> {
        let stacks = self.stacks();
        for copy in copies {
            for lane in lanes(mask) {
                let stack = stacks.of_lane(lane);
                let ends = |frame: Frame, offset: u32| {
                    let first = stack.base + u64::from(frame.stack) + u64::from(offset);
                    Range { base: first, end: first + u64::from(copy.size) }
                };
                let (source, target) = (ends(from, copy.from), ends(to, copy.to));
                if !stack.holds(source.base, source.end) || !stack.holds(target.base, target.end) {
                    return Err(Trouble::of(FaultKind::StackOverflow, 1 << lane));
                }
                // SAFETY: both ranges lie in this lane's stack, which only the thread that runs the warp accesses.
                unsafe { memory::copy(source.base, target.base, u64::from(copy.size)) };
            }
        }
        Ok(())
    }

    /// `ret`: returns to the caller, or exits the kernel.
    fn leave(&mut self, cx: &mut Context<'_, '_>, mask: u32) {
        let mut gone = 0;
        for lane in lanes(mask) {
            let inner = self.frame_of(lane);
            let Some((back, outer)) = self.ret(lane) else {
                gone |= 1 << lane;
                continue;
            };
            let caller = &cx.grid.image().code.functions[outer.function as usize];
            if let Op::Call(call) = &caller.code[back.pc as usize].op {
                // The frames were checked when the module was loaded and when the call was made. If the result is
                // longer than an indirect callee's frame, the copy reads bytes behind the frame, still in the stack.
                let _ = self.copy(1 << lane, inner, outer, &call.returns);
            }
        }
        if gone != 0 {
            self.exit(cx, gone);
        }
    }

    fn exit(&mut self, cx: &mut Context<'_, '_>, mask: u32) {
        self.tell_exit(cx, mask);
        self.live &= !mask;
        self.spin.wrote();
        cx.barriers.exit(self.index, mask);
        self.cluster_exit(cx, mask);
        self.meet();
    }
}
