//! Instructions that access memory, convert addresses or read special registers.

use std::time::{SystemTime, UNIX_EPOCH};

use super::alu;
use super::atomic;
use super::buffer::Range;
use super::checked::{self, Element};
use super::fault::{FaultKind, Trouble};
use super::memory::{self, Request};
use super::regs::{LANES, Lanes, bits, lanes};
use super::turn::Context;
use super::warp::{Frame, Warp};
use crate::check::Update;
use crate::code::op::{AtomOp, Mem, Special};
use crate::code::{Addr, Base, Pred, Reg, Space, Src};

impl Warp {
    /// Computes the host address of each lane.
    #[inline(always)]
    pub(super) fn addresses(
        &self,
        cx: &Context<'_, '_>,
        frame: Frame,
        addr: Addr,
        space: Space,
    ) -> Lanes<u64> {
        let window = matches!(space, Space::Shared | Space::Local);
        let mut at = match addr.base {
            Base::Reg(reg) => {
                let base = self.regs.get64(reg.into());
                if window {
                    base.map(|v| u64::from((v as u32).wrapping_add(addr.offset as u32)))
                } else {
                    base.map(|v| v.wrapping_add_signed(addr.offset))
                }
            }
            Base::Zero => [addr.offset.cast_unsigned(); LANES],
            Base::Global(index) => {
                let base = cx.grid.image().globals[index as usize];
                return [base.wrapping_add_signed(addr.offset); LANES];
            }
            Base::KernelParam => {
                return [cx.access.params.base.wrapping_add_signed(addr.offset); LANES];
            }
            Base::Frame => {
                let offset = u64::from(frame.stack).wrapping_add_signed(addr.offset);
                return std::array::from_fn(|l| self.stacks().of_lane(l).base.wrapping_add(offset));
            }
        };
        match space {
            // Only in kernels: in other functions, lowering addresses parameters through the frame.
            Space::Param => at = at.map(|v| v.wrapping_add(cx.access.params.base)),
            Space::Shared => at = at.map(|v| v.wrapping_add(cx.access.shared.base)),
            Space::Cluster => at = in_cluster(cx, &at),
            Space::Local => {
                let stacks = self.stacks();
                for lane in 0..LANES {
                    at[lane] = at[lane].wrapping_add(stacks.of_lane(lane).base);
                }
            }
            _ => {}
        }
        at
    }

    pub(super) fn request(&self, mem: &Mem, write: bool) -> Request {
        let size = u64::from(mem.ty.size()) * u64::from(mem.count);
        Request { space: mem.space, size, write, stacks: self.stacks() }
    }

    #[inline]
    pub(super) fn ld(
        &mut self,
        cx: &mut Context<'_, '_>,
        mask: u32,
        frame: Frame,
        mem: &Mem,
        d: &[Option<Reg>; 4],
    ) -> Result<(), Trouble> {
        let mut at = self.addresses(cx, frame, mem.addr, mem.space);
        cx.access.check(&at, mask, self.request(mem, false))?;
        let size = mem.ty.size();
        let mut check = checked::lock(cx);
        let first = mask.trailing_zeros() as usize & 31;
        let far = matches!(mem.space, Space::Global | Space::Generic);
        for d in d.iter().take(usize::from(mem.count)) {
            // SAFETY: checked just now, under the view that `access` borrows.
            let mut values = unsafe {
                match &mut check {
                    Some(state) => self.checked_load(cx, state, &at, mask, Element::of(mem))?,
                    None => memory::load(&at, mask, size),
                }
            };
            if mem.sem.strong() {
                self.spin.read_strong(&at, &values, mask);
            } else if far {
                self.spin.read_weak(at[first], values[first]);
            }
            if let Some(d) = d {
                if mem.ty.signed() && size < 8 {
                    alu::extend_lanes(&mut values, mem.ty);
                }
                self.regs.put64(*d, &values, mask);
            }
            at = at.map(|v| v.wrapping_add(u64::from(size)));
        }
        self.tell_complete();
        memory::after(mem.sem);
        Ok(())
    }

    #[inline]
    pub(super) fn st(
        &mut self,
        cx: &mut Context<'_, '_>,
        mask: u32,
        frame: Frame,
        mem: &Mem,
        src: &[Src; 4],
    ) -> Result<(), Trouble> {
        let mut at = self.addresses(cx, frame, mem.addr, mem.space);
        cx.access.check(&at, mask, self.request(mem, true))?;
        let mut check = checked::lock(cx);
        memory::before(mem.sem);
        let size = mem.ty.size();
        let lines = check.as_ref().map_or_else(Vec::new, |state| self.lines(state, &at, mask, mem));
        for src in src.iter().take(usize::from(mem.count)) {
            let values = self.regs.get64(*src);
            // SAFETY: checked for writing just now, under the view that `access` borrows.
            unsafe {
                match &mut check {
                    Some(state) => {
                        self.checked_store(cx, state, &at, &values, mask, Element::of(mem), &lines)?;
                    }
                    None => memory::store(&at, &values, mask, size),
                }
            }
            at = at.map(|v| v.wrapping_add(u64::from(size)));
        }
        if !matches!(mem.space, Space::Local | Space::Param) {
            self.spin.wrote();
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "the operands of one instruction")]
    pub(super) fn atom(
        &mut self,
        cx: &mut Context<'_, '_>,
        mask: u32,
        frame: Frame,
        op: AtomOp,
        mem: &Mem,
        d: Option<Reg>,
        [b, c]: [Src; 2],
    ) -> Result<(), Trouble> {
        if !atomic::exists(op, mem.ty) {
            return Err(Trouble::of(FaultKind::IllegalInstruction, mask));
        }
        let at = self.addresses(cx, frame, mem.addr, mem.space);
        let stacks = self.stacks();
        let local = |l: usize| stacks.of_lane(l).holds(at[l], at[l]);
        if let Some(lane) = lanes(mask).find(|l| mem.space == Space::Generic && local(*l)) {
            return Err(Trouble::at(FaultKind::InvalidAddressSpace, lane, at[lane]));
        }
        cx.access.check(&at, mask, self.request(mem, true))?;
        let mut check = checked::lock(cx);
        let update = Update { reduction: d.is_none(), adds: op == AtomOp::Add && !mem.ty.float() };
        memory::before(mem.sem);
        let (b, c) = (self.regs.get64(b), self.regs.get64(c));
        let mut values = [0; LANES];
        let mut changed = false;
        for lane in lanes(mask) {
            // SAFETY: checked for writing just now, under the view that `access` borrows.
            let (old, new) = unsafe { atomic::update(op, mem.ty, at[lane], b[lane], c[lane]) };
            if let Some(state) = &mut check {
                self.tell_update(cx, state, &at, lane, Element::of(mem), [old, new], update)?;
            }
            values[lane] = old;
            changed |= old != new;
        }
        memory::after(mem.sem);
        if changed {
            self.spin.wrote();
        } else {
            self.spin.read_strong(&at, &values, mask);
        }
        if let Some(d) = d {
            if mem.ty.signed() {
                alu::extend_lanes(&mut values, mem.ty);
            }
            self.regs.put64(d, &values, mask);
        }
        Ok(())
    }

    pub(super) fn cp_async(
        &mut self,
        cx: &mut Context<'_, '_>,
        mask: u32,
        frame: Frame,
        [dst, src]: [Addr; 2],
        size: u8,
        src_size: Src,
    ) -> Result<(), Trouble> {
        let mut to = self.addresses(cx, frame, dst, Space::Shared);
        let mut from = self.addresses(cx, frame, src, Space::Global);
        let size = u64::from(size);
        let stacks = self.stacks();
        let ask = |space, write| Request { space, size, write, stacks };
        let wanted = self.regs.get64(src_size);
        let reading = mask & bits(|l| wanted[l] != 0);
        cx.access.check(&to, mask, ask(Space::Shared, true))?;
        if reading != 0 {
            cx.access.check(&from, reading, ask(Space::Global, false))?;
        }
        for offset in (0..size).step_by(4) {
            // SAFETY: checked just now, under the view that `access` borrows.
            let mut values = unsafe { memory::load(&from, reading, 4) };
            for lane in lanes(mask) {
                let keep = (wanted[lane].saturating_sub(offset).min(4) * 8) as u32;
                values[lane] &= (1 << keep) - 1;
            }
            // SAFETY: as above; `to` was checked for writing.
            unsafe { memory::store(&to, &values, mask, 4) };
            to = to.map(|v| v.wrapping_add(4));
            from = from.map(|v| v.wrapping_add(4));
        }
        self.spin.wrote();
        Ok(())
    }

    pub(super) fn cvta(&mut self, cx: &Context<'_, '_>, mask: u32, space: Space, d: Reg, a: Src) {
        let mut v = self.regs.get64(a);
        if space == Space::Cluster {
            return self.regs.put64(d, &in_cluster(cx, &v), mask);
        }
        for lane in 0..LANES {
            v[lane] = v[lane].wrapping_add(self.window(cx, space, lane));
        }
        self.regs.put64(d, &v, mask);
    }

    pub(super) fn cvta_to(&mut self, cx: &Context<'_, '_>, mask: u32, space: Space, d: Reg, a: Src) {
        let mut v = self.regs.get64(a);
        if space == Space::Cluster {
            let address = v.map(|v| u64::from(cx.access.cluster.address(v)));
            return self.regs.put64(d, &address, mask);
        }
        for lane in 0..LANES {
            v[lane] = v[lane].wrapping_sub(self.window(cx, space, lane));
        }
        self.regs.put64(d, &v, mask);
    }

    /// The difference between a generic address and the same address in `space`.
    fn window(&self, cx: &Context<'_, '_>, space: Space, lane: usize) -> u64 {
        match space {
            Space::Shared => cx.access.shared.base,
            Space::Local => self.stacks().of_lane(lane).base,
            // Only in kernels: in other functions, lowering turns parameters into local memory.
            Space::Param => cx.access.params.base,
            Space::Cluster | Space::Generic | Space::Global | Space::Const => 0,
        }
    }

    pub(super) fn is_space(&mut self, cx: &Context<'_, '_>, mask: u32, space: Space, p: Pred, a: Src) {
        let v = self.regs.get64(a);
        let stacks = self.stacks();
        let within = |lane: usize, space: Space| -> bool {
            let inside = |r: Range| v[lane] >= r.base && v[lane] < r.end;
            match space {
                Space::Shared => inside(cx.access.shared),
                Space::Cluster => cx.access.cluster.holds(v[lane], v[lane].saturating_add(1)),
                Space::Local => inside(stacks.of_lane(lane)),
                Space::Param => inside(cx.access.params),
                Space::Const => cx.grid.in_constant(v[lane]),
                Space::Generic | Space::Global => false,
            }
        };
        let windows = [Space::Cluster, Space::Local, Space::Param, Space::Const];
        let holds = bits(|lane| match space {
            Space::Global | Space::Generic => !windows.iter().any(|s| within(lane, *s)),
            _ => within(lane, space),
        });
        self.regs.put_pred(p, holds, mask);
    }

    /// Reads a special register.
    pub(super) fn special(
        &mut self,
        cx: &Context<'_, '_>,
        mask: u32,
        frame: Frame,
        d: Reg,
        special: Special,
    ) {
        let launch = cx.grid.launch();
        let axis = |v: [u32; 3], k: u8| u64::from(v[usize::from(k.min(2))]);
        let lane_mask = |f: fn(u32) -> u32| std::array::from_fn(|l| u64::from(f(1 << l)));
        let function = cx.grid.function();
        let uniform = match special {
            Special::Tid(k) => {
                let tids: Lanes<u64> = std::array::from_fn(|l| axis(cx.place.thread(self.index, l), k));
                return self.regs.put64(d, &tids, mask);
            }
            Special::LaneId => {
                return self.regs.put64(d, &std::array::from_fn(|l| l as u64), mask);
            }
            Special::LaneMaskEq => return self.regs.put64(d, &lane_mask(|b| b), mask),
            Special::LaneMaskLt => return self.regs.put64(d, &lane_mask(|b| b - 1), mask),
            Special::LaneMaskLe => return self.regs.put64(d, &lane_mask(|b| b | (b - 1)), mask),
            Special::LaneMaskGt => return self.regs.put64(d, &lane_mask(|b| !(b | (b - 1))), mask),
            Special::LaneMaskGe => return self.regs.put64(d, &lane_mask(|b| !(b - 1)), mask),
            Special::Ntid(k) => axis(launch.block, k),
            Special::Ctaid(k) => axis(cx.place.index, k),
            Special::Nctaid(k) => axis(launch.grid, k),
            Special::WarpId => self.index as u64,
            Special::NWarpId => u64::from(launch.limits.threads_per_sm / 32),
            Special::SmId => cx.place.linear % u64::from(launch.limits.sms.max(1)),
            Special::NSmId => u64::from(launch.limits.sms),
            Special::GridId => cx.grid.id(),
            Special::Clock => clock() & 0xffff_ffff,
            Special::ClockHi => clock() >> 32,
            Special::Clock64 => clock(),
            Special::GlobalTimer => wall(),
            Special::GlobalTimerHi => wall() >> 32,
            Special::DynamicSharedSize => u64::from(launch.dynamic_shared),
            Special::TotalSharedSize => u64::from(function.shared_size) + u64::from(launch.dynamic_shared),
            Special::ClusterId(k) => axis(cx.place.index, k) / axis(launch.cluster, k),
            Special::NClusterId(k) => axis(launch.grid, k) / axis(launch.cluster, k),
            Special::ClusterCtaId(k) => axis(cx.place.index, k) % axis(launch.cluster, k),
            Special::ClusterNCtaId(k) => axis(launch.cluster, k),
            Special::ClusterCtaRank => u64::from(cx.place.rank),
            Special::ClusterNCtaRank => u64::from(cx.access.cluster.blocks),
            Special::ReservedShared(offset) => {
                u64::from(function.reserved_shared_base(launch.dynamic_shared)) + u64::from(offset)
            }
            Special::DynamicSharedBase => function.dynamic_shared_base().into(),
            Special::EnvReg(1) => launch.workspace >> 32,
            Special::EnvReg(2) => launch.workspace & 0xffff_ffff,
            Special::EnvReg(_) => 0,
            Special::FrameBase => u64::from(frame.stack),
            Special::KernelParamBase => cx.access.params.base,
        };
        self.regs.put64(d, &[uniform; LANES], mask);
    }
}

/// The host addresses of `.shared::cluster` addresses. Rare, and so kept out of the path of other accesses.
#[cold]
#[inline(never)]
fn in_cluster(cx: &Context<'_, '_>, at: &Lanes<u64>) -> Lanes<u64> {
    at.map(|v| cx.access.cluster.host(cx.access.rank, v as u32))
}

/// The clock of the device, which runs at 1 GHz.
fn clock() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

fn wall() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}
