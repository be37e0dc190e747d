//! Programs: plans written in Rust, in the words of MSCCL++'s DSL.
//!
//! A program names ranks, buffers and channels, and calls operations on them for thread blocks. Here each rank reduces its
//! chunk of all inputs and gives the result to all:
//!
//! ```
//! use aqueduct::plan::check::check;
//! use aqueduct::plan::program::{CollectiveProgram, Pattern, Reduction, SyncType};
//!
//! fn main() -> aqueduct::Result<()> {
//!     let program = CollectiveProgram::new("two-shot", Pattern::all_reduce(4, 1).in_place());
//!     for rank in program.ranks() {
//!         let index = rank.index();
//!         let mine = rank.input().chunk(index);
//!         let channels: Vec<_> = rank.peers().map(|peer| rank.memory_channel(peer)).collect();
//!         // Peers may be touched once they have begun the call.
//!         channels.iter().for_each(|channel| channel.relaxed_signal(0, SyncType::None));
//!         channels.iter().for_each(|channel| channel.wait(0, SyncType::After));
//!         for channel in &channels {
//!             let theirs = program.rank(channel.peer()).input().chunk(index);
//!             channel.reduce(mine, theirs, Reduction::Sum, 0);
//!         }
//!         for channel in &channels {
//!             channel.put(program.rank(channel.peer()).input().chunk(index), mine, 0);
//!         }
//!         // The call ends when all have written.
//!         channels.iter().for_each(|channel| channel.signal(0, SyncType::Before));
//!         channels.iter().for_each(|channel| channel.wait(0, SyncType::After));
//!     }
//!     let plan = program.compile()?;
//!     assert_eq!(check(&plan), []);
//!     Ok(())
//! }
//! ```
//!
//! `docs/plans.md` explains another one, and has a table of MSCCL++'s words and these.

mod blocks;
mod chunk;
mod collective_program;
mod end;
mod lines;
mod memory_channel;
mod pattern;
mod port_channel;
mod rank;
mod record;
mod semaphore;
mod switch_channel;

/// Runs the example of the document.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/plans.md")]
mod document {}

#[cfg(test)]
pub(in crate::plan) mod tests;

pub use blocks::{Blocks, SyncType, ThreadBlockGroup};
pub use chunk::{Buffer, Chunk};
pub use collective_program::CollectiveProgram;
pub use lines::Lines;
pub use memory_channel::MemoryChannel;
pub use pattern::Pattern;
pub use port_channel::PortChannel;
pub use rank::Rank;
pub use semaphore::Semaphore;
pub use switch_channel::{SwitchAt, SwitchChannel};

pub use super::ir::{Buffer as BufferType, Form, Protocol, Reduction};
pub use super::pass::Policy as ReplicationPolicy;

use super::{check, collective, ir, pass, position};
