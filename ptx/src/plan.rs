//! Kernels of plans: a description, and the PTX that is made of it.
//!
//! [`Kernel`] says what one rank's thread blocks do, in terms that need no plan to be understood: operands at addresses that the
//! caller passes, control words at offsets that the caller chose. Blocks whose steps differ in numbers only share one body; the
//! numbers come from a row of constants for each block.

mod check;
mod control;
mod element;
mod kernel;
mod lines;
mod moves;
mod multicast;
mod port;
mod render;
mod row_steps;
mod rows;
mod side;
mod step;
mod text;
mod turn;
mod work;

pub use element::{Element, Reduction};
pub use kernel::{Block, Kernel, Laps, PacketForm, Rows, Shape, Trace, UNIT_DATA, UNIT_LINES};
pub use multicast::reduces_by_multicast;
pub use render::render;
pub use step::{Base, Move, Number, Operand, Port, PortPut, Share, Signal, Step, Wait};
pub use work::{unroll, unroll_lines};
