//! Loads, stores, prefetches and asynchronous copies (PTX ISA 9.7.9).

use super::mbarrier;
use super::shape::size_matches;
use crate::code::op::Mem;
use crate::code::{Addr, Base, Op, Scope, Semantics, Space, Src, Ty};
use crate::lower::builder::{Builder, Lowered, exactly};
use crate::lower::modifiers::{Modifiers, SCOPES, SPACES};
use crate::lower::operand::Fit;
use crate::lower::scope::{Entity, Role};
use crate::ptx::Diagnostic;
use crate::ptx::ast::{Instruction, Operand, OperandKind};

const TYPES: [Ty; 14] = [
    Ty::B8,
    Ty::B16,
    Ty::B32,
    Ty::B64,
    Ty::U8,
    Ty::U16,
    Ty::U32,
    Ty::U64,
    Ty::S8,
    Ty::S16,
    Ty::S32,
    Ty::S64,
    Ty::F32,
    Ty::F64,
];

pub(super) fn ld<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let (sem, scope) = ordering(b, m, "acquire", Semantics::Acquire)?;
    let read_only = i.opcode.text == "ldu" || m.take("nc");
    let steered = hints(m, &["ca", "cg", "cs", "lu", "cv"]);
    let (space, count, ty) = shape(m)?;
    cached(m, sem, space, steered)?;
    let named = if i.opcode.text == "ldu" {
        matches!(space, Space::Global | Space::Generic)
    } else {
        space == Space::Global
    };
    if read_only && !(named && sem == Semantics::Weak) {
        return Err(m.at().error("Read-only loads are weak loads of '.global'"));
    }
    let [d, a] = without_policy(b, i, m)? else { return Err(b.mismatch(i.opcode.at, "2 operands wanted")) };
    let parts = b.parts(d);
    size_matches(b, parts, count, d)?;
    if let Some((name, returned)) = passed(b, a)?
        && !returned
    {
        return Err(a.at.error(format!("'{name}' is read but no call before has returned it")));
    }
    let (space, addr) = b.address(a, space)?;
    let mem = Mem { sem, scope, space, ty, count, addr };
    allowed(b, &mem, a)?;
    let mut registers = [None; 4];
    for (place, operand) in registers.iter_mut().zip(parts) {
        *place = if count > 1 {
            b.dst_or_sink(operand, ty, Fit::Wide)?
        } else {
            Some(b.dst(operand, ty, Fit::Wide)?)
        };
    }
    b.emit(Op::Ld { mem, d: registers });
    Ok(())
}

pub(super) fn st<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    if m.take("async") {
        return mbarrier::store(b, i, m);
    }
    let (sem, scope) = ordering(b, m, "release", Semantics::Release)?;
    let steered = hints(m, &["wb", "cg", "cs", "wt"]);
    let (space, count, ty) = shape(m)?;
    cached(m, sem, space, steered)?;
    let [a, value] = without_policy(b, i, m)? else {
        return Err(b.mismatch(i.opcode.at, "2 operands wanted"));
    };
    let parts = b.parts(value);
    size_matches(b, parts, count, value)?;
    let (space, addr) = b.address(a, space)?;
    passed(b, a)?;
    if space == Space::Const || addr.base == Base::KernelParam {
        return Err(a.at.error("State space mismatch between instruction and address in instruction 'st'"));
    }
    let mem = Mem { sem, scope, space, ty, count, addr };
    allowed(b, &mem, a)?;
    let mut src = [Src::Imm(0); 4];
    for (place, operand) in src.iter_mut().zip(parts) {
        *place = b.src(operand, ty, Fit::Wide)?;
    }
    b.emit(Op::St { mem, src });
    Ok(())
}

/// Parses `.weak`, `.relaxed`, `.acquire` or `.release`, `.volatile`, `.mmio`, and the scope (PTX ISA 8.6).
fn ordering(
    b: &Builder<'_, '_>,
    m: &mut Modifiers<'_>,
    ordered: &str,
    semantics: Semantics,
) -> Result<(Semantics, Scope), Diagnostic> {
    let at = m.at();
    let mmio = m.take("mmio");
    let table = [
        ("weak", Semantics::Weak),
        ("relaxed", Semantics::Relaxed),
        ("volatile", Semantics::Volatile),
        (ordered, semantics),
    ];
    let sem = m.one_of(&table);
    let scope = m.one_of(&SCOPES);
    if mmio {
        b.needs(".mmio", 70, (8, 2), at)?;
        return match (sem, scope) {
            (Some(Semantics::Relaxed), Some(Scope::Sys)) => Ok((Semantics::Volatile, Scope::Sys)),
            _ => Err(at.error("Modifier '.mmio' requires '.relaxed' and '.sys'")),
        };
    }
    let name = |sem| table.iter().find(|(_, s)| *s == sem).map_or("weak", |(name, _)| name);
    match (sem, scope) {
        (None | Some(Semantics::Weak), None) => Ok((Semantics::Weak, Scope::Cta)),
        (Some(Semantics::Volatile), None) => Ok((Semantics::Volatile, Scope::Sys)),
        (Some(sem @ (Semantics::Weak | Semantics::Volatile)), Some(_)) => {
            Err(at.error(format!("Modifier '.{}' cannot be combined with a scope", name(sem))))
        }
        (None, Some(_)) => {
            Err(at.error(format!("A scope requires '.relaxed' or '.{ordered}' with '{}'", b.opcode)))
        }
        (Some(sem), None) => {
            let name = name(sem);
            Err(at.error(format!("Modifier '.{name}' requires scope with '{}' instruction", b.opcode)))
        }
        (Some(sem), Some(scope)) => {
            b.needs(&format!("{}.{}", b.opcode, name(sem)), 70, (6, 0), at)?;
            if scope == Scope::Cluster {
                b.needs(".cluster scope", 90, (7, 8), at)?;
            }
            Ok((sem, scope))
        }
    }
}

/// The kinds of cache hints of an access: an operator (`.ca`), and a priority or prefetch size (`L1::`, `L2::`).
#[derive(Clone, Copy)]
struct Hints {
    operator: bool,
    priority: bool,
}

/// Takes cache operators and eviction hints, which have no effect on this device.
fn hints(m: &mut Modifiers<'_>, operators: &[&str]) -> Hints {
    const PRIORITIES: [&str; 5] =
        ["L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"];
    const PREFETCHES: [&str; 3] = ["L2::64B", "L2::128B", "L2::256B"];
    let loads = !operators.contains(&"wb");
    let operator = operators.iter().any(|word| m.take(word));
    let mut priority = false;
    let understood = |word: &str| PRIORITIES.contains(&word) || (loads && PREFETCHES.contains(&word));
    while m.pick(|word| understood(word).then_some(())).is_some() {
        priority = true;
    }
    Hints { operator, priority }
}

/// Checks that cache hints, semantics and state space are allowed together.
fn cached(m: &Modifiers<'_>, sem: Semantics, space: Space, hints: Hints) -> Lowered {
    if hints.operator && sem != Semantics::Weak {
        return Err(m.at().error("Cache operators cannot be combined with memory semantics"));
    }
    if hints.priority && !matches!(space, Space::Generic | Space::Global) {
        return Err(m.at().error("Cache hints apply to '.global' and generic accesses only"));
    }
    if sem == Semantics::Volatile && matches!(space, Space::Local | Space::Const | Space::Param) {
        return Err(m.at().error("Modifier '.volatile' cannot be applied to this state space"));
    }
    Ok(())
}

/// Parses state space (generic by default), vector length and element type.
fn shape(m: &mut Modifiers<'_>) -> Result<(Space, u8, Ty), Diagnostic> {
    let space = m.one_of(&SPACES).unwrap_or(Space::Generic);
    let count = m.one_of(&[("v2", 2), ("v4", 4)]).unwrap_or(1);
    let ty = m.ty(&TYPES)?;
    if u32::from(count) * ty.size() > 16 {
        return Err(m
            .at()
            .error("Feature '256 bit wide load/store' is not supported by the software device"));
    }
    Ok((space, count, ty))
}

/// The name of the `.param` variable of a call that an access names, and whether a call has returned it. Accesses to such
/// variables are part of the call sequence, so they have no predicate (PTX ISA 7.1).
fn passed<'i>(b: &mut Builder<'_, '_>, a: &'i Operand) -> Result<Option<(&'i str, bool)>, Diagnostic> {
    let OperandKind::Address { base: Some(name), .. } = &a.kind else { return Ok(None) };
    let Ok(Some(Entity::Frame { offset, role: Role::Call, .. })) = b.scopes.find(name, &mut b.slots) else {
        return Ok(None);
    };
    if b.guard.pred.is_some() {
        let what = "Illegal to predicate instruction";
        return Err(a.at.error(format!("{what} '{}.param' with operand '{name}'", b.opcode)));
    }
    Ok(Some((name, b.returned.contains(&offset))))
}

/// Checks that an ordered access is to memory that other threads can see.
fn allowed(b: &Builder<'_, '_>, mem: &Mem, a: &Operand) -> Lowered {
    let shared = matches!(mem.space, Space::Generic | Space::Global | Space::Shared | Space::Cluster);
    if shared || matches!(mem.sem, Semantics::Weak | Semantics::Volatile) {
        return Ok(());
    }
    let what = "State space mismatch between instruction and address in instruction";
    Err(a.at.error(format!("{what} '{}'", b.opcode)))
}

pub(super) fn prefetch<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let space = m.one_of(&[("global", Space::Global), ("local", Space::Local)]).unwrap_or(Space::Generic);
    let levels = [("L1", ()), ("L2", ()), ("L2::evict_last", ()), ("L2::evict_normal", ())];
    m.required("Cache level", &levels)?;
    let [a] = exactly(b, i)?;
    b.address(a, space)?;
    b.emit(Op::Nop);
    Ok(())
}

/// `discard`, and `applypriority`, which has no effect on this device: it has no caches.
pub(super) fn line<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let discards = i.opcode.text == "discard";
    let space = m.one_of(&[("global", Space::Global)]).unwrap_or(Space::Generic);
    m.required("Cache level", &[(if discards { "L2" } else { "L2::evict_normal" }, ())])?;
    b.needs(b.opcode, 80, (7, 4), m.at())?;
    let [a, size] = exactly(b, i)?;
    let (space, addr) = b.address(a, space)?;
    if !matches!(space, Space::Generic | Space::Global) {
        let what = "State space mismatch between instruction and address in instruction";
        return Err(a.at.error(format!("{what} '{}'", b.opcode)));
    }
    if b.value(size, Ty::U32)? != Src::Imm(128) {
        return Err(b.mismatch(size.at, "the size is 128"));
    }
    b.emit(if discards { Op::Discard { space, addr } } else { Op::Nop });
    Ok(())
}

/// `createpolicy`: all cache policies are the same on this device.
pub(super) fn policy<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    b.needs("createpolicy", 80, (7, 4), m.at())?;
    while m.pick(|word| (word != "b64").then_some(())).is_some() {}
    m.ty(&[Ty::B64])?;
    let [d, ..] = &i.operands[..] else {
        return Err(b.mismatch(i.opcode.at, "operands are missing"));
    };
    let d = b.dst(d, Ty::B64, Fit::Exact)?;
    b.emit(Op::Mov { d, a: Src::Imm(0) });
    Ok(())
}

/// Returns the operands without the cache policy at the end, which `.L2::cache_hint` announces.
fn without_policy<'i>(
    b: &mut Builder<'_, '_>,
    i: &'i Instruction,
    m: &mut Modifiers<'_>,
) -> Result<&'i [Operand], Diagnostic> {
    match &i.operands[..] {
        [rest @ .., policy] if m.take("L2::cache_hint") => {
            b.value(policy, Ty::B64)?;
            Ok(rest)
        }
        all => Ok(all),
    }
}

/// `cp.async` of 4, 8 or 16 bytes, and the forms that wait for it, which have no effect because the copy is
/// synchronous.
pub(super) fn cp_async<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let at = m.at();
    if m.take("reduce") {
        return Err(at.error("Instruction 'cp.reduce.async' is not supported by the software device"));
    }
    m.required("'.async'", &[("async", ())])?;
    if m.take("bulk") {
        return mbarrier::bulk(b, i, m);
    }
    b.needs("cp.async", 80, (7, 0), at)?;
    if m.take("mbarrier") {
        return mbarrier::copies_arrive(b, i, m);
    }
    if m.take("commit_group") || m.take("wait_all") {
        let [] = exactly(b, i)?;
        b.emit(Op::Nop);
        return Ok(());
    }
    if m.take("wait_group") {
        let [pending] = exactly(b, i)?;
        if !matches!(b.value(pending, Ty::U32)?, Src::Imm(_)) {
            return Err(b.mismatch(pending.at, "a constant is wanted"));
        }
        b.emit(Op::Nop);
        return Ok(());
    }
    let bypass = m.required("Cache", &[("ca", false), ("cg", true)])?;
    m.required("Shared space", &[("shared", ()), ("shared::cta", ())])?;
    m.required("'.global'", &[("global", ())])?;
    hints(m, &[]);
    let (dst, src, size, rest) = match without_policy(b, i, m)? {
        [dst, src, size, rest @ ..] if rest.len() <= 1 => (dst, src, size, rest.first()),
        _ => return Err(b.mismatch(at, "3 or 4 operands wanted")),
    };
    let bytes = match b.value(size, Ty::U32)? {
        Src::Imm(16) => 16,
        Src::Imm(bytes @ (4 | 8)) if !bypass => bytes,
        _ => return Err(b.mismatch(size.at, "the size is 4, 8 or 16, with '.cg' 16")),
    };
    let src_size = rest.map_or(Ok(Src::Imm(bytes)), |o| b.value(o, Ty::U32))?;
    let (_, dst): (Space, Addr) = b.address(dst, Space::Shared)?;
    let (_, src) = b.address(src, Space::Global)?;
    let size = if bytes == 16 {
        16
    } else if bytes == 8 {
        8
    } else {
        4
    };
    b.emit(Op::CpAsync { dst, src, size, src_size });
    Ok(())
}
