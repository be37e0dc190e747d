//! The execution engine: runs kernels and stream work of all devices on at most as many threads as
//! the machine has cores.
//!
//! - A **warp** is 32 lanes over a structure-of-arrays register file, with a program counter per
//!   lane. Lanes at the same place run together, the one furthest behind first, and no group of
//!   lanes keeps the warp for ever, so that a lane may wait for another of its own warp.
//! - A **block** is a state machine: it runs for a quantum, and stops where all its warps wait.
//! - A **grid**'s blocks start as far as [`Residency`] allows, as on hardware.
//! - A warp that loops over loads that return what they returned before **waits**: it is looked at
//!   again when other work has run, and when nothing else is left to run, the thread sleeps on
//!   the doorbells of the memory that was read.
//!
//! Semantics are those of PTX ISA 9; the memory model maps to that of Rust's atomics of at least
//! the same strength on the real addresses (`memory`).

#![allow(clippy::needless_range_loop, reason = "a lane indexes several arrays at once")]

mod alu;
mod atomic;
mod barrier;
mod block;
mod collective;
mod engine;
mod fault;
mod grid;
mod memory;
mod rare;
mod regs;
mod residency;
mod spin;
mod step;
mod transfer;
mod warp;
mod watchdog;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use crate::code::Module;
use crate::mem::Space;

pub use engine::Engine;
pub use fault::{Fault, FaultKind};
pub use residency::Residency;
pub use watchdog::{Stall, Watchdog};

/// A loaded module: code and where its variables lie.
#[derive(Debug)]
pub struct Image {
    /// The code; [`Module::check`] must have passed.
    pub code: Arc<Module>,
    /// The real address of each of [`Module::globals`].
    pub globals: Vec<u64>,
}

/// A kernel launch.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The module.
    pub image: Arc<Image>,
    /// Which of its functions, a kernel.
    pub function: usize,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads per block in x, y, z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// The parameter buffer, laid out as [`Function::params`](crate::code::Function::params) says.
    pub params: Vec<u8>,
    /// The address of a cooperative launch's zeroed workspace (at least 16 bytes), else 0; see
    /// [`Special::EnvReg`](crate::code::op::Special::EnvReg).
    pub workspace: u64,
    /// The ordinal of the device.
    pub device: usize,
    /// What the device can hold.
    pub limits: Residency,
    /// The memory.
    pub space: Arc<Space>,
}

/// What a [task](Engine::task) says after each step.
#[derive(Debug)]
pub enum Step {
    /// It has ended.
    Done,
    /// It got somewhere and goes on.
    Again,
    /// It waits for memory to change; `watched` is an address it looked at, as device `device` of
    /// `space` sees it.
    Waiting {
        /// Whose doorbell to sleep on; without one the task is polled every millisecond at most.
        watched: Option<Watch>,
    },
}

/// An address and the space in which to find its doorbell.
#[derive(Clone)]
pub struct Watch {
    /// The memory.
    pub space: Arc<Space>,
    /// The device that looks.
    pub device: usize,
    /// The address.
    pub addr: u64,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} on device {}", self.addr, self.device)
    }
}
