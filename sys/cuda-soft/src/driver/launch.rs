//! Kernel launches.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cuda_driver_sys::{
    CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT, CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT, CU_LAUNCH_PARAM_END_AS_INT,
    CUfunction, CUlaunchAttribute, CUlaunchAttributeID as Id, CUlaunchConfig, CUresult, CUstream,
};

use super::{INVALID_VALUE, context, entries, function, stream};
use crate::abi::{Result, input, not_supported};
use crate::code;
use crate::exec::Launch;
use crate::machine::{limits, machine};
use crate::stream::work::Work;

entries! {
    fn cuLaunchKernel(
        f: CUfunction,
        gx: c_uint, gy: c_uint, gz: c_uint,
        bx: c_uint, by: c_uint, bz: c_uint,
        shared: c_uint,
        on: CUstream,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let shape = Shape { grid: [gx, gy, gz], block: [bx, by, bz], shared, cooperative: false, cluster: None };
        // SAFETY: parameters are laid out as the API says, by contract.
        unsafe { launch(f, shape, on, params, extra) }
    }

    fn cuLaunchCooperativeKernel(
        f: CUfunction,
        gx: c_uint, gy: c_uint, gz: c_uint,
        bx: c_uint, by: c_uint, bz: c_uint,
        shared: c_uint,
        on: CUstream,
        params: *mut *mut c_void,
    ) {
        let shape = Shape { grid: [gx, gy, gz], block: [bx, by, bz], shared, cooperative: true, cluster: None };
        // SAFETY: parameters are laid out as the API says, by contract.
        unsafe { launch(f, shape, on, params, std::ptr::null_mut()) }
    }

    fn cuLaunchKernelEx(
        config: *const CUlaunchConfig => input,
        f: CUfunction,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let c = config;
        if c.numAttrs != 0 && c.attrs.is_null() {
            return Err(INVALID_VALUE);
        }
        let mut shape = Shape {
            grid: [c.gridDimX, c.gridDimY, c.gridDimZ],
            block: [c.blockDimX, c.blockDimY, c.blockDimZ],
            shared: c.sharedMemBytes,
            cooperative: false,
            cluster: None,
        };
        for i in 0..c.numAttrs as usize {
            // SAFETY: an array of numAttrs, by contract.
            let attribute = unsafe { c.attrs.add(i).read() };
            shape.apply(&attribute)?;
        }
        // SAFETY: parameters are laid out as the API says, by contract.
        unsafe { launch(f, shape, c.hStream, params, extra) }
    }
}

struct Shape {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    cooperative: bool,
    /// Blocks per cluster, if the launch says so.
    cluster: Option<[u32; 3]>,
}

impl Shape {
    fn apply(&mut self, attribute: &CUlaunchAttribute) -> Result {
        let value = &attribute.value;
        match attribute.id {
            Id::CU_LAUNCH_ATTRIBUTE_IGNORE | Id::CU_LAUNCH_ATTRIBUTE_PRIORITY => Ok(()),
            Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE => {
                // SAFETY: a plain number in a union of plain data.
                self.cooperative = unsafe { value.cooperative } != 0;
                Ok(())
            }
            Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
                // SAFETY: as above.
                let d = unsafe { value.clusterDim };
                self.cluster = Some([d.x, d.y, d.z]);
                Ok(())
            }
            Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE => Ok(()),
            // The kernel could begin before the one before it has ended. In the order of the stream, where `griddepcontrol` has no
            // effect, a kernel that forgets to wait would pass unseen.
            Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
                // SAFETY: as above.
                if unsafe { value.programmaticStreamSerializationAllowed } == 0 =>
            {
                Ok(())
            }
            Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            | Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT => Err(not_supported(
                "cuLaunchKernelEx: programmatic dependent launch: kernels of a stream run one after another, so a missing \
                 griddepcontrol.wait would pass; leave the attribute out",
            )),
            _ => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        }
    }

    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for dimensions or shared memory beyond the limits,
    /// `CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES` for a block with more threads than this kernel allows.
    fn check(&self, f: &code::Function, max_dynamic: u32) -> Result {
        let in_range =
            |of: [u32; 3], limit: [u32; 3]| of.iter().zip(limit).all(|(n, max)| (1..=max).contains(n));
        if !in_range(self.grid, limits::GRID) || !in_range(self.block, limits::BLOCK) {
            return Err(INVALID_VALUE);
        }
        let threads = self.threads();
        if threads > limits::THREADS || self.shared > max_dynamic {
            return Err(INVALID_VALUE);
        }
        if f.required_block != [0; 3] && f.required_block != self.block {
            return Err(INVALID_VALUE);
        }
        if threads > function::max_threads(f) {
            return Err(CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
        }
        Ok(())
    }

    /// The blocks per cluster.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_CLUSTER_SIZE` if the cluster is empty or too large, contradicts the kernel, or does not divide
    /// the grid; `CUDA_ERROR_NOT_SUPPORTED` if the device has no clusters.
    fn cluster(&self, f: &code::Function, limit: u32, capability: (u32, u32)) -> Result<[u32; 3]> {
        let required = Some(f.required_cluster).filter(|required| *required != [0; 3]);
        let cluster = self.cluster.or(required).unwrap_or([1; 3]);
        if cluster == [1; 3] && required.is_none() {
            return Ok(cluster);
        }
        if capability < (9, 0) {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let blocks = cluster.iter().try_fold(1u32, |n, d| n.checked_mul(*d)).unwrap_or(u32::MAX);
        let divides = cluster.iter().zip(self.grid).all(|(d, n)| *d != 0 && n % d == 0);
        if !divides || blocks > limit || required.is_some_and(|required| required != cluster) {
            return Err(CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE);
        }
        Ok(cluster)
    }

    fn threads(&self) -> u32 {
        self.block.iter().product()
    }

    fn blocks(&self) -> u64 {
        self.grid.iter().map(|n| u64::from(*n)).product()
    }
}

/// # Safety
/// `params` is null or has one pointer per parameter of the kernel. `extra` is null or a list as the API describes it.
unsafe fn launch(
    f: CUfunction,
    shape: Shape,
    on: CUstream,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result {
    let machine = machine()?;
    let device = context::current(machine)?;
    let stream = stream::find(machine, device, on)?;
    let kernel = machine.kernels.get(f)?;
    if kernel.loaded.device != stream.device {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    let code = kernel.function();
    shape.check(code, kernel.max_dynamic.load(Ordering::Relaxed))?;
    let residency = machine.residency();
    if shape.cooperative {
        if machine.config.lacks.cooperative {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        if shape.blocks() > residency.max_blocks(shape.threads(), code.shared_bytes(shape.shared), 0) {
            return Err(CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
        }
    }
    let most = if kernel.large_clusters.load(Ordering::Relaxed) {
        limits::CLUSTER
    } else {
        limits::PORTABLE_CLUSTER
    };
    let resident = residency.max_blocks(shape.threads(), code.shared_bytes(shape.shared), 0);
    let most = most.min(u32::try_from(resident).unwrap_or(u32::MAX));
    let cluster = shape.cluster(code, most, machine.config.compute_capability)?;
    // SAFETY: by contract.
    let params = unsafe { gather(code, params, extra) }?;
    let launch = Launch {
        image: Arc::clone(&kernel.loaded.image),
        function: kernel.index,
        grid: shape.grid,
        block: shape.block,
        cluster,
        dynamic_shared: shape.shared,
        params,
        device: stream.device,
        limits: residency,
        space: Arc::clone(&machine.space),
        workspace: 0,
        services: Arc::clone(machine.devices[stream.device].services()),
        check: None,
        aligned: machine.config.check.aligned,
        garbage: machine.config.unkind,
    };
    machine.devices[stream.device].flush();
    let work = Work::Kernel { launch: Box::new(launch), grid_sync: shape.cooperative };
    machine.submit(&stream, work).map(|_| ())
}

/// Copies the parameters, because the call may return before the kernel begins.
///
/// # Safety
/// As for [`launch`].
unsafe fn gather(f: &code::Function, params: *mut *mut c_void, extra: *mut *mut c_void) -> Result<Vec<u8>> {
    let mut buffer = vec![0u8; f.param_size as usize];
    if !extra.is_null() {
        if !params.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: by contract.
        let (from, size) = unsafe { packed(extra) }?;
        if size < buffer.len() || from.is_null() && size > 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller's buffer has `size` bytes, at least as many as ours.
        unsafe { std::ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), buffer.len()) };
        return Ok(buffer);
    }
    if params.is_null() && !f.params.is_empty() {
        return Err(INVALID_VALUE);
    }
    for (i, param) in f.params.iter().enumerate() {
        // SAFETY: a pointer per parameter, by contract.
        let from = unsafe { params.add(i).read() }.cast::<u8>();
        let to = buffer.get_mut(param.offset as usize..).and_then(|b| b.get_mut(..param.size as usize));
        let to = to.filter(|_| !from.is_null()).ok_or(INVALID_VALUE)?;
        // SAFETY: it points to a value of the parameter's size, by contract.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    }
    Ok(buffer)
}

/// Reads buffer and size from the `extra` list.
///
/// # Safety
/// `extra` is a list as the API describes it.
unsafe fn packed(extra: *mut *mut c_void) -> Result<(*const u8, usize)> {
    let (mut from, mut size) = (std::ptr::null::<u8>(), 0usize);
    let mut at = 0;
    loop {
        // SAFETY: the list ends with the END word, and a value follows each other word.
        let (word, value) = unsafe {
            let word = extra.add(at).read() as usize as u32;
            if word == CU_LAUNCH_PARAM_END_AS_INT {
                return Ok((from, size));
            }
            (word, extra.add(at + 1).read())
        };
        match word {
            CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT => from = value.cast_const().cast(),
            // SAFETY: by contract the value points to a size or is null.
            CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT => size = unsafe { input(value.cast_const().cast()) }?,
            _ => return Err(INVALID_VALUE),
        }
        at += 2;
    }
}
