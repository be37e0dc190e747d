//! Instructions that lanes of a warp, or warps of a block, execute together (PTX ISA 9.7.13 and `shfl`, `vote`,
//! `match`, `redux`, `elect`).

use super::alu;
use super::atomic;
use super::barrier::{BARRIERS, Reduction};
use super::cluster;
use super::fault::{FaultKind, Trouble};
use super::regs::{ALL, LANES, Lanes, bits, lanes};
use super::turn::{Context, Flow};
use super::warp::Warp;
use crate::code::op::{BarrierKind, BoolOp, Op, ShflMode, VoteKind};
use crate::code::{PredSrc, Reg, Src};

impl Warp {
    /// Executes `op` for the lanes of `active` whose members are all here. Returns those lanes; the others wait.
    pub(super) fn collective(&mut self, active: u32, op: &Op) -> u32 {
        let members = match op {
            Op::WarpSync { mask }
            | Op::Vote { mask, .. }
            | Op::Shfl { mask, .. }
            | Op::Match { mask, .. }
            | Op::Redux { mask, .. }
            | Op::Elect { mask, .. } => self.regs.get32(*mask),
            _ => [ALL; LANES],
        };
        let mut now = self.met & active;
        let met = now != 0;
        self.met &= !now;
        if now == 0 {
            let together = |l: usize| members[l] & self.live & !active == 0;
            now = lanes(active).filter(|l| together(*l)).fold(0, |m, l| m | 1 << l);
        }
        let rest = active & !now;
        if now == 0 {
            self.meeting |= rest;
            for lane in lanes(rest) {
                self.meeting_for[lane] = members[lane];
            }
            self.meet();
            return 0;
        }
        let group = |lane: usize| members[lane] & now;
        for lane in lanes(now) {
            self.meets(lane, if met { self.meeting_for[lane] } else { group(lane) });
        }
        match op {
            Op::WarpSync { .. } => self.tell_warp_sync(now, &members),
            Op::Vote { kind, a, .. } => self.vote(now, *kind, *a, group),
            Op::Shfl { mode, d, p, a, b, c, .. } => {
                // Lanes may meet at different instructions; all of them take part.
                let partners = |lane: usize| if met { self.meeting_for[lane] } else { group(lane) };
                let (values, found) = self.shfl(*mode, *a, *b, *c, partners);
                self.regs.put32(*d, &values, now);
                if let Some(p) = p {
                    self.regs.put_pred(*p, found, now);
                }
            }
            Op::Match { all, d, p, a, .. } => {
                let a = self.regs.get64(*a);
                let equal: Lanes<u32> = std::array::from_fn(|l| group(l) & bits(|other| a[other] == a[l]));
                let whole = bits(|l| equal[l] == group(l));
                let r = if *all {
                    std::array::from_fn(|l| if whole >> l & 1 != 0 { equal[l] } else { 0 })
                } else {
                    equal
                };
                self.regs.put32(*d, &r, now);
                if let Some(p) = p {
                    self.regs.put_pred(*p, whole, now);
                }
            }
            Op::Redux { op, ty, d, a, .. } => {
                let a = self.regs.get64(*a);
                let reduce = |x, o: usize| atomic::compute(*op, *ty, x, a[o], 0);
                let mut r = [0; LANES];
                for lane in lanes(now) {
                    let mut members = lanes(group(lane));
                    let first = members.next().map_or(0, |l| alu::extend(a[l], *ty));
                    r[lane] = members.fold(first, reduce);
                }
                self.regs.put64(*d, &r, now);
            }
            Op::Elect { d, p, .. } => {
                let leader: Lanes<u32> = std::array::from_fn(|l| group(l).trailing_zeros());
                if let Some(d) = d {
                    self.regs.put32(*d, &leader, now);
                }
                self.regs.put_pred(*p, bits(|l| leader[l] == l as u32), now);
            }
            _ => {}
        }
        now
    }

    fn vote(&mut self, now: u32, kind: VoteKind, a: PredSrc, group: impl Fn(usize) -> u32) {
        let a = self.regs.pred_src(a);
        match kind {
            VoteKind::All(p) => self.regs.put_pred(p, bits(|l| group(l) & !a == 0), now),
            VoteKind::Any(p) => self.regs.put_pred(p, bits(|l| group(l) & a != 0), now),
            VoteKind::Uni(p) => {
                let uniform = |g: u32| g & a == 0 || g & !a == 0;
                self.regs.put_pred(p, bits(|l| uniform(group(l))), now);
            }
            VoteKind::Ballot(d) => {
                self.regs.put32(d, &std::array::from_fn(|l| group(l) & a), now);
            }
        }
    }

    /// Applies the table of PTX ISA 9.7.9.6 (`shfl.sync`). Returns each lane's value and the lanes whose source is in
    /// range. A source in range that does not take part (or has exited) gives 0, as on hardware: PTX leaves it undefined,
    /// but reductions of fewer lanes than a warp rely on it.
    fn shfl(
        &self,
        mode: ShflMode,
        a: Src,
        b: Src,
        c: Src,
        partners: impl Fn(usize) -> u32,
    ) -> (Lanes<u32>, u32) {
        let (a, b, c) = (self.regs.get32(a), self.regs.get32(b), self.regs.get32(c));
        let mut values = a;
        let mut found = 0;
        for lane in 0..LANES {
            let (l, step) = (lane as i32, (b[lane] & 31) as i32);
            let clamp = (c[lane] & 31) as i32;
            let segment = (c[lane] >> 8 & 31) as i32;
            let most = (l & segment) | (clamp & !segment & 31);
            let least = l & segment;
            let (source, inside) = match mode {
                // For `up`, `c` gives the lower bound.
                ShflMode::Up => (l - step, l - step >= most),
                ShflMode::Down => (l + step, l + step <= most),
                ShflMode::Bfly => (l ^ step, (l ^ step) <= most),
                ShflMode::Idx => {
                    let source = least | (step & !segment & 31);
                    (source, source <= most)
                }
            };
            if inside {
                let source = (source & 31) as usize;
                values[lane] = if partners(lane) >> source & 1 != 0 { a[source] } else { 0 };
                found |= 1 << lane;
            }
        }
        (values, found)
    }

    /// `bar` and `barrier`.
    pub(super) fn barrier(
        &mut self,
        cx: &mut Context<'_, '_>,
        mask: u32,
        kind: BarrierKind,
        id: Src,
        threads: Option<Src>,
    ) -> Result<Flow, Trouble> {
        let first = mask.trailing_zeros() as usize & 31;
        let id = self.regs.lane(id, first) as usize;
        let threads = threads.map(|t| self.regs.lane(t, first) as u32);
        if id >= BARRIERS || threads.is_some_and(|t| t == 0 || t % 32 != 0) {
            return Err(Trouble::of(FaultKind::IllegalInstruction, mask));
        }
        let passed = cx.barriers.take_passed(self.index, mask);
        if passed != 0 {
            self.passes(cx, id, passed, kind);
            return Ok(Flow::Some(passed));
        }
        let wait = !matches!(kind, BarrierKind::Arrive);
        let holds = match kind {
            BarrierKind::RedPopc { a, .. } | BarrierKind::RedPred { a, .. } => self.regs.pred_src(a),
            BarrierKind::Sync | BarrierKind::Arrive => 0,
        };
        if let Some(check) = &mut self.check {
            cx.barriers.tell(id, check, mask);
        }
        cx.barriers.arrive(id, self.index, mask, threads, wait, holds);
        self.spin.wrote();
        if !wait {
            return Ok(Flow::Next);
        }
        let passed = cx.barriers.take_passed(self.index, mask);
        self.passes(cx, id, passed, kind);
        Ok(Flow::Some(passed))
    }

    /// The lanes of `mask` pass barrier `id`, which is complete.
    fn passes(&mut self, cx: &Context<'_, '_>, id: usize, mask: u32, kind: BarrierKind) {
        if let Some(check) = &mut self.check {
            check.pass(mask, cx.barriers.met(id));
        }
        self.take_result(mask, kind, cx.barriers.result(id));
    }

    fn take_result(&mut self, mask: u32, kind: BarrierKind, result: Reduction) {
        match kind {
            BarrierKind::RedPopc { d, .. } => {
                self.regs.put32(d, &[result.count; LANES], mask);
            }
            BarrierKind::RedPred { op, p, .. } => {
                let holds = if op == BoolOp::And { result.all } else { result.any };
                self.regs.put_pred(p, if holds { ALL } else { 0 }, mask);
            }
            BarrierKind::Sync | BarrierKind::Arrive => {}
        }
    }

    /// `barrier.cluster.arrive`.
    #[cold]
    #[inline(never)]
    pub(super) fn cluster_arrive(&mut self, cx: &Context<'_, '_>, mask: u32) {
        let odd = cx.access.cluster.arrive(mask.count_ones());
        self.arrived |= mask;
        self.arrived_odd = if odd { self.arrived_odd | mask } else { self.arrived_odd & !mask };
        self.spin.wrote();
    }

    /// `barrier.cluster.wait`: returns the lanes that continue. The others wait here.
    #[cold]
    #[inline(never)]
    pub(super) fn cluster_wait(&mut self, cx: &Context<'_, '_>, mask: u32) -> u32 {
        let here = if cx.access.cluster.odd() { self.arrived_odd } else { !self.arrived_odd };
        let waiting = mask & self.arrived & here;
        self.spinning |= waiting;
        self.arrived &= !(mask & !waiting);
        if waiting != mask {
            self.spin.wrote();
        }
        mask & !waiting
    }

    /// Takes exited lanes out of the cluster's barrier.
    #[cold]
    #[inline(never)]
    pub(super) fn cluster_exit(&mut self, cx: &Context<'_, '_>, mask: u32) {
        let arrived = self.arrived & mask;
        let odd = (arrived & self.arrived_odd).count_ones();
        cx.access.cluster.exit(mask.count_ones(), (arrived.count_ones() - odd, odd));
        self.arrived &= !mask;
    }

    /// `mapa`.
    #[cold]
    #[inline(never)]
    pub(super) fn mapa(
        &mut self,
        cx: &Context<'_, '_>,
        mask: u32,
        generic: bool,
        d: Reg,
        [a, rank]: [Src; 2],
    ) {
        let (a, rank) = (self.regs.get64(a), self.regs.get32(rank));
        let cluster = cx.access.cluster;
        let mapped: Lanes<u64> = std::array::from_fn(|l| {
            let address = if generic { cluster.address(a[l]) } else { a[l] as u32 };
            let address = cluster::map(address, rank[l]);
            if generic { cluster.host(cx.access.rank, address) } else { address.into() }
        });
        self.regs.put64(d, &mapped, mask);
    }

    /// `getctarank`.
    #[cold]
    #[inline(never)]
    pub(super) fn cta_rank(&mut self, cx: &Context<'_, '_>, mask: u32, generic: bool, d: Reg, a: Src) {
        let cluster = cx.access.cluster;
        let ranks = self.regs.get64(a).map(|a| match generic {
            true => cluster.rank_of(a).unwrap_or(0),
            false => cluster.named(cx.access.rank, a as u32),
        });
        self.regs.put32(d, &ranks, mask);
    }
}
