//! The calls for graphs.

use std::ffi::{c_uint, c_ulonglong};
use std::sync::Arc;

use cuda_driver_sys::{CUgraph, CUgraphExec, CUgraphInstantiate_flags as Flags, CUgraphNode, CUstream};

use super::{INVALID_VALUE, context, entries, input, stream};
use crate::handles;
use crate::machine::{Machine, Result, machine};
use crate::stream::graph::{Graph, GraphExec};

entries! {
    fn cuGraphCreate(graph: *mut CUgraph => out, flags: c_uint) {
        let machine = machine()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let empty = Graph::default();
        empty.fill(machine, Vec::new());
        graph.set(handles::pointer(machine.graphs.add(Arc::new(empty))));
        Ok(())
    }

    fn cuGraphDestroy(graph: CUgraph) {
        let machine = machine()?;
        find(machine, graph)?.retire(machine);
        machine.graphs.remove(graph).map_err(|_| INVALID_VALUE)?;
        Ok(())
    }

    fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) {
        let machine = machine()?;
        let graph = machine.graphs.get(graph).map_err(|_| INVALID_VALUE)?;
        let handles = graph.content().map_or(&[][..], |content| &content.nodes);
        // SAFETY: by contract `count` is null or valid for one number.
        let room = unsafe { input(count) }?;
        let total = handles.len();
        // SAFETY: `count` is not null. By contract `nodes` is null or has room for `room` handles.
        unsafe {
            if nodes.is_null() {
                count.write(total);
                return Ok(());
            }
            for i in 0..room {
                nodes.add(i).write(handles.get(i).map_or(std::ptr::null_mut(), |n| handles::pointer(*n)));
            }
            count.write(total.min(room));
        }
        Ok(())
    }

    fn cuGraphInstantiateWithFlags(exec: *mut CUgraphExec => out, graph: CUgraph, flags: c_ulonglong) {
        let machine = machine()?;
        let graph = find(machine, graph)?;
        let known = Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH.0
            | Flags::CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD.0
            | Flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY.0;
        if flags & !u64::from(known) != 0 {
            return Err(INVALID_VALUE);
        }
        let work = graph.content().map(|content| content.work.clone()).unwrap_or_default();
        let made = GraphExec::new(work, graph.objects());
        exec.set(handles::pointer(machine.execs.add(Arc::new(made))));
        Ok(())
    }

    fn cuGraphUpload(exec: CUgraphExec, on: CUstream) {
        let machine = machine()?;
        stream::find(machine, context::current(machine)?, on)?;
        machine.execs.get(exec).map(|_| ()).map_err(|_| INVALID_VALUE)
    }

    fn cuGraphLaunch(exec: CUgraphExec, on: CUstream) {
        let machine = machine()?;
        let stream = stream::find(machine, context::current(machine)?, on)?;
        machine.execs.get(exec).map_err(|_| INVALID_VALUE)?.launch(machine, &stream)
    }

    fn cuGraphExecDestroy(exec: CUgraphExec) {
        machine()?.execs.remove(exec).map(|_| ()).map_err(|_| INVALID_VALUE)
    }
}

/// A graph whose capture is over.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE`, also for one that is still being captured.
fn find(machine: &Machine, graph: CUgraph) -> Result<Arc<Graph>> {
    machine.graphs.get(graph).ok().filter(|graph| graph.content().is_some()).ok_or(INVALID_VALUE)
}
