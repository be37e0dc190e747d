//! Blocks that copy engines run, as they are kept between calls.

use super::kernel::Kernel;
use super::lower::{Copy, Lowered, Part};
use crate::error::Result;
use crate::gpu::{Context, Event, Stream};
use crate::sync::Mutex;

/// One block: copies, and the kernels between them.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) steps: Vec<Step>,
    /// A stream of its own, and an event for its beginning and end. None for the one that runs on the call's stream.
    pub(super) fork: Option<(Stream, Event)>,
}

#[derive(Debug)]
pub(super) enum Step {
    Control(Kernel),
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
    /// A block of these parts, on a stream of its own if it `forks`.
    pub(super) fn new(
        context: &Context,
        parts: Vec<Part>,
        forks: bool,
        compile: impl Fn(Lowered) -> Result<Kernel>,
    ) -> Result<Self> {
        let step = |part| match part {
            Part::Control(lowered) => compile(lowered).map(Step::Control),
            Part::Copy(copy) => Ok(Step::Copy(copy)),
        };
        let steps = parts.into_iter().map(step).collect::<Result<_>>()?;
        let fork = if forks { Some((Stream::new(context)?, Event::new(context)?)) } else { None };
        Ok(Self { steps, fork })
    }

    pub(super) fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.steps.iter().filter_map(|step| match step {
            Step::Control(kernel) => Some(kernel),
            Step::Copy(_) => None,
        })
    }
}

impl Lanes {
    /// The blocks; `None` if there is none.
    pub(super) fn new(lanes: Vec<Lane>) -> Option<Self> {
        (!lanes.is_empty()).then(|| Self { lanes, enqueuing: Mutex::default() })
    }
}
