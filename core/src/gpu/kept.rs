//! Values that a stream keeps for its unfinished work.

use std::sync::Arc;

use cuda_driver_sys::CUstream;

use super::context::Context;
use super::event::Event;
use super::keep::KeepAlive;
use crate::error::Result;

/// Retained items in two halves: `closed` before its event, `open` since.
#[derive(Default)]
pub(super) struct Kept {
    open: Vec<KeepAlive>,
    closed: Option<(Event, Vec<KeepAlive>)>,
}

/// Number of retained items that makes it worth asking whether earlier ones are free.
const BATCH: usize = 32;

impl Kept {
    /// Adds `what`, and moves items that need not be kept any longer to `done`. Pass `closing` if events may be
    /// recorded on `stream`, which must be alive and of `context`.
    pub(super) fn add(
        &mut self,
        context: &Context,
        stream: CUstream,
        what: KeepAlive,
        closing: bool,
        done: &mut Vec<KeepAlive>,
    ) -> Result<()> {
        // An event that releases `open` will be recorded later than this: being on it once is enough.
        let recent = self.open.len().saturating_sub(BATCH);
        if self.open[recent..].iter().any(|kept| Arc::ptr_eq(kept, &what)) {
            return Ok(());
        }
        self.open.push(what);
        if self.open.len() < BATCH || !closing {
            return Ok(());
        }
        let event = match self.closed.take() {
            None => Event::new(context)?,
            Some((event, batch)) => match event.is_done() {
                Ok(true) => {
                    done.extend(batch);
                    event
                }
                unknown => {
                    self.closed = Some((event, batch));
                    return unknown.map(drop);
                }
            },
        };
        // SAFETY: the caller says that the stream is alive.
        unsafe { event.record_raw(stream) }?;
        self.closed = Some((event, std::mem::take(&mut self.open)));
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.closed.is_none()
    }

    pub(super) fn into_all(self) -> Vec<KeepAlive> {
        let mut all = self.open;
        all.extend(self.closed.into_iter().flat_map(|(_, batch)| batch));
        all
    }
}
