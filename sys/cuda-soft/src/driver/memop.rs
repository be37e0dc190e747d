//! Stream memory operations: write a value, or wait for one, in stream order.

use std::ffi::c_uint;

use cuda_driver_sys::{
    CUdeviceptr, CUflushGPUDirectRDMAWritesScope, CUflushGPUDirectRDMAWritesTarget, CUresult, CUstream,
    CUstreamBatchMemOpParams, CUstreamBatchMemOpType as Type, CUstreamWaitValue_flags as WaitFlags,
    CUstreamWriteValue_flags as WriteFlags, cuuint32_t, cuuint64_t,
};

use super::{INVALID_VALUE, context, entries, stream};
use crate::abi::Result;
use crate::machine::{Machine, machine};
use crate::stream::memory::{Compare, MemoryOp};
use crate::stream::work::Work;

entries! {
    fn cuStreamWriteValue32_v2(on: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint) {
        submit(on, |machine, device| Ok(vec![write(machine, device, addr, value.into(), 4, flags)?]))
    }

    fn cuStreamWriteValue64_v2(on: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: c_uint) {
        submit(on, |machine, device| Ok(vec![write(machine, device, addr, value, 8, flags)?]))
    }

    fn cuStreamWaitValue32_v2(on: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint) {
        submit(on, |machine, device| Ok(vec![wait(machine, device, addr, value.into(), 4, flags)?]))
    }

    fn cuStreamWaitValue64_v2(on: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: c_uint) {
        submit(on, |machine, device| Ok(vec![wait(machine, device, addr, value, 8, flags)?]))
    }

    fn cuStreamBatchMemOp_v2(on: CUstream, count: c_uint, params: *mut CUstreamBatchMemOpParams, flags: c_uint) {
        if flags != 0 || count == 0 || count > MAX_BATCH || params.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, and an array of `count` by contract.
        let params = unsafe { std::slice::from_raw_parts(params, count as usize) };
        submit(on, |machine, device| {
            let mut ops = Vec::with_capacity(params.len());
            for param in params {
                ops.extend(one_of_batch(machine, device, param)?);
            }
            Ok(ops)
        })
    }

    fn cuFlushGPUDirectRDMAWrites(
        target: CUflushGPUDirectRDMAWritesTarget,
        scope: CUflushGPUDirectRDMAWritesScope,
    ) {
        context::current(machine()?)?;
        let current = CUflushGPUDirectRDMAWritesTarget::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX;
        let scopes = [
            CUflushGPUDirectRDMAWritesScope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER,
            CUflushGPUDirectRDMAWritesScope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES,
        ];
        if target != current || !scopes.contains(&scope) {
            return Err(INVALID_VALUE);
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }
}

/// Maximum number of operations in one batch, as on hardware.
const MAX_BATCH: u32 = 256;

fn submit(on: CUstream, ops: impl FnOnce(&Machine, usize) -> Result<Vec<MemoryOp>>) -> Result {
    let machine = machine()?;
    let stream = stream::find(machine, context::current(machine)?, on)?;
    let ops = ops(machine, stream.device)?;
    machine.submit(&stream, Work::Memory(ops)).map(|_| ())
}

fn write(machine: &Machine, device: usize, addr: u64, value: u64, width: u8, flags: u32) -> Result<MemoryOp> {
    // This version of the calls has no write without a barrier (`CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`), says its documentation.
    if flags != WriteFlags::CU_STREAM_WRITE_VALUE_DEFAULT.0 {
        return Err(INVALID_VALUE);
    }
    accessible(machine, device, addr, width, true)?;
    Ok(MemoryOp::Write { addr, value, width })
}

fn wait(machine: &Machine, device: usize, addr: u64, value: u64, width: u8, flags: u32) -> Result<MemoryOp> {
    let compare = match WaitFlags(flags & !WaitFlags::CU_STREAM_WAIT_VALUE_FLUSH.0) {
        WaitFlags::CU_STREAM_WAIT_VALUE_GEQ => Compare::Geq,
        WaitFlags::CU_STREAM_WAIT_VALUE_EQ => Compare::Eq,
        WaitFlags::CU_STREAM_WAIT_VALUE_AND => Compare::And,
        WaitFlags::CU_STREAM_WAIT_VALUE_NOR => Compare::Nor,
        _ => return Err(INVALID_VALUE),
    };
    accessible(machine, device, addr, width, false)?;
    Ok(MemoryOp::Wait { addr, value, width, compare })
}

fn accessible(machine: &Machine, device: usize, addr: u64, width: u8, write: bool) -> Result {
    if !addr.is_multiple_of(width.into()) {
        return Err(INVALID_VALUE);
    }
    let span = machine.space.enter(device).find(addr, write).ok_or(INVALID_VALUE)?;
    if span.end - addr < u64::from(width) { Err(INVALID_VALUE) } else { Ok(()) }
}

fn one_of_batch(
    machine: &Machine,
    device: usize,
    param: &CUstreamBatchMemOpParams,
) -> Result<Option<MemoryOp>> {
    // SAFETY: every member of the union begins with the operation, and every bit pattern is valid for every member.
    let (operation, w, r, barrier) =
        unsafe { (param.operation, param.writeValue, param.waitValue, param.memoryBarrier) };
    // SAFETY: the 32-bit value is the low half of the 64-bit one (little-endian), and both are plain numbers.
    let (write32, write64, wait32, wait64) = unsafe {
        let (w, r) = (w.__bindgen_anon_1, r.__bindgen_anon_1);
        (u64::from(w.value), w.value64, u64::from(r.value), r.value64)
    };
    Ok(Some(match operation {
        Type::CU_STREAM_MEM_OP_WRITE_VALUE_32 => write(machine, device, w.address, write32, 4, w.flags)?,
        Type::CU_STREAM_MEM_OP_WRITE_VALUE_64 => write(machine, device, w.address, write64, 8, w.flags)?,
        Type::CU_STREAM_MEM_OP_WAIT_VALUE_32 => wait(machine, device, r.address, wait32, 4, r.flags)?,
        Type::CU_STREAM_MEM_OP_WAIT_VALUE_64 => wait(machine, device, r.address, wait64, 8, r.flags)?,
        // Operations of a stream are always ordered and visible, so a barrier or flush has no effect.
        Type::CU_STREAM_MEM_OP_BARRIER if barrier.flags <= 1 => return Ok(None),
        Type::CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES if barrier.flags == 0 => return Ok(None),
        Type::CU_STREAM_MEM_OP_BARRIER | Type::CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES => {
            return Err(INVALID_VALUE);
        }
        _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }))
}
