//! Kernels of plans: a description, and the PTX that is made of it.
//!
//! [`Kernel`] says what one rank's thread blocks do, in terms that need no plan to be understood: operands at addresses that the
//! caller passes, control words at offsets that the caller chose. Blocks whose steps differ in numbers only share one body; the
//! numbers come from a row of constants for each block.

mod kernel;

pub use kernel::{
    Base, Block, Element, Kernel, Laps, Move, Number, Operand, Port, PortPut, Reduction, Shape, Share,
    Signal, Step, Wait,
};

/// The PTX of a kernel.
///
/// # Errors
/// Why the description has no kernel.
pub fn render(kernel: &Kernel, _target: crate::Target) -> Result<crate::Instance, crate::TemplateError> {
    Err(crate::failure(&kernel.symbol, "there is no back end yet".to_owned()))
}
