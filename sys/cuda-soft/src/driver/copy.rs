//! Copies and fills.
//!
//! A copy without a stream goes into the legacy stream. It blocks until complete if one side is host memory or has
//! `SYNC_MEMOPS` set; so does `cuMemcpyPeer`; fills and other copies return at once. An asynchronous copy from pageable memory buffers a small
//! source and blocks for a large one; a copy to pageable memory blocks.

use std::ffi::{c_uchar, c_uint, c_ushort, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cuda_driver_sys::{CUcontext, CUdeviceptr, CUstream};

use super::{INVALID_VALUE, context, entries, stream};
use crate::abi::Result;
use crate::machine::{Device, Machine, machine};
use crate::stream::memory::{MemoryOp, Place};
use crate::stream::streams::Stream;
use crate::stream::work::Work;

entries! {
    fn cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, len: usize) {
        synchronous(unified(dst)?, unified(src)?, len, false)
    }

    fn cuMemcpyAsync(dst: CUdeviceptr, src: CUdeviceptr, len: usize, on: CUstream) {
        asynchronous(unified(dst)?, unified(src)?, len, on)
    }

    fn cuMemcpyHtoD_v2(dst: CUdeviceptr, src: *const c_void, len: usize) {
        synchronous(Place::Device(dst), Place::Host(src as u64), len, false)
    }

    fn cuMemcpyDtoH_v2(dst: *mut c_void, src: CUdeviceptr, len: usize) {
        synchronous(Place::Host(dst as u64), Place::Device(src), len, false)
    }

    fn cuMemcpyDtoD_v2(dst: CUdeviceptr, src: CUdeviceptr, len: usize) {
        synchronous(Place::Device(dst), Place::Device(src), len, false)
    }

    fn cuMemcpyHtoDAsync_v2(dst: CUdeviceptr, src: *const c_void, len: usize, on: CUstream) {
        asynchronous(Place::Device(dst), Place::Host(src as u64), len, on)
    }

    fn cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: CUdeviceptr, len: usize, on: CUstream) {
        asynchronous(Place::Host(dst as u64), Place::Device(src), len, on)
    }

    fn cuMemcpyDtoDAsync_v2(dst: CUdeviceptr, src: CUdeviceptr, len: usize, on: CUstream) {
        asynchronous(Place::Device(dst), Place::Device(src), len, on)
    }

    fn cuMemcpyPeer(dst: CUdeviceptr, dst_context: CUcontext, src: CUdeviceptr, src_context: CUcontext, len: usize) {
        let machine = machine()?;
        let current = context::current(machine)?;
        // The copy is ordered behind all earlier work of these contexts, and before all later work.
        for device in [current, context::find(machine, dst_context)?, context::find(machine, src_context)?] {
            context::synchronize(device)?;
        }
        synchronous(Place::Device(dst), Place::Device(src), len, true)
    }

    fn cuMemcpyPeerAsync(
        dst: CUdeviceptr,
        dst_context: CUcontext,
        src: CUdeviceptr,
        src_context: CUcontext,
        len: usize,
        on: CUstream,
    ) {
        let machine = machine()?;
        context::find(machine, dst_context)?;
        context::find(machine, src_context)?;
        asynchronous(Place::Device(dst), Place::Device(src), len, on)
    }

    fn cuMemsetD8_v2(dst: CUdeviceptr, value: c_uchar, n: usize) {
        fill(dst, value.into(), 1, n, None)
    }

    fn cuMemsetD16_v2(dst: CUdeviceptr, value: c_ushort, n: usize) {
        fill(dst, value.into(), 2, n, None)
    }

    fn cuMemsetD32_v2(dst: CUdeviceptr, value: c_uint, n: usize) {
        fill(dst, value, 4, n, None)
    }

    fn cuMemsetD8Async(dst: CUdeviceptr, value: c_uchar, n: usize, on: CUstream) {
        fill(dst, value.into(), 1, n, Some(on))
    }

    fn cuMemsetD16Async(dst: CUdeviceptr, value: c_ushort, n: usize, on: CUstream) {
        fill(dst, value.into(), 2, n, Some(on))
    }

    fn cuMemsetD32Async(dst: CUdeviceptr, value: c_uint, n: usize, on: CUstream) {
        fill(dst, value, 4, n, Some(on))
    }
}

/// Maximum size of a pageable source that is buffered.
const STAGED: usize = 64 << 10;

/// Whether an address of the unified address space is device or host memory.
fn unified(addr: u64) -> Result<Place> {
    let known = machine()?.allocations.find(addr).is_some_and(|a| !a.is_host());
    Ok(if known { Place::Device(addr) } else { Place::Host(addr) })
}

/// Checks that a place is accessible in full. Returns whether it is pageable, and whether copies must block for it.
fn check(machine: &Machine, device: &Device, place: &Place, len: u64, write: bool) -> Result<(bool, bool)> {
    match *place {
        Place::Device(addr) => {
            let end = addr.checked_add(len).ok_or(INVALID_VALUE)?;
            let mut at = addr;
            let view = machine.space.enter(device.ordinal);
            while at < end {
                at = view.find_for_copy(at, write).ok_or(INVALID_VALUE)?.end;
            }
            drop(view);
            let found = machine.allocations.find(addr);
            Ok((false, found.is_some_and(|a| a.sync_memops.load(Ordering::Relaxed))))
        }
        Place::Host(addr) => {
            if addr == 0 || addr.checked_add(len).is_none() {
                return Err(INVALID_VALUE);
            }
            Ok((machine.allocations.find(addr).is_none(), false))
        }
        Place::Staged(_) => Ok((false, false)),
    }
}

/// A copy in the legacy stream. With `wait`, or if the driver has to wait for it, it is over when this returns.
fn synchronous(dst: Place, src: Place, len: usize, wait: bool) -> Result {
    let machine = machine()?;
    let device = context::current(machine)?;
    let legacy = device.streams.legacy();
    machine.pending(legacy)?;
    machine.captures.permit_unsafe_call()?;
    if len == 0 {
        return Ok(());
    }
    let on_device = |p: &Place| matches!(p, Place::Device(_));
    let (_, wait_dst) = check(machine, device, &dst, len as u64, true)?;
    let (_, wait_src) = check(machine, device, &src, len as u64, false)?;
    let wait = wait || wait_dst || wait_src || !on_device(&dst) || !on_device(&src);
    submit(machine, device, legacy, MemoryOp::Copy { dst, src, len: len as u64 }, wait)
}

fn asynchronous(dst: Place, src: Place, len: usize, on: CUstream) -> Result {
    let machine = machine()?;
    let device = context::current(machine)?;
    let stream = stream::find(machine, device, on)?;
    if len == 0 {
        return Ok(());
    }
    let (pageable_dst, _) = check(machine, device, &dst, len as u64, true)?;
    let (pageable_src, _) = check(machine, device, &src, len as u64, false)?;
    let capturing = stream.capture().is_some();
    let stage = pageable_src && len <= STAGED && !capturing;
    let wait = !capturing && (pageable_dst || (pageable_src && !stage));
    let src = match src {
        Place::Host(addr) if stage => {
            // SAFETY: by the contract of the call, `addr` (checked not to be null) has `len` readable bytes; they are
            // read before the call returns.
            Place::Staged(Arc::from(unsafe { std::slice::from_raw_parts(addr as *const u8, len) }))
        }
        other => other,
    };
    submit(machine, device, &stream, MemoryOp::Copy { dst, src, len: len as u64 }, wait)
}

fn fill(dst: u64, value: u32, width: u8, n: usize, on: Option<CUstream>) -> Result {
    let machine = machine()?;
    let device = context::current(machine)?;
    let stream = match on {
        Some(handle) => stream::find(machine, device, handle)?,
        None => {
            machine.pending(device.streams.legacy())?;
            machine.captures.permit_unsafe_call()?;
            Arc::clone(device.streams.legacy())
        }
    };
    let len = (n as u64).checked_mul(width.into()).ok_or(INVALID_VALUE)?;
    if !dst.is_multiple_of(width.into()) {
        return Err(INVALID_VALUE);
    }
    if n == 0 {
        return Ok(());
    }
    let (_, wait) = check(machine, device, &Place::Device(dst), len, true)?;
    let host = machine.allocations.find(dst).is_some_and(|a| a.is_host());
    let op = MemoryOp::Fill { dst, value, width, count: n as u64 };
    submit(machine, device, &stream, op, on.is_none() && (wait || host))
}

fn submit(machine: &Machine, device: &Device, stream: &Stream, op: MemoryOp, wait: bool) -> Result {
    let submitted = machine.submit(stream, Work::Memory(vec![op]))?;
    if let Some(op) = submitted.filter(|_| wait) {
        op.wait();
        device.synchronized()?;
    }
    Ok(())
}
