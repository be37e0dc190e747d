//! Atomics and fences (PTX ISA 9.7.13).

use super::shape::size_matches;
use crate::code::op::{AtomOp, Mem};
use crate::code::{Addr, Op, Scope, Semantics, Space, Src, Ty};
use crate::lower::builder::{Builder, Lowered};
use crate::lower::modifiers::{Modifiers, SCOPES};
use crate::lower::operand::Fit;
use crate::ptx::Diagnostic;
use crate::ptx::ast::{Instruction, OperandKind, Position};

const OPERATIONS: [(&str, AtomOp); 10] = [
    ("add", AtomOp::Add),
    ("min", AtomOp::Min),
    ("max", AtomOp::Max),
    ("and", AtomOp::And),
    ("or", AtomOp::Or),
    ("xor", AtomOp::Xor),
    ("exch", AtomOp::Exch),
    ("cas", AtomOp::Cas),
    ("inc", AtomOp::Inc),
    ("dec", AtomOp::Dec),
];

/// The types of each operation.
fn types(op: AtomOp) -> &'static [Ty] {
    match op {
        AtomOp::Add => {
            &[Ty::U32, Ty::S32, Ty::U64, Ty::F32, Ty::F64, Ty::F16, Ty::F16x2, Ty::Bf16, Ty::Bf16x2]
        }
        AtomOp::Min | AtomOp::Max => &[Ty::U32, Ty::S32, Ty::U64, Ty::S64],
        AtomOp::And | AtomOp::Or | AtomOp::Xor | AtomOp::Exch => &[Ty::B32, Ty::B64],
        AtomOp::Cas => &[Ty::B16, Ty::B32, Ty::B64],
        AtomOp::Inc | AtomOp::Dec => &[Ty::U32],
    }
}

/// The types of the vectors of each operation. A vector has at most 16 bytes.
fn vector_types(op: AtomOp) -> &'static [Ty] {
    match op {
        AtomOp::Add => &[Ty::F32, Ty::F16, Ty::F16x2, Ty::Bf16, Ty::Bf16x2],
        AtomOp::Min | AtomOp::Max => &[Ty::F16, Ty::F16x2, Ty::Bf16, Ty::Bf16x2],
        _ => &[],
    }
}

/// `atom` and `red`. The elements of a vector are atomic operations of their own.
pub(super) fn atom<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let at = m.at();
    let red = i.opcode.text == "red";
    if m.take("async") {
        return Err(at.error("Instruction 'red.async' is not supported by the software device"));
    }
    if let Some(found) = i.modifiers.iter().find(|found| found.text == "b128") {
        let what = "is not supported by the software device";
        return Err(found.at.error(format!("'.b128' of instruction '{}' {what}", b.opcode)));
    }
    let sem = m.one_of(&[("relaxed", Semantics::Relaxed), ("release", Semantics::Release)]);
    let sem = if sem.is_none() && !red {
        m.one_of(&[("acquire", Semantics::Acquire), ("acq_rel", Semantics::AcqRel)])
    } else {
        sem
    };
    let scope = m.one_of(&SCOPES);
    if sem.is_some() {
        b.needs(&format!("{} with memory semantics", b.opcode), 70, (6, 0), at)?;
    }
    if scope == Some(Scope::Cluster) {
        b.needs(".cluster scope", 90, (7, 8), at)?;
    }
    let spaces = [
        ("global", Space::Global),
        ("shared", Space::Shared),
        ("shared::cta", Space::Shared),
        ("shared::cluster", Space::Cluster),
    ];
    let space = m.one_of(&spaces).unwrap_or(Space::Generic);
    let op = m.required("Operation", &OPERATIONS)?;
    if red && matches!(op, AtomOp::Exch | AtomOp::Cas) {
        return Err(at.error("'.exch' and '.cas' are not reductions"));
    }
    let count = m.one_of(&[("v2", 2), ("v4", 4), ("v8", 8)]).unwrap_or(1);
    let ty = m.ty(if count > 1 { vector_types(op) } else { types(op) })?;
    if count > 1 {
        b.needs("vector atomics", 90, (8, 1), at)?;
        if !matches!(space, Space::Generic | Space::Global) || u32::from(count) * ty.size() > 16 {
            return Err(at.error(format!("Vectors of '{}' have at most 16 bytes, in '.global'", b.opcode)));
        }
    }
    if matches!(ty, Ty::F16 | Ty::F16x2 | Ty::Bf16 | Ty::Bf16x2) {
        m.required("'.noftz'", &[("noftz", ())])?;
        let (sm, ptx) = match ty {
            Ty::F16x2 => (60, (6, 2)),
            Ty::F16 => (70, (6, 3)),
            _ => (90, (7, 8)),
        };
        b.needs("atomics on 16-bit floats", sm, ptx, at)?;
    }
    let (d, rest) = match (&i.operands[..], red) {
        (rest, true) => (None, rest),
        ([d, rest @ ..], false) => (Some(d), rest),
        ([], false) => return Err(b.mismatch(at, "operands are missing")),
    };
    let (a, value, other) = match (rest, op) {
        ([a, compare, value], AtomOp::Cas) => (a, compare, Some(value)),
        ([a, value], op) if op != AtomOp::Cas => (a, value, None),
        _ => return Err(b.mismatch(at, "another number of operands is wanted")),
    };
    let mut results = vec![None; usize::from(count)];
    if let Some(d) = d.filter(|d| d.kind != OperandKind::Sink) {
        let parts = b.parts(d);
        size_matches(b, parts, count, d)?;
        for (result, part) in results.iter_mut().zip(parts) {
            *result = if count > 1 {
                b.dst_or_sink(part, ty, Fit::Exact)?
            } else {
                Some(b.dst(part, ty, Fit::Exact)?)
            };
        }
    }
    let (space, addr) = b.address(a, space)?;
    if !matches!(space, Space::Generic | Space::Global | Space::Shared | Space::Cluster) {
        let what = "State space mismatch between instruction and address in instruction";
        return Err(a.at.error(format!("{what} '{}'", b.opcode)));
    }
    let parts = b.parts(value);
    size_matches(b, parts, count, value)?;
    let mut values = Vec::new();
    for part in parts {
        let value = b.value(part, ty)?;
        // An earlier element's result may replace it.
        values.push(if count > 1 { kept(b, value, ty, part.at)? } else { value });
    }
    let other = other.map_or(Ok(Src::Imm(0)), |other| b.value(other, ty))?;
    let (sem, scope) = (sem.unwrap_or(Semantics::Relaxed), scope.unwrap_or(Scope::Gpu));
    for (index, (d, value)) in results.into_iter().zip(values).enumerate() {
        // The first one checks the alignment of all.
        let count = if index == 0 { count } else { 1 };
        let offset = addr.offset.wrapping_add(i64::from(ty.size()) * index as i64);
        let mem = Mem { sem, scope, space, ty, count, addr: Addr { offset, ..addr } };
        b.emit(Op::Atom { op, mem, d, b: value, c: other });
    }
    Ok(())
}

/// Copies the value to a temporary, unless it is constant.
fn kept(b: &mut Builder<'_, '_>, value: Src, ty: Ty, at: Position) -> Result<Src, Diagnostic> {
    if matches!(value, Src::Imm(_)) {
        return Ok(value);
    }
    let d = b.temporary(ty, at)?;
    b.emit(Op::Mov { d, a: value });
    Ok(d.into())
}

/// `fence`. All proxies see the same memory on this device, so a proxy fence is an ordinary one; only the race detector tells aliases
/// apart.
pub(super) fn fence<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let at = m.at();
    no_operands(b, i)?;
    if m.take("proxy") {
        let asynchronous = m.required("Proxy", &[("alias", false), ("async", true)])?;
        if asynchronous {
            b.needs("fence.proxy.async", 90, (8, 0), at)?;
            m.one_of(&[("global", ()), ("shared::cta", ()), ("shared::cluster", ())]);
        } else {
            b.needs("fence.proxy.alias", 70, (7, 5), at)?;
        }
        let ordinary = Op::Fence { sem: Semantics::AcqRel, scope: Scope::Cta };
        b.emit(if asynchronous { ordinary } else { Op::FenceAliases });
        return Ok(());
    }
    if m.take("mbarrier_init") {
        m.required("'.release'", &[("release", ())])?;
        m.required("'.cluster'", &[("cluster", ())])?;
        b.needs("fence.mbarrier_init", 90, (8, 0), at)?;
        b.emit(Op::Fence { sem: Semantics::Release, scope: Scope::Cluster });
        return Ok(());
    }
    let table = [
        ("sc", Semantics::SeqCst),
        ("acq_rel", Semantics::AcqRel),
        ("acquire", Semantics::Acquire),
        ("release", Semantics::Release),
    ];
    let sem = m.one_of(&table).unwrap_or(Semantics::AcqRel);
    let scope = m.required("Scope", &SCOPES)?;
    b.needs("fence", 70, (6, 0), at)?;
    match sem {
        Semantics::Acquire => b.needs("fence.acquire", 90, (8, 6), at)?,
        Semantics::Release => b.needs("fence.release", 90, (8, 6), at)?,
        _ => {}
    }
    if scope == Scope::Cluster {
        b.needs(".cluster scope", 90, (7, 8), at)?;
    }
    b.emit(Op::Fence { sem, scope });
    Ok(())
}

pub(super) fn membar<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    no_operands(b, i)?;
    let levels = [("cta", Scope::Cta), ("gl", Scope::Gpu), ("sys", Scope::Sys)];
    let scope = m.required("Level", &levels)?;
    b.emit(Op::Fence { sem: Semantics::SeqCst, scope });
    Ok(())
}

fn no_operands(b: &Builder<'_, '_>, i: &Instruction) -> Lowered {
    match i.operands.first() {
        None => Ok(()),
        Some(operand) => Err(b.mismatch(operand.at, "no operands are wanted")),
    }
}
