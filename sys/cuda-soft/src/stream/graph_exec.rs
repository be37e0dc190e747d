//! Executable graphs, which can be launched repeatedly.

use std::sync::Arc;

use parking_lot::Mutex;

use super::event::EventState;
use super::graph::NodeWork;
use super::op::Op;
use super::streams::{Stream, Streams};
use super::user_object::UserObject;
use super::work::Work;
use crate::abi::Result;

/// An executable graph. It keeps alive what its work needs.
#[derive(Debug)]
pub(crate) struct GraphExec {
    work: Vec<NodeWork>,
    objects: Vec<Arc<UserObject>>,
    /// The last operation of the last launch: launches of one executable never overlap.
    last: Mutex<Option<Arc<Op>>>,
}

impl GraphExec {
    pub(crate) fn new(work: Vec<NodeWork>, objects: Vec<Arc<UserObject>>) -> Self {
        Self { work, objects, last: Mutex::default() }
    }

    /// Launches the work into a stream of `streams`, or adds it to the stream's capture. The user objects stay alive
    /// until the launch has ended, even if the executable is destroyed before.
    ///
    /// # Errors
    /// The errors of [`Capture::add_graph`](super::capture::Capture::add_graph) and [`Streams::enqueue`].
    pub(crate) fn launch(&self, streams: &Streams, stream: &Stream) -> Result {
        if let Some(capture) = stream.capture() {
            return capture.add_graph(&stream.participant, &self.work, &self.objects);
        }
        let mut last = self.last.lock();
        let end = streams.enqueue(stream, |deps| {
            let runtime = streams.runtime();
            let begin = Work::Marker.submit(runtime, stream.device, deps.iter().chain(last.as_ref()));
            let mut ops: Vec<Arc<Op>> = Vec::with_capacity(self.work.len());
            for node in &self.work {
                let after = node.after.iter().map(|i| &ops[*i]).chain([&begin]);
                let op = node.work.clone().submit(runtime, node.device, after);
                // From now on, and not when the graph has come so far, the event stands for this launch.
                if let Work::Record(event) = &node.work {
                    event.set(EventState::Recorded(Arc::clone(&op)));
                }
                ops.push(op);
            }
            let release = Work::Release(self.objects.clone());
            release.submit(runtime, stream.device, ops.iter().chain([&begin]))
        })?;
        *last = Some(end);
        Ok(())
    }
}
