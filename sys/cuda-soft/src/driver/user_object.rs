//! The calls for user objects, which graphs keep alive.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use cuda_driver_sys::{CUgraph, CUhostFn, CUuserObject, CUuserObject_flags, CUuserObjectRetain_flags};

use super::{INVALID_VALUE, entries};
use crate::abi::Result;
use crate::handles;
use crate::machine::{Machine, machine};
use crate::stream::user_object::{Held, UserObject};

entries! {
    fn cuUserObjectCreate(
        object: *mut CUuserObject => out,
        data: *mut c_void,
        destroy: CUhostFn,
        references: c_uint,
        flags: c_uint,
    ) {
        let machine = machine()?;
        let destroy = destroy.ok_or(INVALID_VALUE)?;
        if flags != CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC.0 {
            return Err(INVALID_VALUE);
        }
        let references = checked(references)?;
        let held = Held::new(UserObject::new(destroy, data), references);
        object.set(handles::pointer(machine.user_objects.add(Arc::new(held))));
        Ok(())
    }

    fn cuUserObjectRelease(object: CUuserObject, count: c_uint) {
        release(machine()?, object, checked(count)?)
    }

    fn cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint) {
        let machine = machine()?;
        let graph = machine.graphs.get(graph)?;
        let held = machine.user_objects.get(object).map_err(|_| INVALID_VALUE)?;
        let count = checked(count)?;
        match CUuserObjectRetain_flags(flags) {
            CUuserObjectRetain_flags(0) => {}
            CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE => release(machine, object, count)?,
            _ => return Err(INVALID_VALUE),
        }
        for _ in 0..count {
            graph.retain(Arc::clone(&held.object));
        }
        Ok(())
    }
}

/// Checks a number of references: at least one, at most `INT_MAX`.
fn checked(count: c_uint) -> Result<c_uint> {
    if count > 0 && i32::try_from(count).is_ok() { Ok(count) } else { Err(INVALID_VALUE) }
}

/// Takes references from the caller. The handle ends with the last one.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if the caller has fewer references, or the handle is invalid.
fn release(machine: &Machine, object: CUuserObject, count: u32) -> Result {
    let held = machine.user_objects.get(object).map_err(|_| INVALID_VALUE)?;
    if held.release(count).ok_or(INVALID_VALUE)? {
        machine.user_objects.remove(object).map_err(|_| INVALID_VALUE)?;
    }
    Ok(())
}
