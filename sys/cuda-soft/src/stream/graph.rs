//! Graphs: work with edges, to be launched again and again.

use std::sync::Arc;

use parking_lot::Mutex;

use super::Stream;
use super::op::Op;
use super::work::Work;
use crate::machine::{Machine, Result};

/// One piece of work in a graph.
#[derive(Clone, Debug)]
pub(crate) struct NodeWork {
    /// The device whose context it belongs to.
    pub(crate) device: usize,
    pub(crate) work: Work,
    /// Indices of earlier nodes that must have ended.
    pub(crate) after: Vec<usize>,
}

/// A graph: what was captured.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) work: Vec<NodeWork>,
    /// The handles of the nodes.
    pub(crate) nodes: Vec<u64>,
}

/// What a node's handle stands for.
#[derive(Debug)]
pub(crate) struct Node;

/// A graph made ready to launch; it holds on to everything its work needs.
#[derive(Debug)]
pub(crate) struct GraphExec {
    pub(crate) work: Vec<NodeWork>,
    /// The end of the last launch: launches of the same executable never overlap.
    last: Mutex<Option<Arc<Op>>>,
}

impl Graph {
    /// Makes a graph with live node handles.
    pub(crate) fn new(machine: &Machine, work: Vec<NodeWork>) -> Self {
        let nodes = work.iter().map(|_| machine.nodes.add(Arc::new(Node))).collect();
        Self { work, nodes }
    }

    /// Ends the life of its node handles.
    pub(crate) fn retire(&self, machine: &Machine) {
        for node in &self.nodes {
            let _ = machine.nodes.remove_number(*node);
        }
    }
}

impl GraphExec {
    pub(crate) fn new(work: Vec<NodeWork>) -> Self {
        Self { work, last: Mutex::default() }
    }

    /// Launches all work into the stream, or adds it to the stream's capture.
    ///
    /// # Errors
    /// Those of stream capture.
    pub(crate) fn launch(&self, machine: &Machine, stream: &Stream) -> Result {
        if let Some(capture) = stream.capture() {
            return capture.add_graph(stream, &self.work);
        }
        let mut last = self.last.lock();
        let end = stream.enqueue(machine, |deps| {
            let begin = Op::submit(stream.device, deps.iter().chain(last.as_ref()), Work::Marker);
            let mut ops: Vec<Arc<Op>> = Vec::with_capacity(self.work.len());
            for node in &self.work {
                let after = node.after.iter().map(|i| &ops[*i]).chain([&begin]);
                let op = Op::submit(node.device, after, node.work.clone());
                ops.push(op);
            }
            Op::submit(stream.device, ops.iter().chain([&begin]), Work::Marker)
        })?;
        *last = Some(end);
        Ok(())
    }
}
