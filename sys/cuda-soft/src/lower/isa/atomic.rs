//! Atomics and fences (PTX ISA 9.7.13).

use crate::code::op::{AtomOp, Mem};
use crate::code::{Op, Scope, Semantics, Space, Src, Ty};
use crate::lower::builder::{Builder, Lowered};
use crate::lower::modifiers::{Modifiers, SCOPES};
use crate::lower::operand::Fit;
use crate::ptx::ast::{Instruction, OperandKind};

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

/// `atom` and `red`.
pub(super) fn atom<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let at = m.at();
    let red = i.opcode.text == "red";
    if m.take("async") {
        return Err(at.error("Instruction 'red.async' is not supported by the software device"));
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
    let ty = m.ty(types(op))?;
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
    let d = match d {
        Some(d) if d.kind == OperandKind::Sink => None,
        Some(d) => Some(b.dst(d, ty, Fit::Exact)?),
        None => None,
    };
    let (space, addr) = b.address(a, space)?;
    if !matches!(space, Space::Generic | Space::Global | Space::Shared | Space::Cluster) {
        let what = "State space mismatch between instruction and address in instruction";
        return Err(a.at.error(format!("{what} '{}'", b.opcode)));
    }
    let value = b.value(value, ty)?;
    let other = other.map_or(Ok(Src::Imm(0)), |other| b.value(other, ty))?;
    let (sem, scope) = (sem.unwrap_or(Semantics::Relaxed), scope.unwrap_or(Scope::Gpu));
    b.emit(Op::Atom { op, mem: Mem { sem, scope, space, ty, count: 1, addr }, d, b: value, c: other });
    Ok(())
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
