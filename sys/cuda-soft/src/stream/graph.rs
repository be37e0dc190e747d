//! Graphs: captured work that can be launched repeatedly.

use std::sync::Arc;

use parking_lot::Mutex;

use super::capture::NodeWork;
use super::op::Op;
use super::streams::{Stream, Streams};
use super::work::Work;
use crate::abi::Result;
use crate::handles::Handles;

/// A graph: captured work.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) work: Vec<NodeWork>,
    /// The handles of the nodes.
    pub(crate) nodes: Vec<u64>,
}

/// The object of a node's handle. The API has no call that reads one, so it is empty.
#[derive(Debug)]
pub(crate) struct Node;

/// An executable graph. It keeps alive what its work needs.
#[derive(Debug)]
pub(crate) struct GraphExec {
    work: Vec<NodeWork>,
    /// The last operation of the last launch: launches of one executable never overlap.
    last: Mutex<Option<Arc<Op>>>,
}

impl Graph {
    /// Creates a graph, with a handle for each node.
    pub(crate) fn new(handles: &Handles<Node>, work: Vec<NodeWork>) -> Self {
        let nodes = work.iter().map(|_| handles.add(Arc::new(Node))).collect();
        Self { work, nodes }
    }

    /// Removes the handles of the nodes.
    pub(crate) fn retire(&self, handles: &Handles<Node>) {
        for node in &self.nodes {
            let _ = handles.remove_number(*node);
        }
    }
}

impl GraphExec {
    pub(crate) fn new(work: Vec<NodeWork>) -> Self {
        Self { work, last: Mutex::default() }
    }

    /// Launches the work into a stream of `streams`, or adds it to the stream's capture.
    ///
    /// # Errors
    /// Those of [`Capture::add_graph`](super::capture::Capture::add_graph) and [`Streams::enqueue`].
    pub(crate) fn launch(&self, streams: &Streams, stream: &Stream) -> Result {
        if let Some(capture) = stream.capture() {
            return capture.add_graph(&stream.participant, &self.work);
        }
        let mut last = self.last.lock();
        let end = streams.enqueue(stream, |deps| {
            let runtime = streams.runtime();
            let begin = Work::Marker.submit(runtime, stream.device, deps.iter().chain(last.as_ref()));
            let mut ops: Vec<Arc<Op>> = Vec::with_capacity(self.work.len());
            for node in &self.work {
                let after = node.after.iter().map(|i| &ops[*i]).chain([&begin]);
                let op = node.work.clone().submit(runtime, node.device, after);
                ops.push(op);
            }
            Work::Marker.submit(runtime, stream.device, ops.iter().chain([&begin]))
        })?;
        *last = Some(end);
        Ok(())
    }
}
