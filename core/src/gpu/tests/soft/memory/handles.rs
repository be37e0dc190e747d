//! Handles by which other processes map memory.

use std::os::fd::AsFd;
use std::sync::Arc;

use cuda_driver_sys::{CUdevice, CUdevice_attribute, CUresult, DriverTable};

use super::super::{SOON, context};
use super::{FD, PLAIN};
use crate::ErrorKind;
use crate::gpu::ipc::{LegacyHandle, LegacyMapping};
use crate::gpu::probe::{self, Finding};
use crate::gpu::vmm::{HandleTypes, Mapping, PhysicalAllocation};
use crate::gpu::{BufferOptions, Context, Device, Driver, GpuBuffer, HandlePolicy, Hooks};
use crate::sync::{AtomicUsize, Ordering};

#[test]
fn an_exported_descriptor_maps_the_same_memory() {
    let context = context(0);
    let buffer = GpuBuffer::with_options(&context, 1000, FD).unwrap();
    let allocation = buffer.allocation().unwrap();
    assert!(allocation.handle_types().unwrap().contains(HandleTypes::FD));
    let fd = allocation.export_fd().unwrap();
    let imported = PhysicalAllocation::import_fd(&context, fd.as_fd(), allocation.size()).unwrap();
    drop(fd);
    let mapping = Arc::new(Mapping::new(&context, vec![Arc::new(imported)]).unwrap());
    assert_ne!(mapping.ptr(), buffer.ptr());
    buffer.upload(10, &[5_u32, 6], SOON).unwrap();
    drop(buffer);
    let mut seen = [0_u32; 2];
    mapping.slice(..).unwrap().download(10, &mut seen, SOON).unwrap();
    assert_eq!(seen, [5, 6], "the memory outlives its exporter");
}

#[test]
fn a_descriptor_that_is_no_memory_is_refused() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let error = PhysicalAllocation::import_fd(&context(0), file.as_fd(), 1 << 21).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cuda, "{error}");
}

#[test]
fn memory_made_without_handles_cannot_be_exported() {
    let allocation = PhysicalAllocation::create(&context(0), 1, HandleTypes::NONE).unwrap();
    assert!(allocation.export_fd().is_err());
}

#[test]
fn legacy_handles_are_of_plain_memory_and_of_other_processes() {
    let context = context(0);
    let plain = GpuBuffer::with_options(&context, 100, PLAIN).unwrap();
    let handle = LegacyHandle::export(&context, plain.ptr() + 50).unwrap();
    assert_eq!(handle, LegacyHandle::export(&context, plain.ptr()).unwrap());
    assert!(LegacyMapping::open(&context, &handle).is_err(), "a process cannot open its own");
    assert!(LegacyMapping::open(&context, &LegacyHandle([0xa5; 64])).is_err());
    let mapped = GpuBuffer::with_options(&context, 100, FD).unwrap();
    assert!(LegacyHandle::export(&context, mapped.ptr()).is_err());
}

/// As the software device's, of a machine whose hardware could give fabric handles and whose driver refuses them: there
/// is no IMEX channel.
unsafe extern "C" fn with_fabric(
    value: *mut i32,
    attribute: CUdevice_attribute,
    device: CUdevice,
) -> CUresult {
    if attribute == CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED {
        // SAFETY: the caller gives a live output.
        unsafe { *value = 1 };
        return CUresult::CUDA_SUCCESS;
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { (cuda_soft::driver_table().cuDeviceGetAttribute)(value, attribute, device) }
}

/// Counts calls that were refused.
#[derive(Default)]
struct Refusals(AtomicUsize);

impl Hooks for Refusals {
    fn after(&self, _: &'static str, result: CUresult) {
        if result == CUresult::CUDA_ERROR_NOT_SUPPORTED {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_refused_fabric_handle_is_asked_for_once_per_device() {
    let refusals = Arc::new(Refusals::default());
    let table = DriverTable { cuDeviceGetAttribute: with_fabric, ..cuda_soft::driver_table() };
    let driver = Driver::from_table(table, "with fabric").unwrap().with_hooks(refusals.clone());
    for (device, refused) in [(0, 1), (1, 2)] {
        let context = Context::new(&Device::new(&driver, device).unwrap()).unwrap();
        let auto = BufferOptions { zeroed: false, handles: HandlePolicy::Auto };
        for _ in 0..3 {
            let buffer = GpuBuffer::with_options(&context, 100, auto).unwrap();
            assert_eq!(buffer.allocation().unwrap().handle_types().unwrap(), HandleTypes::FD);
            assert_eq!(refusals.0.load(Ordering::Relaxed), refused);
        }
        // An explicit request for a fabric handle returns the driver's error.
        let fabric = BufferOptions { zeroed: false, handles: HandlePolicy::Fabric };
        assert!(GpuBuffer::with_options(&context, 100, fabric).is_err());
        refusals.0.store(refused, Ordering::Relaxed);
    }
}

#[test]
fn the_nvidia_library_is_asked_for_a_fabric_handle_only_where_there_is_an_imex_channel() {
    let channels = std::fs::read_dir("/dev/nvidia-caps-imex-channels");
    let asked = usize::from(channels.is_ok_and(|mut entries| entries.next().is_some()));
    let refusals = Arc::new(Refusals::default());
    let table = DriverTable { cuDeviceGetAttribute: with_fabric, ..cuda_soft::driver_table() };
    let driver = Driver::as_library(table).unwrap().with_hooks(refusals.clone());
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    assert_eq!(context.device().supports_fabric_handles().unwrap(), asked == 1);
    for handles in [HandlePolicy::Auto, HandlePolicy::Fabric] {
        let buffer = GpuBuffer::with_options(&context, 100, BufferOptions { zeroed: false, handles });
        assert_eq!(buffer.is_ok(), handles == HandlePolicy::Auto, "{buffer:?}");
    }
    assert_eq!(refusals.0.load(Ordering::Relaxed), 2 * asked);
}

#[test]
fn handles_that_the_driver_refuses_are_found_out() {
    let table = DriverTable { cuDeviceGetAttribute: with_fabric, ..cuda_soft::driver_table() };
    let no_channel = !std::path::Path::new("/dev/nvidia-caps-imex-channels").exists();
    for (driver, why) in [
        (Driver::from_table(table, "with fabric").unwrap(), "returned CUDA_ERROR_NOT_SUPPORTED"),
        (
            Driver::as_library(table).unwrap(),
            if no_channel { "no IMEX channel" } else { "returned CUDA_ERROR_NOT_SUPPORTED" },
        ),
    ] {
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        for (name, finding) in probe::sharing(&context) {
            match (name, finding) {
                ("fabric", Finding::Refused(error)) => assert!(error.to_string().contains(why), "{error}"),
                ("fabric", other) => panic!("fabric: {other:?}"),
                (_, Finding::Works) => {}
                (name, other) => panic!("{name}: {other:?}"),
            }
        }
    }
}

#[test]
fn an_allocation_that_fails_for_its_size_says_nothing_of_fabric_handles() {
    let refusals = Arc::new(Refusals::default());
    let table = DriverTable { cuDeviceGetAttribute: with_fabric, ..cuda_soft::driver_table() };
    let driver = Driver::from_table(table, "with fabric").unwrap().with_hooks(refusals.clone());
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let auto = BufferOptions { zeroed: false, handles: HandlePolicy::Auto };
    assert!(GpuBuffer::with_options(&context, 1 << 46, auto).is_err());
    assert!(GpuBuffer::with_options(&context, 100, auto).is_ok());
    assert_eq!(refusals.0.load(Ordering::Relaxed), 2, "the second one is the first that shows it");
    assert!(GpuBuffer::with_options(&context, 100, auto).is_ok());
    assert_eq!(refusals.0.load(Ordering::Relaxed), 2);
}
