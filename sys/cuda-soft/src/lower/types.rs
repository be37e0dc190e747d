//! Sizes and alignments of variables, and constants in the representation of a type (PTX ISA 4.5, 5.4).

use super::modifiers;
use crate::code::Ty;
use crate::ptx::Diagnostic;
use crate::ptx::ast::{Constant, Init, Linkage, Position, Variable};

/// Maximum size of a variable, which keeps sums of sizes far from overflow.
const LIMIT: u64 = 1 << 40;

/// The element type of a declared variable; `None` for predicates.
pub(super) fn element(variable: &Variable) -> Result<Option<Ty>, Diagnostic> {
    if variable.ty.text == "pred" {
        return Ok(None);
    }
    modifiers::ty(&variable.ty.text).map(Some).ok_or_else(|| {
        variable.ty.at.error(format!("Type '.{}' is not supported by the software device", variable.ty.text))
    })
}

/// Size of `variable` in bytes.
pub(super) fn size(variable: &Variable) -> Result<u64, Diagnostic> {
    let at = variable.name.at;
    let Some(ty) = element(variable)? else {
        return Err(at.error(format!("Predicate '{}' has no place in memory", variable.name.text)));
    };
    let mut bytes = u64::from(ty.size() * variable.vector);
    for (nth, dimension) in variable.dimensions.iter().enumerate() {
        let length = match (dimension, &variable.init) {
            (Some(length), _) => *length,
            (None, Some(Init::List(items, _))) if nth == 0 => items.len() as u64,
            (None, _) if nth == 0 && variable.linkage == Linkage::Extern => 0,
            (None, _) => {
                return Err(at.error(format!("Array '{}' has no size", variable.name.text)));
            }
        };
        bytes = bytes
            .checked_mul(length)
            .filter(|b| *b <= LIMIT)
            .ok_or_else(|| at.error(format!("Variable '{}' is too large", variable.name.text)))?;
    }
    Ok(bytes)
}

/// Alignment of `variable`: the declared one, but at least that of its elements.
pub(super) fn alignment(variable: &Variable) -> Result<u32, Diagnostic> {
    let natural = element(variable)?.map_or(1, Ty::size) * variable.vector;
    Ok(variable.align.max(natural))
}

/// Converts a constant to the bits of an operand or element of type `ty` (PTX ISA 4.5).
pub(super) fn immediate(value: Constant, ty: Ty, at: Position) -> Result<u64, Diagnostic> {
    let mismatch = || at.error(format!("Constant does not agree with type .{}", modifiers::word(ty)));
    let mask = if ty.bits() == 64 { u64::MAX } else { (1 << ty.bits()) - 1 };
    match (value, ty) {
        (Constant::F64(v), Ty::F64) => Ok(v.to_bits()),
        #[allow(clippy::cast_possible_truncation, reason = "rounding to f32 is the meaning")]
        (Constant::F64(v), Ty::F32) => Ok(u64::from((v as f32).to_bits())),
        (Constant::F64(v), Ty::B64) => Ok(v.to_bits()),
        (Constant::F32(bits), Ty::F32 | Ty::B32) => Ok(u64::from(bits)),
        (Constant::F32(bits), Ty::F64) => Ok(f64::from(f32::from_bits(bits)).to_bits()),
        (Constant::Signed(v), ty) if !ty.float() => Ok(v.cast_unsigned() & mask),
        (Constant::Unsigned(v), ty) if !ty.float() => Ok(v & mask),
        _ => Err(mismatch()),
    }
}
