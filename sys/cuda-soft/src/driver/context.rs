//! Primary contexts, the current one of each thread, and peer access.
//!
//! Each device has one context, which exists while it is retained. Its last release destroys its streams, memory and
//! modules and clears its error. Each thread has its own stack of current contexts.

use std::cell::RefCell;
use std::ffi::{c_int, c_uint};

use cuda_driver_sys::{CUcontext, CUctx_flags, CUdevice, CUresult, CUstreamCaptureMode};

use super::{INVALID_VALUE, device, entries};
use crate::abi::Result;
use crate::handles;
use crate::machine::{Device, Machine, machine};
use crate::mem::allocation::Origin;
use crate::stream::capture;

entries! {
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext => out, dev: CUdevice) {
        let device = machine()?.device(dev)?;
        let mut retained = device.retained.lock();
        if *retained == 0 {
            device.set_active(true);
        }
        *retained += 1;
        context.set(handle(device.ordinal));
        Ok(())
    }

    fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) {
        let machine = machine()?;
        let device = machine.device(dev)?;
        let mut retained = device.retained.lock();
        match *retained {
            0 => return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT),
            1 => destroy(machine, device),
            _ => {}
        }
        *retained -= 1;
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(dev: CUdevice, flags: *mut c_uint => out, active: *mut c_int => out) {
        let device = machine()?.device(dev)?;
        flags.set(CUctx_flags::CU_CTX_MAP_HOST.0);
        active.set(device.is_active().into());
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: CUcontext) {
        let device = find(machine()?, context)?;
        STACK.with_borrow_mut(|stack| stack.push(device.ordinal));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: *mut CUcontext) {
        machine()?;
        let top = STACK.with_borrow_mut(Vec::pop).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        if !context.is_null() {
            // SAFETY: not null, hence valid for one handle.
            unsafe { context.write(handle(top)) };
        }
        Ok(())
    }

    fn cuCtxGetCurrent(context: *mut CUcontext => out) {
        machine()?;
        context.set(top().map_or(std::ptr::null_mut(), handle));
        Ok(())
    }

    fn cuCtxSetCurrent(context: CUcontext) {
        let machine = machine()?;
        let device = if context.is_null() { None } else { Some(find(machine, context)?) };
        STACK.with_borrow_mut(|stack| {
            stack.pop();
            stack.extend(device.map(|d| d.ordinal));
        });
        Ok(())
    }

    fn cuCtxGetDevice(device: *mut CUdevice => out) {
        device.set(current_even_failed(machine()?)?.ordinal as CUdevice);
        Ok(())
    }

    fn cuCtxSynchronize() {
        synchronize(current(machine()?)?)
    }

    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        current(machine()?)?;
        for (to, value) in [(least, PRIORITIES.0), (greatest, PRIORITIES.1)] {
            if !to.is_null() {
                // SAFETY: not null, hence valid for one number.
                unsafe { to.write(value) };
            }
        }
        Ok(())
    }

    fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint) {
        let machine = machine()?;
        let device = current(machine)?;
        let peer = find(machine, peer)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if peer.ordinal == device.ordinal {
            return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
        }
        device::require_peer(machine, device.ordinal, peer.ordinal)?;
        let mut peers = device.peers.lock();
        if *peers & 1 << peer.ordinal != 0 {
            return Err(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
        }
        *peers |= 1 << peer.ordinal;
        machine.space.set_peer(device.ordinal, peer.ordinal, true);
        Ok(())
    }

    fn cuCtxDisablePeerAccess(peer: CUcontext) {
        let machine = machine()?;
        let device = current(machine)?;
        let peer = find(machine, peer)?;
        wait_idle(device);
        let mut peers = device.peers.lock();
        if *peers & 1 << peer.ordinal == 0 {
            return Err(CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
        }
        *peers &= !(1 << peer.ordinal);
        machine.space.set_peer(device.ordinal, peer.ordinal, false);
        Ok(())
    }

    fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode) {
        machine()?;
        // SAFETY: the API says that `mode` is null or valid for one mode, to read and to write.
        let wanted = unsafe { crate::abi::input(mode) }?;
        if wanted.0 > CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED.0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as above.
        unsafe { mode.write(capture::exchange_thread_mode(wanted)) };
        Ok(())
    }
}

/// The least and the greatest stream priority.
pub(super) const PRIORITIES: (i32, i32) = (0, -5);

/// The device of this thread's current context.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT` if no context is current, `CUDA_ERROR_CONTEXT_IS_DESTROYED` if it was destroyed, or its
/// sticky error.
pub(super) fn current(machine: &Machine) -> Result<&Device> {
    let device = current_even_failed(machine)?;
    device.check()?;
    Ok(device)
}

/// Like [`current`], for calls that work even if the context has a sticky error.
pub(super) fn current_even_failed(machine: &Machine) -> Result<&Device> {
    let device = &machine.devices[top().ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?];
    if device.is_active() { Ok(device) } else { Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED) }
}

/// The machine and the current device, for calls that are forbidden during captures.
pub(super) fn unsafe_call() -> Result<(&'static Machine, &'static Device)> {
    let machine = machine()?;
    let device = current(machine)?;
    machine.captures.permit_unsafe_call()?;
    Ok((machine, device))
}

/// The device of a context handle.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT`.
pub(super) fn find(machine: &Machine, context: CUcontext) -> Result<&Device> {
    let same = |d: &&Device| handle(d.ordinal) == context && d.is_active();
    machine.devices.iter().find(same).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
}

/// The handle of a device's primary context.
pub(super) fn handle(ordinal: usize) -> CUcontext {
    handles::pointer(0x00c0_c0de_0000_0000 | (ordinal as u64 + 1) << 4)
}

/// Waits for all work of the context.
///
/// # Errors
/// The sticky error; `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` while a stream captures.
pub(super) fn synchronize(device: &Device) -> Result {
    for op in device.streams.pending()? {
        op.wait();
    }
    device.synchronized()
}

/// Waits for work in flight, as `cuMemFree` and similar calls do implicitly. Captures continue.
pub(super) fn wait_idle(device: &Device) {
    for op in device.streams.in_flight() {
        op.wait();
    }
    device.flush();
}

thread_local! {
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

fn top() -> Option<usize> {
    STACK.with_borrow(|stack| stack.last().copied())
}

/// Waits for the work of the context, then destroys everything in it.
fn destroy(machine: &Machine, device: &Device) {
    wait_idle(device);
    device.streams.clear(&machine.captures);
    let mine = device.ordinal;
    machine.streams.remove_where(|s| s.device == mine);
    machine.events.remove_where(|e| e.device == mine);
    let modules = machine.modules.remove_where(|m| m.device == mine);
    machine.kernels.remove_where(|k| k.loaded.device == mine);
    drop(modules);
    device.remove_heap();
    let owned =
        |origin: &Origin| matches!(origin, Origin::Device | Origin::Module | Origin::Host | Origin::Ipc);
    for base in machine.allocations.bases_where(|a| a.device == mine && owned(&a.origin)) {
        machine.allocations.remove(base);
    }
    machine.imports.lock().retain(|import| import.device != mine);
    let mut peers = device.peers.lock();
    for peer in 0..machine.devices.len() {
        if *peers & 1 << peer != 0 {
            machine.space.set_peer(mine, peer, false);
        }
    }
    *peers = 0;
    device.set_active(false);
}
