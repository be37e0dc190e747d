//! Graphs: captured work, and the user objects that it keeps alive.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::user_object::UserObject;
use super::work::Work;
use crate::abi::{INVALID_VALUE, Result};
use crate::handles::Handles;

/// One piece of captured work.
#[derive(Clone, Debug)]
pub(crate) struct NodeWork {
    /// The device whose context it belongs to.
    pub(crate) device: usize,
    pub(crate) work: Work,
    /// Indices of the earlier nodes that it depends on.
    pub(crate) after: Vec<usize>,
}

/// A graph. While a capture makes it, it has a handle and may hold user objects, but has no content yet.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    content: OnceLock<Content>,
    /// One entry for each reference to a user object.
    objects: Mutex<Vec<Arc<UserObject>>>,
}

/// The work of a graph whose capture has ended.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) work: Vec<NodeWork>,
    /// The handles of the nodes.
    pub(crate) nodes: Vec<u64>,
}

/// The object of a node's handle. The API has no call that reads one, so it is empty.
#[derive(Debug)]
pub(crate) struct Node;

/// All graphs, and the handles of their nodes.
#[derive(Debug)]
pub(crate) struct Graphs {
    graphs: Handles<Graph>,
    nodes: Handles<Node>,
}

impl Graph {
    /// The work, or `None` while a capture makes the graph.
    pub(crate) fn content(&self) -> Option<&Content> {
        self.content.get()
    }

    /// Adds a reference to a user object.
    pub(crate) fn retain(&self, object: Arc<UserObject>) {
        self.objects.lock().push(object);
    }

    /// The user objects that the graph holds, once for each reference.
    pub(crate) fn objects(&self) -> Vec<Arc<UserObject>> {
        self.objects.lock().clone()
    }
}

impl Graphs {
    pub(crate) fn new(graphs: Handles<Graph>, nodes: Handles<Node>) -> Self {
        Self { graphs, nodes }
    }

    /// Adds an empty graph and returns its handle.
    pub(crate) fn create(&self) -> u64 {
        let (handle, graph) = self.begin();
        self.finish(&graph, Vec::new());
        handle
    }

    /// Adds a graph that a capture will [`finish`](Self::finish) or [`abandon`](Self::abandon). Returns its handle and
    /// the graph.
    pub(super) fn begin(&self) -> (u64, Arc<Graph>) {
        let graph = Arc::new(Graph::default());
        (self.graphs.add(Arc::clone(&graph)), graph)
    }

    /// Gives a graph its work, and each node a handle.
    pub(super) fn finish(&self, graph: &Graph, work: Vec<NodeWork>) {
        graph.content.get_or_init(|| {
            let nodes = work.iter().map(|_| self.nodes.add(Arc::new(Node))).collect();
            Content { work, nodes }
        });
    }

    /// Removes a graph whose capture failed.
    pub(super) fn abandon(&self, handle: u64) {
        let _ = self.graphs.remove_number(handle);
    }

    /// Looks a graph up, whether or not a capture still makes it.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE`.
    pub(crate) fn get<P>(&self, handle: *mut P) -> Result<Arc<Graph>> {
        self.graphs.get(handle).map_err(|_| INVALID_VALUE)
    }

    /// Removes a graph and the handles of its nodes.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE`, also while a capture makes the graph.
    pub(crate) fn destroy<P>(&self, handle: *mut P) -> Result {
        self.get(handle)?.content().ok_or(INVALID_VALUE)?;
        let graph = self.graphs.remove(handle).map_err(|_| INVALID_VALUE)?;
        for node in graph.content().into_iter().flat_map(|content| &content.nodes) {
            let _ = self.nodes.remove_number(*node);
        }
        Ok(())
    }
}
