//! `multimem`: operations on the memory of all devices behind a multicast address (PTX ISA 9.7.9.14).

use half::{bf16, f16};

use super::atomic;
use super::checked::{self, low};
use super::fault::{FaultKind, Trouble};
use super::memory;
use super::regs::{LANES, lanes};
use super::turn::Context;
use super::warp::{Frame, Warp};
use crate::check::{Failure, Object, Spot, State, Update};
use crate::code::Ty;
use crate::code::op::{Multimem, MultimemOp};
use crate::mem::Home;
use crate::mem::multicast::Target;

/// An element of a lane at one device.
#[derive(Clone, Copy)]
struct At {
    lane: usize,
    address: u64,
    spot: Spot,
}

impl Warp {
    #[cold]
    #[inline(never)]
    pub(super) fn multimem(
        &mut self,
        cx: &mut Context<'_, '_>,
        mask: u32,
        frame: Frame,
        m: &Multimem,
    ) -> Result<(), Trouble> {
        let at = self.addresses(cx, frame, m.addr, m.space);
        let size = u64::from(m.ty.size());
        let bytes = size * m.count() as u64;
        let write = !matches!(m.op, MultimemOp::LdReduce { .. });
        let mut results = vec![[0; LANES]; m.d.len()];
        let mut check = checked::lock(cx);
        if let Some(state) = &mut check {
            self.checker(cx, state);
        }
        memory::before(m.sem);
        for lane in lanes(mask) {
            if !at[lane].is_multiple_of(bytes) {
                return Err(Trouble::at(FaultKind::MisalignedAddress, lane, at[lane]));
            }
            let (bound, offset) = cx.access.team(at[lane], lane, write)?;
            let unbound = Trouble::at(FaultKind::IllegalAddress, lane, at[lane]);
            let targets = bound.at(offset, bytes).ok_or(unbound)?;
            let failed = |failure| checked::trouble(failure, lane, at[lane]);
            for (place, result) in results.iter_mut().enumerate() {
                let mut values = Vec::with_capacity(targets.len());
                for target in &targets {
                    let at = element(m, lane, target, place);
                    // SAFETY: `bound` keeps the memory mapped, and `at` has checked that it holds all elements. Its
                    // address is as aligned as the multicast address, because bindings are whole pages.
                    values.push(unsafe { self.loads(check.as_deref_mut(), m, at) }.map_err(failed)?);
                }
                result[lane] = reduce(m, values.into_iter());
            }
            for (place, src) in m.src.iter().enumerate() {
                let value = self.regs.lane(*src, lane);
                for target in &targets {
                    let at = element(m, lane, target, place);
                    // SAFETY: as above.
                    unsafe { self.writes(check.as_deref_mut(), m, at, value) }.map_err(failed)?;
                }
            }
            if write {
                targets.iter().for_each(|target| target.event_count.notify());
            }
        }
        memory::after(m.sem);
        self.tell_complete();
        // A loop that reads here is never taken for one that waits for a single place.
        self.spin.wrote();
        for (d, result) in m.d.iter().zip(&results) {
            if let Some(d) = d {
                self.regs.put64(*d, result, mask);
            }
        }
        Ok(())
    }

    /// Loads an element, as the detector has it if there is one.
    ///
    /// # Errors
    /// The detector's.
    ///
    /// # Safety
    /// As for [`memory::load`].
    unsafe fn loads(&mut self, state: Option<&mut State>, m: &Multimem, at: At) -> Result<u64, Failure> {
        let At { lane, address, spot } = at;
        // SAFETY: the caller keeps the contract.
        let now = unsafe { memory::load(&[address; LANES], 1, spot.size) }[0];
        match (&mut self.check, state) {
            (Some(check), Some(state)) => check.read(state, lane, spot, now, m.sem, m.scope),
            _ => Ok(now),
        }
    }

    /// Stores `value` to an element, or adds it there, as the detector permits.
    ///
    /// # Errors
    /// The detector's.
    ///
    /// # Safety
    /// As for [`memory::store`].
    unsafe fn writes(
        &mut self,
        state: Option<&mut State>,
        m: &Multimem,
        at: At,
        value: u64,
    ) -> Result<(), Failure> {
        let At { lane, address, spot } = at;
        let mut check = self.check.as_deref_mut().zip(state);
        if let MultimemOp::Red(op) = m.op {
            // SAFETY: the caller keeps the contract.
            let (old, new) = unsafe { atomic::update(op, m.ty, address, value, 0) };
            // A FIFO, whose words kernels add to while a stream closes it, is at no multicast address.
            let update = Update { reduction: true, adds: false };
            return match check {
                Some((check, state)) => check.update(state, lane, spot, [old, new], m.sem, m.scope, update),
                None => Ok(()),
            };
        }
        if let Some((check, state)) = &mut check {
            // SAFETY: the caller keeps the contract.
            let before = unsafe { memory::load(&[address; LANES], 1, spot.size) }[0];
            let values = [before, low(value, spot.size)];
            if !check.write(state, lane, spot, values, m.sem, m.scope, None)? {
                return Ok(());
            }
        }
        // SAFETY: the caller keeps the contract.
        unsafe { memory::store(&[address; LANES], &[value; LANES], 1, spot.size) };
        Ok(())
    }
}

/// The element in this place of a vector at a device.
fn element(m: &Multimem, lane: usize, target: &Target<'_>, place: usize) -> At {
    let size = m.ty.size();
    let (past, (object, at)) = (place as u64 * u64::from(size), target.object);
    let home = Some((target.base, Home::Device(target.device as usize)));
    let spot = Spot { object: Object::Driver(object), at: at + past, size, home, multicast: true };
    At { lane, address: target.address + past, spot }
}

/// Combines what the devices hold, in their order.
fn reduce(m: &Multimem, mut values: impl Iterator<Item = u64>) -> u64 {
    match m.op {
        MultimemOp::LdReduce { wide: true, .. } => rounded_once(m.ty, values),
        MultimemOp::LdReduce { op, .. } => {
            let first = values.next().unwrap_or_default();
            values.fold(first, |sum, value| atomic::compute(op, m.ty, sum, value, 0))
        }
        _ => 0,
    }
}

/// The sum of halves or pairs of halves, added as `f32` and rounded at the end.
fn rounded_once(ty: Ty, values: impl Iterator<Item = u64>) -> u64 {
    let brain = matches!(ty, Ty::Bf16 | Ty::Bf16x2);
    let widen = |bits: u16| {
        if brain { bf16::from_bits(bits).to_f32() } else { f16::from_bits(bits).to_f32() }
    };
    let narrow = |sum: f32| {
        u64::from(if brain { bf16::from_f32(sum).to_bits() } else { f16::from_f32(sum).to_bits() })
    };
    let sums =
        values.map(|v| [widen(v as u16), widen((v >> 16) as u16)]).reduce(|a, b| [a[0] + b[0], a[1] + b[1]]);
    let [low, high] = sums.unwrap_or_default();
    if ty.size() == 4 { narrow(high) << 16 | narrow(low) } else { narrow(low) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::op::AtomOp;
    use crate::code::{Addr, Base, Scope, Semantics, Space};

    fn reduced(op: AtomOp, wide: bool, ty: Ty, values: &[u64]) -> u64 {
        let addr = Addr { base: Base::Zero, offset: 0 };
        let (sem, scope, space) = (Semantics::Weak, Scope::Cta, Space::Global);
        let op = MultimemOp::LdReduce { op, wide };
        let m = Multimem { op, ty, sem, scope, space, addr, d: vec![None], src: Vec::new() };
        reduce(&m, values.iter().copied())
    }

    #[test]
    fn halves_are_rounded_at_each_step_or_once() {
        let brain = |v: f32| u64::from(bf16::from_f32(v).to_bits());
        // A bf16 has 8 bits: 257 is rounded to 256.
        let values = [256.0, 1.0, 1.0].map(brain);
        assert_eq!(reduced(AtomOp::Add, false, Ty::Bf16, &values), brain(256.0));
        assert_eq!(reduced(AtomOp::Add, true, Ty::Bf16, &values), brain(258.0));
        let half = |v: f32| u64::from(f16::from_f32(v).to_bits());
        let pairs = [[2048.0, 0.5], [1.0, 0.25], [1.0, 8.0]].map(|[low, high]| half(high) << 16 | half(low));
        assert_eq!(reduced(AtomOp::Add, false, Ty::F16x2, &pairs), half(8.75) << 16 | half(2048.0));
        assert_eq!(reduced(AtomOp::Add, true, Ty::F16x2, &pairs), half(8.75) << 16 | half(2050.0));
        assert_eq!(reduced(AtomOp::Min, false, Ty::F16, &[half(2.0), half(-1.0), half(3.0)]), half(-1.0));
        assert_eq!(reduced(AtomOp::Xor, false, Ty::B32, &[5, 9, 2]), 14);
    }
}
