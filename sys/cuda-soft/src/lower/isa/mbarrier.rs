//! `mbarrier`, and the asynchronous copies that complete at one (PTX ISA 9.7.13.15, 9.7.9.25). Asynchronous instructions
//! are synchronous on this device, so waiting for their groups has no effect.

use super::shape::size_matches;
use crate::code::op::{Binary, BulkCopy, Fp, Mbarrier, MbarrierOp, Mem};
use crate::code::{Addr, Op, Pred, Reg, Scope, Semantics, Space, Src, Ty};
use crate::lower::builder::{Builder, Lowered, exactly};
use crate::lower::modifiers::{Modifiers, SCOPES};
use crate::lower::operand::Fit;
use crate::ptx::Diagnostic;
use crate::ptx::ast::{Instruction, Operand, OperandKind};

/// The spaces of mbarrier objects.
const SHARED: [(&str, Space); 3] =
    [("shared", Space::Shared), ("shared::cta", Space::Shared), ("shared::cluster", Space::Cluster)];

/// Operation of an `mbarrier` instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Init,
    Inval,
    ExpectTx,
    CompleteTx,
    Arrive,
    ArriveDrop,
    TestWait,
    TryWait,
    PendingCount,
}

pub(super) fn mbarrier<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let forms = [
        ("init", Form::Init),
        ("inval", Form::Inval),
        ("expect_tx", Form::ExpectTx),
        ("complete_tx", Form::CompleteTx),
        ("arrive", Form::Arrive),
        ("arrive_drop", Form::ArriveDrop),
        ("test_wait", Form::TestWait),
        ("try_wait", Form::TryWait),
        ("pending_count", Form::PendingCount),
    ];
    let form = m.required("Operation", &forms)?;
    b.needs("mbarrier", 80, (7, 0), m.at())?;
    let expects = matches!(form, Form::Arrive | Form::ArriveDrop) && m.take("expect_tx");
    if matches!(form, Form::Arrive | Form::ArriveDrop) {
        m.take("noComplete");
    }
    let parity = matches!(form, Form::TestWait | Form::TryWait) && m.take("parity");
    m.one_of(&[("release", ()), ("acquire", ()), ("relaxed", ())]);
    m.one_of(&SCOPES);
    let space = m.one_of(&SHARED).unwrap_or(Space::Generic);
    m.ty(&[Ty::B64])?;
    if form == Form::PendingCount {
        let [d, state] = exactly(b, i)?;
        return pending_count(b, d, state);
    }
    let count = |b: &mut Builder<'_, '_>, operand: Option<&Operand>| match operand {
        Some(operand) => b.value(operand, Ty::U32),
        None => Ok(Src::Imm(1)),
    };
    let wrong = |b: &Builder<'_, '_>| b.mismatch(i.opcode.at, "another number of operands is wanted");
    let (op, a, none) = match form {
        Form::Init => (MbarrierOp::Init, None, Src::Imm(0)),
        Form::Inval => (MbarrierOp::Inval, None, Src::Imm(0)),
        Form::ExpectTx => (MbarrierOp::ExpectTx, None, Src::Imm(0)),
        Form::CompleteTx => (MbarrierOp::CompleteTx, None, Src::Imm(0)),
        Form::Arrive => (MbarrierOp::Arrive, Some(()), Src::Imm(0)),
        Form::ArriveDrop => (MbarrierOp::ArriveDrop, Some(()), Src::Imm(0)),
        _ if parity => (MbarrierOp::TestWaitParity, None, Src::Imm(0)),
        _ => (MbarrierOp::TestWait, None, Src::Imm(0)),
    };
    let (d, p, object, a, extra): (Option<Reg>, Option<Pred>, &Operand, Src, Src) = match (&i.operands[..], a)
    {
        // `state, [object] {, count}`; with `.expect_tx` the operand is a number of bytes.
        ([state, object, rest @ ..], Some(())) if is_address(object) && rest.len() <= 1 => {
            let d = b.dst_or_sink(state, Ty::B64, Fit::Exact)?;
            let value = count(b, rest.first())?;
            if expects { (d, None, object, Src::Imm(1), value) } else { (d, None, object, value, none) }
        }
        ([object, rest @ ..], Some(())) if is_address(object) && rest.len() <= 1 => {
            let value = count(b, rest.first())?;
            if expects { (None, None, object, Src::Imm(1), value) } else { (None, None, object, value, none) }
        }
        ([object], None) if form == Form::Inval => (None, None, object, none, none),
        ([object, value], None) if matches!(form, Form::Init | Form::ExpectTx | Form::CompleteTx) => {
            (None, None, object, b.value(value, Ty::U32)?, none)
        }
        // A time to wait for is only a hint.
        ([done, object, state, rest @ ..], None) if rest.len() <= usize::from(form == Form::TryWait) => {
            if let Some(hint) = rest.first() {
                b.value(hint, Ty::U32)?;
            }
            let p = b.pred_or_sink(done)?;
            (None, p, object, b.value(state, if parity { Ty::U32 } else { Ty::B64 })?, none)
        }
        _ => return Err(wrong(b)),
    };
    let (space, addr) = object_at(b, object, space)?;
    b.emit(Op::Mbarrier(Box::new(Mbarrier { op, space, addr, d, p, a, b: extra })));
    Ok(())
}

fn is_address(operand: &Operand) -> bool {
    matches!(operand.kind, OperandKind::Address { .. })
}

/// The address of an mbarrier object.
fn object_at(b: &mut Builder<'_, '_>, operand: &Operand, space: Space) -> Result<(Space, Addr), Diagnostic> {
    let (space, addr) = b.address(operand, space)?;
    if matches!(space, Space::Shared | Space::Cluster | Space::Generic) {
        return Ok((space, addr));
    }
    let what = "State space mismatch between instruction and address in instruction";
    Err(operand.at.error(format!("{what} '{}'", b.opcode)))
}

/// The pending arrivals are the low bits of a state.
fn pending_count(b: &mut Builder<'_, '_>, d: &Operand, state: &Operand) -> Lowered {
    let at = state.at;
    let (d, state) = (b.dst(d, Ty::U32, Fit::Exact)?, b.value(state, Ty::B64)?);
    let wide = b.temporary(Ty::B64, at)?;
    let fp = Fp::default();
    b.emit(Op::Binary { op: Binary::And, ty: Ty::B64, fp, d: wide, a: state, b: Src::Imm((1 << 20) - 1) });
    b.emit(Op::Cvt { d, dty: Ty::U32, sty: Ty::U64, fp, a: wide.into() });
    Ok(())
}

/// `cp.async.mbarrier.arrive`, after the caller has taken `.async`. The copies before it have completed.
pub(super) fn copies_arrive<'a>(
    b: &mut Builder<'_, 'a>,
    i: &'a Instruction,
    m: &mut Modifiers<'a>,
) -> Lowered {
    m.required("'.arrive'", &[("arrive", ())])?;
    let counted = m.take("noinc");
    let space = m.one_of(&SHARED[..2]).unwrap_or(Space::Generic);
    m.ty(&[Ty::B64])?;
    let [object] = exactly(b, i)?;
    let (space, addr) = object_at(b, object, space)?;
    // Without `.noinc` the instruction also adds one to what is pending, so nothing changes.
    let a = Src::Imm(u64::from(counted));
    let op = if counted { MbarrierOp::Arrive } else { MbarrierOp::ExpectTx };
    b.emit(Op::Mbarrier(Box::new(Mbarrier { op, space, addr, d: None, p: None, a, b: Src::Imm(0) })));
    Ok(())
}

/// `cp.async.bulk`, after the caller has taken `.async.bulk`.
pub(super) fn bulk<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let at = m.at();
    b.needs("cp.async.bulk", 90, (8, 0), at)?;
    if m.take("commit_group") {
        let [] = exactly(b, i)?;
        b.emit(Op::Nop);
        return Ok(());
    }
    if m.take("wait_group") {
        m.take("read");
        let [pending] = exactly(b, i)?;
        if !matches!(b.value(pending, Ty::U32)?, Src::Imm(_)) {
            return Err(b.mismatch(pending.at, "a constant is wanted"));
        }
        b.emit(Op::Nop);
        return Ok(());
    }
    for word in ["tensor", "multicast::cluster", "cp_mask"] {
        if i.modifiers.iter().any(|found| found.text == word) {
            return Err(at.error(format!(
                "Instruction 'cp.async.bulk.{word}' is not supported by the software device"
            )));
        }
    }
    if m.take("prefetch") {
        m.required("'.L2'", &[("L2", ())])?;
        m.required("'.global'", &[("global", ())])?;
        m.take("L2::cache_hint");
        b.emit(Op::Nop);
        return Ok(());
    }
    let spaces =
        [("global", Space::Global), ("shared::cta", Space::Shared), ("shared::cluster", Space::Cluster)];
    let to = m.required("Destination space", &spaces)?;
    let from = m.required("Source space", &spaces)?;
    let counted = m.take("mbarrier::complete_tx::bytes");
    if !counted {
        m.required("Completion mechanism", &[("bulk_group", ())])?;
    }
    let hinted = usize::from(m.take("L2::cache_hint"));
    let (dst, src, size, rest) = match &i.operands[..] {
        [dst, src, size, rest @ ..] if rest.len() == usize::from(counted) + hinted => (dst, src, size, rest),
        _ => return Err(b.mismatch(at, "another number of operands is wanted")),
    };
    let (dst, src) = (b.address(dst, to)?, b.address(src, from)?);
    let size = b.value(size, Ty::U32)?;
    let mbarrier = if counted { Some(object_at(b, &rest[0], to_of(to, from))?) } else { None };
    b.emit(Op::BulkCopy(Box::new(BulkCopy { dst, src, size, mbarrier })));
    Ok(())
}

/// The space of the mbarrier object of a copy: it is where the data goes.
fn to_of(to: Space, from: Space) -> Space {
    if to == Space::Global { from } else { to }
}

/// The operation that completes the bytes of an asynchronous store.
fn completes(b: &mut Builder<'_, '_>, object: &Operand, bytes: u32) -> Result<Op, Diagnostic> {
    let (space, addr) = object_at(b, object, Space::Cluster)?;
    let (op, a) = (MbarrierOp::CompleteTx, Src::Imm(bytes.into()));
    Ok(Op::Mbarrier(Box::new(Mbarrier { op, space, addr, d: None, p: None, a, b: Src::Imm(0) })))
}

/// `st.async.weak.shared::cluster.mbarrier::complete_tx::bytes`, after the caller has taken `.async`.
pub(super) fn store<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    b.needs("st.async", 90, (8, 1), m.at())?;
    m.take("weak");
    m.required("'.shared::cluster'", &[("shared::cluster", ())])?;
    m.required("Completion mechanism", &[("mbarrier::complete_tx::bytes", ())])?;
    let count = m.one_of(&[("v2", 2), ("v4", 4)]).unwrap_or(1);
    let ty = m.ty(&[Ty::B32, Ty::B64, Ty::U32, Ty::U64, Ty::S32, Ty::S64, Ty::F32, Ty::F64])?;
    let [a, value, object] = exactly(b, i)?;
    let parts = b.parts(value);
    size_matches(b, parts, count, value)?;
    let (space, addr) = b.address(a, Space::Cluster)?;
    let mut src = [Src::Imm(0); 4];
    for (place, operand) in src.iter_mut().zip(parts) {
        *place = b.src(operand, ty, Fit::Exact)?;
    }
    let done = completes(b, object, ty.size() * u32::from(count))?;
    b.emit(Op::St {
        mem: Mem { sem: Semantics::Relaxed, scope: Scope::Cluster, space, ty, count, addr },
        src,
    });
    b.emit(done);
    Ok(())
}
