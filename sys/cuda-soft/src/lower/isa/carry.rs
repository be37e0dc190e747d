//! Extended-precision arithmetic with the carry flag (PTX ISA 9.7.2).

use crate::code::{Op, Ty};
use crate::lower::builder::{Builder, Lowered, exactly};
use crate::lower::modifiers::Modifiers;
use crate::lower::operand::Fit;
use crate::ptx::ast::Instruction;

const TYPES: [Ty; 4] = [Ty::U32, Ty::S32, Ty::U64, Ty::S64];

/// `addc`, `subc`, with or without `.cc`.
pub(super) fn add_sub<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let carry_out = m.take("cc");
    emit(b, i, m, true, carry_out)
}

/// `add.cc`, `sub.cc`.
pub(super) fn add_sub_out<'a>(
    b: &mut Builder<'_, 'a>,
    i: &'a Instruction,
    m: &mut Modifiers<'a>,
    carry_in: bool,
) -> Lowered {
    emit(b, i, m, carry_in, true)
}

fn emit<'a>(
    b: &mut Builder<'_, 'a>,
    i: &'a Instruction,
    m: &mut Modifiers<'a>,
    carry_in: bool,
    carry_out: bool,
) -> Lowered {
    let ty = m.ty(&TYPES)?;
    let [d, x, y] = exactly(b, i)?;
    let d = b.dst(d, ty, Fit::Exact)?;
    let (x, y) = (b.value(x, ty)?, b.value(y, ty)?);
    let sub = i.opcode.text.starts_with("sub");
    b.emit(Op::AddCarry { sub, ty, carry_in, carry_out, d, a: x, b: y });
    Ok(())
}

/// `madc`, with or without `.cc`.
pub(super) fn madc<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let carry_out = m.take("cc");
    mad(b, i, m, true, carry_out)
}

/// `mad.cc` and `madc`.
pub(super) fn mad<'a>(
    b: &mut Builder<'_, 'a>,
    i: &'a Instruction,
    m: &mut Modifiers<'a>,
    carry_in: bool,
    carry_out: bool,
) -> Lowered {
    let hi = m.required("'.lo' or '.hi'", &[("lo", false), ("hi", true)])?;
    let ty = m.ty(&TYPES)?;
    let [d, x, y, z] = exactly(b, i)?;
    let d = b.dst(d, ty, Fit::Exact)?;
    let (x, y, z) = (b.value(x, ty)?, b.value(y, ty)?, b.value(z, ty)?);
    b.emit(Op::MadCarry { hi, ty, carry_in, carry_out, d, a: x, b: y, c: z });
    Ok(())
}
