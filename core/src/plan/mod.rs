//! Plans: what every thread block of every rank does in one collective.
//!
//! A [`Plan`] is a value: it names no device and holds no memory. [`program`] builds it in Rust, [`mod@file`] reads and writes it
//! as MSCCL++'s execution-plan JSON, [`check`] finds its mistakes without running it, [`simulate`] runs it on vectors, [`cost`]
//! predicts how long it takes, an [`Executor`] on devices, [`programs`] has the classical ones, and [`oracle`] says what a
//! collective should give. `docs/plans.md` explains the ideas and the words.
#![deny(unsafe_code)]

pub mod check;
mod collective;
pub mod cost;
mod cursor;
pub mod file;
mod geometry;
mod ir;
mod json;
mod lower;
pub mod oracle;
pub mod pass;
mod position;
pub mod program;
pub mod programs;
mod ptx;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod random;
mod reduction;
mod run;
#[cfg(test)]
mod samples;
pub mod simulate;

pub use collective::{Collective, Kind};
pub use ir::{
    Barrier, Block, Buffer, Channel, ChannelKind, Form, Loop, Move, Op, Operand, Operation, Place, Plan,
    PortPut, Protocol, RankPlan, Reduction, Settings, Share, Switch,
};
pub use position::Position;
pub use ptx::ptx;
#[cfg(feature = "fuzzing")]
pub(crate) use run::fuzzing;
pub(crate) use run::{Division, Numbers, Rows, Staging, Window, all_done};
pub use run::{Executor, ExecutorConfig, PlanBuffers};
#[doc(hidden)]
pub use run::{Steps, prepare_alone};

pub use aqueduct_ptx::plan::Element;
