//! Kernels of plans: a description, and the PTX that is made of it.
//!
//! [`Kernel`] says what one rank's thread blocks do, in terms that need no plan to be understood: operands at addresses that the
//! caller passes, control words at offsets that the caller chose. Blocks whose steps differ in numbers only share one body; the
//! numbers come from a row of constants for each block.

mod check;
mod control;
mod kernel;
mod moves;
mod port;
mod render;
mod rows;
mod side;
mod text;
mod turn;
mod work;

pub use kernel::{
    Base, Block, Element, Kernel, Laps, Move, Number, Operand, Port, PortPut, Reduction, Shape, Share,
    Signal, Step, Wait,
};
pub use render::render;
