//! The calls for graphs.

use std::ffi::{c_uint, c_ulonglong};
use std::sync::Arc;

use cuda_driver_sys::{CUgraph, CUgraphExec, CUgraphInstantiate_flags as Flags, CUgraphNode, CUstream};

use super::{INVALID_VALUE, context, entries, stream};
use crate::abi::input;
use crate::handles;
use crate::machine::machine;
use crate::stream::graph_exec::GraphExec;

entries! {
    fn cuGraphCreate(graph: *mut CUgraph => out, flags: c_uint) {
        let machine = machine()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        graph.set(handles::pointer(machine.graphs.create()));
        Ok(())
    }

    fn cuGraphDestroy(graph: CUgraph) {
        machine()?.graphs.destroy(graph)
    }

    fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) {
        let machine = machine()?;
        let graph = machine.graphs.get(graph)?;
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
        let graph = machine.graphs.get(graph)?;
        let content = graph.content().ok_or(INVALID_VALUE)?;
        let known = Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH.0
            | Flags::CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD.0
            | Flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY.0;
        if flags & !u64::from(known) != 0 {
            return Err(INVALID_VALUE);
        }
        exec.set(handles::pointer(machine.execs.add(Arc::new(GraphExec::new(content.work.clone(), graph.objects())))));
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
        let exec = machine.execs.get(exec).map_err(|_| INVALID_VALUE)?;
        exec.launch(&machine.devices[stream.device].streams, &stream)
    }

    fn cuGraphExecDestroy(exec: CUgraphExec) {
        machine()?.execs.remove(exec).map(|_| ()).map_err(|_| INVALID_VALUE)
    }
}
