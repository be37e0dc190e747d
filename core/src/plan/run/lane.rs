//! Blocks that copy engines run, as they are kept between calls.

use super::ir::RankPlan;
use super::kernel::{Kernel, Unloaded};
use super::lower::{Copy, Part};
use crate::error::Result;
use crate::gpu::{Context, Event, Function, Stream};
use crate::sync::Mutex;

/// One block: copies, and the kernels between them.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) steps: Vec<Step>,
    /// A stream of its own, and an event for its beginning and end. None for the one that runs on the call's stream.
    pub(super) fork: Option<(Stream, Event)>,
}

#[derive(Debug)]
pub(super) enum Step<K = Kernel> {
    Control(K),
    Copy(Copy),
}

/// All blocks of a rank that copy engines run.
#[derive(Debug)]
pub(super) struct Lanes {
    pub(super) lanes: Vec<Lane>,
    /// Locked while a call is enqueued: another one may not record the same events meanwhile.
    pub(super) enqueuing: Mutex<()>,
}

impl Lane {
    /// A block of these steps, on a stream of its own if it `forks`.
    pub(super) fn new(context: &Context, steps: Vec<Step>, forks: bool) -> Result<Self> {
        let fork = if forks { Some((Stream::new(context)?, Event::new(context)?)) } else { None };
        Ok(Self { steps, fork })
    }

    pub(super) fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.steps.iter().filter_map(Step::kernel)
    }
}

impl Step<Unloaded> {
    pub(super) fn new(part: Part, plan: &RankPlan) -> Self {
        match part {
            Part::Control(lowered) => Self::Control(Unloaded::new(lowered, plan)),
            Part::Copy(copy) => Self::Copy(copy),
        }
    }

    /// With the next functions of `functions`, if it is a kernel.
    pub(super) fn loaded(self, functions: &mut impl Iterator<Item = Function>) -> Result<Step> {
        Ok(match self {
            Self::Control(kernel) => Step::Control(kernel.loaded(functions)?),
            Self::Copy(copy) => Step::Copy(copy),
        })
    }
}

impl<K> Step<K> {
    pub(super) fn kernel(&self) -> Option<&K> {
        match self {
            Self::Control(kernel) => Some(kernel),
            Self::Copy(_) => None,
        }
    }
}

impl Lanes {
    /// The blocks; `None` if there is none.
    pub(super) fn new(lanes: Vec<Lane>) -> Option<Self> {
        (!lanes.is_empty()).then(|| Self { lanes, enqueuing: Mutex::default() })
    }
}
