//! Instructions of clusters (PTX ISA 9.7.9.23, 9.7.9.24, 9.7.13.4).

use crate::code::{Op, Ty};
use crate::lower::builder::{Builder, Lowered, exactly};
use crate::lower::modifiers::Modifiers;
use crate::lower::operand::Fit;
use crate::ptx::ast::Instruction;

/// `barrier.cluster`, after the caller has taken `.cluster`.
pub(super) fn barrier<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    b.needs("barrier.cluster", 90, (7, 8), m.at())?;
    let [] = exactly(b, i)?;
    let arrives = m.required("'.arrive' or '.wait'", &[("arrive", true), ("wait", false)])?;
    if arrives {
        m.one_of(&[("release", ()), ("relaxed", ())]);
    } else {
        m.take("acquire");
    }
    m.take("aligned");
    b.emit(if arrives { Op::ClusterArrive } else { Op::ClusterWait });
    Ok(())
}

/// Takes `.shared::cluster`. Without it, addresses are generic.
fn generic(m: &mut Modifiers<'_>) -> bool {
    !m.take("shared::cluster")
}

pub(super) fn mapa<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    b.needs("mapa", 90, (7, 8), m.at())?;
    let generic = generic(m);
    let ty = m.ty(&[Ty::U32, Ty::U64])?;
    let [d, a, rank] = exactly(b, i)?;
    let d = b.dst(d, ty, Fit::Exact)?;
    let a = match b.register(a)? {
        None if !generic => match b.address_of(a, ty, None)? {
            Some((_, value)) => value,
            None => b.value(a, ty)?,
        },
        _ => b.value(a, ty)?,
    };
    let rank = b.value(rank, Ty::U32)?;
    b.emit(Op::Mapa { generic, d, a, rank });
    Ok(())
}

pub(super) fn getctarank<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    b.needs("getctarank", 90, (7, 8), m.at())?;
    let generic = generic(m);
    let ty = m.ty(&[Ty::U32, Ty::U64])?;
    let [d, a] = exactly(b, i)?;
    let d = b.dst(d, Ty::U32, Fit::Exact)?;
    let a = match b.register(a)? {
        None if !generic => match b.address_of(a, ty, None)? {
            Some((_, value)) => value,
            None => b.value(a, ty)?,
        },
        _ => b.value(a, ty)?,
    };
    b.emit(Op::CtaRank { generic, d, a });
    Ok(())
}
