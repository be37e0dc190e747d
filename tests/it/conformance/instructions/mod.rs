//! Arithmetic instructions, form by form: one kernel per form, run over boundary values and pseudo-random ones, compared bit
//! by bit with an oracle that shares nothing with the software device.

mod approximations;
mod carry;
mod compare;
mod convert;
mod exact;
mod floats;
mod fp8;
mod integers;
mod logic;
mod table;
mod values;
mod video;

pub(super) use approximations::{approximate_halves, approximations, gross_approximations};
pub(super) use carry::carry_flag;
pub(super) use compare::comparisons;
pub(super) use convert::conversions;
pub(super) use floats::{doubles, quotients_and_roots, singles, sixteen_bit_floats};
pub(super) use fp8::eight_bit_floats;
pub(super) use integers::{bits_and_bytes, products, sums_and_quotients};
pub(super) use logic::{logic, properties_of_floats, selections};
pub(super) use video::video;
