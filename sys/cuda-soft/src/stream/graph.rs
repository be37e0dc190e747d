//! Graphs: work with edges, to be launched again and again.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::Stream;
use super::op::Op;
use super::user_object::UserObject;
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

/// A graph: what was captured, or is being captured.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    content: OnceLock<Content>,
    /// One entry for each reference.
    objects: Mutex<Vec<Arc<UserObject>>>,
}

/// The work of a graph whose capture is over.
#[derive(Debug)]
pub(crate) struct Content {
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
    pub(crate) objects: Vec<Arc<UserObject>>,
    /// The end of the last launch: launches of the same executable never overlap.
    last: Mutex<Option<Arc<Op>>>,
}

impl Graph {
    /// Puts what was captured into it, with live node handles.
    pub(crate) fn fill(&self, machine: &Machine, work: Vec<NodeWork>) {
        let nodes = work.iter().map(|_| machine.nodes.add(Arc::new(Node))).collect();
        let _ = self.content.set(Content { work, nodes });
    }

    /// Its work, unless its capture is still in progress.
    pub(crate) fn content(&self) -> Option<&Content> {
        self.content.get()
    }

    /// Adds one reference.
    pub(crate) fn hold(&self, object: Arc<UserObject>) {
        self.objects.lock().push(object);
    }

    /// Everything it holds.
    pub(crate) fn objects(&self) -> Vec<Arc<UserObject>> {
        self.objects.lock().clone()
    }

    /// Ends the life of its node handles.
    pub(crate) fn retire(&self, machine: &Machine) {
        for node in self.content.get().into_iter().flat_map(|content| &content.nodes) {
            let _ = machine.nodes.remove_number(*node);
        }
    }
}

impl GraphExec {
    pub(crate) fn new(work: Vec<NodeWork>, objects: Vec<Arc<UserObject>>) -> Self {
        Self { work, objects, last: Mutex::default() }
    }

    /// Launches all work into the stream, or adds it to the stream's capture.
    ///
    /// # Errors
    /// Those of stream capture.
    pub(crate) fn launch(&self, machine: &Machine, stream: &Stream) -> Result {
        if let Some(capture) = stream.capture() {
            return capture.add_graph(stream, self);
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
            Op::submit(stream.device, ops.iter().chain([&begin]), Work::Release(self.objects.clone()))
        })?;
        *last = Some(end);
        Ok(())
    }
}
