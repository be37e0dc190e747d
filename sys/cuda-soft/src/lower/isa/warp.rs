//! Barriers and the instructions that exchange values between the lanes of a warp (PTX ISA 9.7.13, 9.7.9.6).

use super::cluster;
use crate::code::op::{AtomOp, BarrierKind, BoolOp, ShflMode, VoteKind};
use crate::code::{Op, Pred, Src, Ty};
use crate::lower::builder::{Builder, Lowered, exactly};
use crate::lower::modifiers::Modifiers;
use crate::lower::operand::Fit;
use crate::ptx::Diagnostic;
use crate::ptx::ast::{Instruction, Operand, OperandKind};

/// The forms of the barrier instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Sync,
    Arrive,
    Red,
}

/// `bar`, `barrier`.
pub(super) fn barrier<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let at = m.at();
    if i.opcode.text == "bar" && m.take("warp") {
        m.required("'.sync'", &[("sync", ())])?;
        let [mask] = exactly(b, i)?;
        let mask = b.value(mask, Ty::B32)?;
        b.emit(Op::WarpSync { mask });
        return Ok(());
    }
    if i.opcode.text == "barrier" && m.take("cluster") {
        return cluster::barrier(b, i, m);
    }
    m.take("cta");
    let forms = [("sync", Form::Sync), ("arrive", Form::Arrive), ("red", Form::Red)];
    let form = m.required("'.sync', '.arrive' or '.red'", &forms)?;
    let mut aligned = true;
    if i.opcode.text == "barrier" {
        aligned = m.take("aligned");
        b.needs("barrier", 30, (6, 0), at)?;
    }
    let (kind, rest) = match form {
        Form::Sync => (BarrierKind::Sync, &i.operands[..]),
        Form::Arrive => (BarrierKind::Arrive, &i.operands[..]),
        Form::Red => reduction(b, i, m)?,
    };
    let (id, threads) = match (rest, form) {
        ([id], Form::Sync | Form::Red) => (id, None),
        ([id, threads], _) => (id, Some(threads)),
        _ => return Err(b.mismatch(at, "another number of operands is wanted")),
    };
    let number = b.value(id, Ty::U32)?;
    if matches!(number, Src::Imm(16..)) {
        return Err(id.at.error("Barrier number must be from 0 to 15"));
    }
    let threads = threads.map_or(Ok(None), |operand| threads_of(b, operand).map(Some))?;
    if aligned {
        b.emit(Op::Aligned);
    }
    b.emit(Op::Barrier { kind, id: number, threads });
    Ok(())
}

fn threads_of(b: &mut Builder<'_, '_>, operand: &Operand) -> Result<Src, Diagnostic> {
    let threads = b.value(operand, Ty::U32)?;
    match threads {
        Src::Imm(count) if count == 0 || count % 32 != 0 => {
            let what = "Number of threads participating in barrier must be in multiple of warp size";
            Err(operand.at.error(what))
        }
        _ => Ok(threads),
    }
}

/// Parses the kind of `.red`. Returns it and the operands between its result and its predicate.
fn reduction<'i>(
    b: &mut Builder<'_, '_>,
    i: &'i Instruction,
    m: &mut Modifiers<'_>,
) -> Result<(BarrierKind, &'i [Operand]), Diagnostic> {
    let ops = [("popc", None), ("and", Some(BoolOp::And)), ("or", Some(BoolOp::Or))];
    let op = m.required("'.popc', '.and' or '.or'", &ops)?;
    let [d, rest @ .., c] = &i.operands[..] else {
        return Err(b.mismatch(i.opcode.at, "at least 3 operands wanted"));
    };
    let a = b.pred_src(c)?;
    let kind = match op {
        None => {
            let ty = m.ty(&[Ty::U32])?;
            BarrierKind::RedPopc { d: b.dst(d, ty, Fit::Exact)?, a }
        }
        Some(op) => {
            m.required("'.pred'", &[("pred", ())])?;
            BarrierKind::RedPred { op, p: b.pred(d)?, a }
        }
    };
    Ok((kind, rest))
}

/// Takes `.sync`, which the instructions below require since sm_70.
fn sync(m: &mut Modifiers<'_>) -> Lowered {
    m.required("'.sync'", &[("sync", ())])
}

pub(super) fn vote<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    sync(m)?;
    let word = m.required("Mode", &[("all", "all"), ("any", "any"), ("uni", "uni"), ("ballot", "ballot")])?;
    let [d, a, mask] = exactly(b, i)?;
    let kind = if word == "ballot" {
        let ty = m.ty(&[Ty::B32])?;
        VoteKind::Ballot(b.dst(d, ty, Fit::Exact)?)
    } else {
        m.required("'.pred'", &[("pred", ())])?;
        let p = b.pred(d)?;
        match word {
            "all" => VoteKind::All(p),
            "any" => VoteKind::Any(p),
            _ => VoteKind::Uni(p),
        }
    };
    let (a, mask) = (b.pred_src(a)?, b.value(mask, Ty::B32)?);
    b.emit(Op::Vote { kind, a, mask });
    Ok(())
}

/// `d` or `d|p`.
fn result<'o>(
    b: &mut Builder<'_, '_>,
    operand: &'o Operand,
) -> Result<(&'o Operand, Option<Pred>), Diagnostic> {
    match &operand.kind {
        OperandKind::Pair(d, p) => Ok((d, b.pred_or_sink(p)?)),
        _ => Ok((operand, None)),
    }
}

pub(super) fn shfl<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    sync(m)?;
    let modes =
        [("up", ShflMode::Up), ("down", ShflMode::Down), ("bfly", ShflMode::Bfly), ("idx", ShflMode::Idx)];
    let mode = m.required("Mode", &modes)?;
    let ty = m.ty(&[Ty::B32])?;
    let [d, a, lane, c, mask] = exactly(b, i)?;
    let (d, p) = result(b, d)?;
    let d = b.dst(d, ty, Fit::Exact)?;
    let (a, lane) = (b.value(a, ty)?, b.value(lane, Ty::U32)?);
    let (c, mask) = (b.value(c, Ty::U32)?, b.value(mask, Ty::U32)?);
    b.emit(Op::Shfl { mode, d, p, a, b: lane, c, mask });
    Ok(())
}

pub(super) fn matching<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    sync(m)?;
    let all = m.required("'.any' or '.all'", &[("any", false), ("all", true)])?;
    let ty = m.ty(&[Ty::B32, Ty::B64])?;
    b.needs("match", 70, (6, 0), m.at())?;
    let [d, a, mask] = exactly(b, i)?;
    let (d, p) = if all { result(b, d)? } else { (d, None) };
    let d = b.dst(d, Ty::B32, Fit::Exact)?;
    let (a, mask) = (b.value(a, ty)?, b.value(mask, Ty::B32)?);
    b.emit(Op::Match { all, ty, d, p, a, mask });
    Ok(())
}

pub(super) fn redux<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    sync(m)?;
    let ops = [
        ("add", AtomOp::Add),
        ("min", AtomOp::Min),
        ("max", AtomOp::Max),
        ("and", AtomOp::And),
        ("or", AtomOp::Or),
        ("xor", AtomOp::Xor),
    ];
    let op = m.required("Operation", &ops)?;
    let logic = matches!(op, AtomOp::And | AtomOp::Or | AtomOp::Xor);
    let ty = m.ty(if logic { &[Ty::B32] } else { &[Ty::U32, Ty::S32] })?;
    b.needs("redux", 80, (7, 0), m.at())?;
    let [d, a, mask] = exactly(b, i)?;
    let d = b.dst(d, ty, Fit::Exact)?;
    let (a, mask) = (b.value(a, ty)?, b.value(mask, Ty::B32)?);
    b.emit(Op::Redux { op, ty, d, a, mask });
    Ok(())
}

pub(super) fn activemask<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let ty = m.ty(&[Ty::B32])?;
    let [d] = exactly(b, i)?;
    let d = b.dst(d, ty, Fit::Exact)?;
    b.emit(Op::ActiveMask { d });
    Ok(())
}

pub(super) fn elect<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    sync(m)?;
    b.needs("elect", 90, (8, 0), m.at())?;
    let [d, mask] = exactly(b, i)?;
    let OperandKind::Pair(d, p) = &d.kind else {
        return Err(b.mismatch(d.at, "'d|p' is wanted"));
    };
    let (d, p) = (b.dst_or_sink(d, Ty::B32, Fit::Exact)?, b.pred(p)?);
    let mask = b.value(mask, Ty::B32)?;
    b.emit(Op::Elect { d, p, mask });
    Ok(())
}
