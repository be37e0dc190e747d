//! Shapes of operands that many instructions have: all of the type of the instruction, by number of sources; vectors.

use crate::code::op::{Binary, Fp, Ternary, Unary};
use crate::code::{Op, Ty};
use crate::lower::builder::{Builder, Lowered, exactly};
use crate::lower::operand::Fit;
use crate::ptx::ast::{Instruction, Operand};

/// `d = op a`, both of type `ty`.
pub(super) fn unary(b: &mut Builder<'_, '_>, i: &Instruction, op: Unary, ty: Ty, fp: Fp) -> Lowered {
    let [d, a] = exactly(b, i)?;
    let (d, a) = (b.dst(d, ty, Fit::Exact)?, b.value(a, ty)?);
    b.emit(Op::Unary { op, ty, fp, d, a });
    Ok(())
}

/// `d = a op b`, all of type `ty`.
pub(super) fn binary(b: &mut Builder<'_, '_>, i: &Instruction, op: Binary, ty: Ty, fp: Fp) -> Lowered {
    let [d, x, y] = exactly(b, i)?;
    let d = b.dst(d, ty, Fit::Exact)?;
    let (x, y) = (b.value(x, ty)?, b.value(y, ty)?);
    b.emit(Op::Binary { op, ty, fp, d, a: x, b: y });
    Ok(())
}

/// `d = op(a, b, c)`, all of type `ty`.
pub(super) fn ternary(b: &mut Builder<'_, '_>, i: &Instruction, op: Ternary, ty: Ty, fp: Fp) -> Lowered {
    let [d, x, y, z] = exactly(b, i)?;
    let d = b.dst(d, ty, Fit::Exact)?;
    let (x, y, z) = (b.value(x, ty)?, b.value(y, ty)?, b.value(z, ty)?);
    b.emit(Op::Ternary { op, ty, fp, d, a: x, b: y, c: z });
    Ok(())
}

/// Checks that a vector operand has `count` elements.
pub(super) fn size_matches(b: &Builder<'_, '_>, parts: &[Operand], count: u8, operand: &Operand) -> Lowered {
    if parts.len() == usize::from(count) {
        return Ok(());
    }
    Err(operand.at.error(format!("Argument vector size mismatch for instruction '{}'", b.opcode)))
}
