//! The execution engine: runs kernels and stream work of all devices on at most as many threads as the machine has
//! cores.
//!
//! - A **warp** has 32 lanes over a structure-of-arrays register file, with a program counter per lane. Lanes at the
//!   same instruction run together, those furthest behind first. No group of lanes keeps the warp for ever, so a lane
//!   may wait for another lane of its own warp.
//! - A **block** is a state machine. It runs for one quantum, and stops earlier if all its warps wait.
//! - The blocks of a **grid** start as far as [`Residency`] allows, as on hardware.
//! - A warp **waits** if it loops over loads that return unchanged values. The engine runs other work before it tries
//!   the warp again; if there is no other work, the thread sleeps on the event counts of the memory that the warp
//!   reads.
//!
//! Instructions behave as PTX ISA 9 says. Memory accesses are Rust atomics on host addresses, with an ordering at least
//! as strong as the one that the PTX memory model asks for (`memory`).

#![allow(clippy::needless_range_loop, reason = "a lane indexes several arrays at once")]

mod alu;
mod atomic;
mod barrier;
mod block;
mod buffer;
mod checked;
mod cluster;
mod collective;
mod console;
mod converged;
mod defer;
mod discard;
mod engine;
mod fault;
mod grid;
mod hurry;
mod mbarrier;
mod memory;
mod multimem;
mod printf;
mod rare;
mod regs;
mod residency;
mod service;
mod services;
mod spin;
mod step;
mod transfer;
mod turn;
mod warp;
mod watchdog;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::check;
use crate::code::Module;
use crate::mem::Space;

pub use console::{Console, Target};
pub use engine::Engine;
pub use fault::{Fault, FaultKind};
pub use residency::Residency;
pub use services::Services;
pub use watchdog::{Stall, Watchdog};

/// A loaded module: its code and the addresses of its variables.
#[derive(Debug)]
pub struct Image {
    /// The code; [`Module::check`] must have passed.
    pub code: Arc<Module>,
    /// The address of each of [`Module::globals`].
    pub globals: Vec<u64>,
    /// Which of all images it is. An address is used again when an image is dropped.
    pub(crate) number: u64,
}

impl Image {
    /// An image of `code`, whose variables lie at `globals`.
    #[must_use]
    pub fn new(code: Arc<Module>, globals: Vec<u64>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { code, globals, number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }
}

/// A kernel launch.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The module.
    pub image: Arc<Image>,
    /// The index of the kernel among its functions.
    pub function: usize,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads per block in x, y, z.
    pub block: [u32; 3],
    /// Blocks per cluster in x, y, z; the grid is a multiple of it.
    pub cluster: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// The parameter buffer, with the layout of [`Function::params`](crate::code::Function::params).
    pub params: Vec<u8>,
    /// The address of a cooperative launch's zeroed workspace (at least 16 bytes), or 0; see
    /// [`Special::EnvReg`](crate::code::op::Special::EnvReg).
    pub workspace: u64,
    /// The ordinal of the device.
    pub device: usize,
    /// The limits of the device.
    pub limits: Residency,
    /// The address space.
    pub space: Arc<Space>,
    /// The output and the heap of the device.
    pub services: Arc<Services>,
    /// For the race detector, if it is on.
    pub(crate) check: Option<Arc<check::Work>>,
    /// Whether warps must be together at aligned barriers.
    pub(crate) aligned: bool,
    /// With a seed, registers, shared and local memory hold garbage until they are written.
    pub(crate) garbage: Option<u64>,
}

/// The result of one step of a [task](Engine::task).
#[derive(Debug)]
pub enum Step {
    /// The task has ended.
    Done,
    /// The task made progress and continues.
    Again,
    /// The task waits for memory to change.
    Waiting {
        /// An address that the task polled; the engine sleeps on its event count. Without one the engine polls the task
        /// about every millisecond.
        watched: Option<Watch>,
    },
}

/// An address whose event count to sleep on.
#[derive(Clone)]
pub struct Watch {
    /// The address space.
    pub space: Arc<Space>,
    /// The device that polls the address.
    pub device: usize,
    /// The address.
    pub addr: u64,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} on device {}", self.addr, self.device)
    }
}
