//! Buffers, mappings and handles.

use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use cuda_driver_sys::{CUdevice, CUdevice_attribute, CUresult, DriverTable};

use super::{Address, Gate, SOON, context, driver};
use crate::ErrorKind;
use crate::gpu::ipc::{LegacyHandle, LegacyMapping};
use crate::gpu::vmm::{self, HandleTypes, Mapping, PhysicalAllocation};
use crate::gpu::{
    BufferOptions, Context, Device, DeviceSlice, Driver, GpuBuffer, HandlePolicy, Hooks, HostRegistration,
    MemoryKind, PinnedBuffer, PointerInfo, Stream,
};
use crate::sync::{AtomicBool, AtomicUsize, Ordering};

const PLAIN: BufferOptions = BufferOptions { zeroed: true, handles: HandlePolicy::Legacy };
const FD: BufferOptions = BufferOptions { zeroed: true, handles: HandlePolicy::Fd };

#[test]
fn buffers_hold_what_is_put_into_them_at_any_offset() {
    let context = context(0);
    for options in [PLAIN, FD] {
        // Longer than the staging block, and not a multiple of anything.
        let len = (2 << 20) + 13;
        let buffer = Arc::new(GpuBuffer::with_options(&context, len, options).unwrap());
        let mut seen = vec![1_u8; len];
        buffer.download(0, &mut seen, SOON).unwrap();
        assert!(seen.iter().all(|&b| b == 0), "zeroed");
        let data: Vec<u8> = (0..len - 5).map(|i| (i % 251) as u8).collect();
        buffer.upload(5, &data, SOON).unwrap();
        buffer.download(0, &mut seen, SOON).unwrap();
        assert_eq!(seen[..5], [0; 5]);
        assert!(seen[5..] == data[..]);
        let part = buffer.slice(len - 3..).unwrap();
        part.fill(9, SOON).unwrap();
        buffer.download(len - 4, &mut seen[..4], SOON).unwrap();
        assert_eq!(seen[..4], [data[len - 9], 9, 9, 9]);
    }
}

#[test]
fn ranges_beyond_the_buffer_are_refused() {
    let context = context(0);
    let buffer = Arc::new(GpuBuffer::new(&context, 100).unwrap());
    assert!(buffer.allocated() >= 100);
    let mut word = [0_u32];
    assert_eq!(buffer.upload(98, &word, SOON).unwrap_err().kind(), ErrorKind::InvalidUsage);
    assert_eq!(buffer.download(usize::MAX, &mut word, SOON).unwrap_err().kind(), ErrorKind::InvalidUsage);
    assert!(buffer.slice(0..101).is_err(), "the rounding is not the user's");
    let (all, half) = (buffer.slice(..).unwrap(), buffer.slice(..50).unwrap());
    assert!(half.slice(40..60).is_err());
    let stream = Stream::new(&context).unwrap();
    assert_eq!(stream.copy(&all, &half).unwrap_err().kind(), ErrorKind::InvalidUsage);
    assert!(stream.write_value64(&buffer.slice(4..12).unwrap(), 1).is_err(), "not aligned");
    assert_eq!(GpuBuffer::new(&context, 0).unwrap_err().kind(), ErrorKind::InvalidUsage);
}

#[test]
fn a_buffer_too_large_for_the_device_says_so() {
    for options in [PLAIN, FD] {
        let error = GpuBuffer::with_options(&context(0), 1 << 46, options).unwrap_err();
        assert_eq!(error.code(), CUresult::CUDA_ERROR_OUT_OF_MEMORY.0.cast_signed(), "{error}");
        assert!(error.message().contains("free device memory"), "{error}");
    }
    assert!(GpuBuffer::with_options(&context(0), usize::MAX, FD).is_err());
}

#[test]
fn pinned_memory_is_one_memory_for_host_and_device() {
    let context = context(0);
    let pinned = Arc::new(PinnedBuffer::new(&context, 64).unwrap());
    let stream = Stream::new(&context).unwrap();
    stream.write_value64(&pinned.slice(8..16).unwrap(), 0x1234_5678_9abc).unwrap();
    stream.synchronize(SOON).unwrap();
    assert_eq!(pinned.memory().word64(8).unwrap().load(Ordering::Acquire), 0x1234_5678_9abc);
    let buffer = Arc::new(GpuBuffer::new(&context, 64).unwrap());
    stream.copy(&buffer.slice(..).unwrap(), &pinned.slice(..).unwrap()).unwrap();
    stream.synchronize(SOON).unwrap();
    let mut words = [0_u64; 8];
    buffer.download(0, &mut words, SOON).unwrap();
    assert_eq!(words, [0, 0x1234_5678_9abc, 0, 0, 0, 0, 0, 0]);
    let info = PointerInfo::of(&context, pinned.device_ptr()).unwrap();
    assert_eq!(info.kind, MemoryKind::Host);
}

#[test]
fn registered_memory_is_unregistered_before_its_owner_goes() {
    let context = context(0);
    // Page-aligned memory of our own.
    let owner = Arc::new(memmap2::MmapMut::map_anon(8192).unwrap());
    let ptr = owner.as_ptr().cast_mut();
    // SAFETY: `owner` keeps the pages, and nobody looks at them through it.
    let registered = unsafe { HostRegistration::new(&context, ptr, 8192, owner.clone()) }.unwrap();
    let registered = Arc::new(registered);
    let buffer = Arc::new(GpuBuffer::new(&context, 8).unwrap());
    buffer.upload(0, &[77_u64], SOON).unwrap();
    let stream = Stream::new(&context).unwrap();
    stream.copy(&registered.slice(4096..4104).unwrap(), &buffer.slice(..).unwrap()).unwrap();
    stream.synchronize(SOON).unwrap();
    // SAFETY: inside the mapping and aligned; the copy is done.
    assert_eq!(unsafe { ptr.add(4096).cast::<u64>().read_volatile() }, 77);
    assert_eq!(Arc::strong_count(&owner), 2);
    drop(registered);
    assert_eq!(Arc::strong_count(&owner), 1);
    let info = PointerInfo::of(&context, ptr.expose_provenance() as u64).unwrap();
    assert_eq!(info.kind, MemoryKind::Unregistered);
}

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
fn all_pieces_of_a_range_are_found() {
    let context = context(0);
    let parts: Vec<_> =
        (0..3).map(|_| Arc::new(PhysicalAllocation::create(&context, 1, HandleTypes::FD).unwrap())).collect();
    let size = parts[0].size();
    let mapping = Arc::new(Mapping::new(&context, parts).unwrap());
    assert_eq!(mapping.size(), 3 * size);
    mapping.slice(..).unwrap().fill(1, SOON).unwrap();
    let middle = mapping.ptr() + size as u64 - 1;
    let bases = |ptr, len| -> Vec<(u64, usize)> {
        vmm::chunks(&context, ptr, len).unwrap().iter().map(|c| (c.base - mapping.ptr(), c.size)).collect()
    };
    let s = size as u64;
    assert_eq!(bases(middle, 1), [(0, size)]);
    assert_eq!(bases(middle, 2), [(0, size), (s, size)]);
    assert_eq!(bases(mapping.ptr(), 3 * size), [(0, size), (s, size), (2 * s, size)]);
    assert!(vmm::chunks(&context, mapping.ptr(), 3 * size + 1).is_err(), "beyond the mapping");
    assert!(vmm::chunks(&context, u64::MAX, 2).is_err());
}

#[test]
fn another_device_reaches_a_buffer_it_is_allowed() {
    let driver = driver();
    let [a, b] = [0, 1].map(|n| Context::new(&Device::new(&driver, n).unwrap()).unwrap());
    for options in [PLAIN, FD] {
        let theirs = Arc::new(GpuBuffer::with_options(&a, 64, options).unwrap());
        theirs.upload(0, &[3_u64; 8], SOON).unwrap();
        // Again, and by several at a time: as when several ranks of one process receive it on one device.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| theirs.allow(b.device()).unwrap());
            }
        });
        let mine = Arc::new(GpuBuffer::new(&b, 64).unwrap());
        let stream = Stream::new(&b).unwrap();
        stream.copy(&mine.slice(..).unwrap(), &theirs.slice(..).unwrap()).unwrap();
        stream.synchronize(SOON).unwrap();
        let mut seen = [0_u64; 8];
        mine.download(0, &mut seen, SOON).unwrap();
        assert_eq!(seen, [3; 8]);
    }
}

/// The driver unmaps memory only when no device that has access to it works. With ranks as threads, a kernel there may be
/// waiting for the very thread that drops the memory.
#[test]
fn memory_is_not_unmapped_while_another_device_that_has_access_works() {
    let [owner, user] = [0, 5].map(context);
    assert!(
        !owner.device().driver().is_same(user.device().driver()),
        "each rank may have loaded the driver itself"
    );
    let stream = Stream::new(&user).unwrap();
    let theirs = GpuBuffer::with_options(&owner, 64, FD).unwrap();
    theirs.allow(user.device()).unwrap();
    let gate = Gate::close(&stream);
    let address = Address::of(&theirs);
    let (done, dropped) = std::sync::mpsc::channel();
    let dropping = std::thread::spawn(move || {
        drop(theirs);
        done.send(()).unwrap();
    });
    // The stream goes on only when the gate opens, so a drop that waits for it never returns before.
    let returned = dropped.recv_timeout(Duration::from_secs(5));
    let waiting = (owner.unreaped(), address.is_mapped());
    owner.reap();
    let still = address.is_mapped();
    gate.open();
    dropping.join().unwrap();
    assert!(returned.is_ok(), "drop waited for a kernel of another device");
    assert_eq!((waiting, still), ((1, true), true), "a device that may be using it works");
    stream.synchronize(SOON).unwrap();
    owner.reap();
    assert_eq!((owner.unreaped(), address.is_mapped()), (0, false));
}

/// Stops the thread that unmaps until another one has enqueued a wait. If that has to wait for this one, as it should, a
/// bounded time passes instead.
#[derive(Default)]
struct Unmapping {
    /// Whether memory is being unmapped; whether a wait is enqueued.
    seen: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Unmapping {
    fn see(&self, change: impl FnOnce(&mut (bool, bool))) {
        change(&mut self.seen.lock().unwrap());
        self.changed.notify_all();
    }

    fn wait(&self, enough: impl Fn((bool, bool)) -> bool, time: Duration) {
        let seen = self.seen.lock().unwrap();
        drop(self.changed.wait_timeout_while(seen, time, |seen| !enough(*seen)).unwrap());
    }
}

impl Hooks for Unmapping {
    fn before(&self, function: &'static str) -> Option<CUresult> {
        if function == "cuMemUnmap" {
            self.see(|seen| seen.0 = true);
            self.wait(|(_, enqueued)| enqueued, Duration::from_millis(300));
        }
        None
    }

    fn after(&self, function: &'static str, _: CUresult) {
        if function == "cuStreamWaitValue64_v2" {
            self.see(|seen| seen.1 = true);
        }
    }
}

#[test]
fn nothing_is_enqueued_between_the_look_that_finds_a_context_quiet_and_the_unmapping() {
    let unmapping = Arc::new(Unmapping::default());
    let driver = driver().with_hooks(unmapping.clone());
    let context = Context::new(&Device::new(&driver, 5).unwrap()).unwrap();
    let stream = Stream::new(&context).unwrap();
    let buffer = GpuBuffer::with_options(&context, 64, FD).unwrap();
    let word = Arc::new(PinnedBuffer::new(&context, 8).unwrap());
    let slice = word.slice(..).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            unmapping.wait(|(unmapping, _)| unmapping, SOON);
            stream.wait_value64(&slice, 1).unwrap();
        });
        let (done, dropped) = std::sync::mpsc::channel();
        scope.spawn(move || {
            drop(buffer);
            done.send(()).unwrap();
        });
        let returned = dropped.recv_timeout(Duration::from_secs(5));
        word.memory().word64(0).unwrap().store(1, Ordering::Release);
        assert!(returned.is_ok(), "drop waited for work enqueued after its look");
    });
    stream.synchronize(SOON).unwrap();
    assert_eq!(unmapping.seen.lock().map(|seen| *seen).unwrap(), (true, true));
}

#[test]
fn pointers_say_whose_they_are() {
    let context = context(1);
    for (options, legacy) in [(PLAIN, true), (FD, false)] {
        let buffer = GpuBuffer::with_options(&context, 100, options).unwrap();
        let info = PointerInfo::of(&context, buffer.ptr() + 7).unwrap();
        assert_eq!((info.kind, info.device, info.base), (MemoryKind::Device, Some(1), buffer.ptr()));
        assert!(info.size >= 100);
        assert_eq!(info.legacy_ipc, legacy);
        assert_eq!(info.handle_types.contains(HandleTypes::FD), !legacy);
    }
    let local = 0_u64;
    let info = PointerInfo::of(&context, (&raw const local).expose_provenance() as u64).unwrap();
    assert_eq!((info.kind, info.device), (MemoryKind::Unregistered, None));
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

/// Counts calls by name, and lets one function fail at its n-th call.
#[derive(Default)]
struct Faults {
    calls: Mutex<Vec<&'static str>>,
    fault: Mutex<Option<(&'static str, usize)>>,
}

impl Faults {
    fn count(&self, function: &str) -> usize {
        self.calls.lock().unwrap().iter().filter(|f| **f == function).count()
    }
}

impl Hooks for Faults {
    fn before(&self, function: &'static str) -> Option<CUresult> {
        self.calls.lock().unwrap().push(function);
        let (name, nth) = (*self.fault.lock().unwrap())?;
        (name == function && self.count(name) == nth).then_some(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }
}

#[test]
fn whichever_step_of_an_allocation_fails_nothing_is_left() {
    let pairs = [
        ("cuMemCreate", "cuMemRelease"),
        ("cuMemAddressReserve", "cuMemAddressFree"),
        ("cuMemMap", "cuMemUnmap"),
        ("cuStreamCreate", "cuStreamDestroy_v2"),
        ("cuMemHostAlloc", "cuMemFreeHost"),
        ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2"),
    ];
    let steps = [
        "cuMemCreate",
        "cuMemAddressReserve",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemHostAlloc",
        "cuMemsetD8Async",
    ];
    for step in steps {
        let faults = Arc::new(Faults::default());
        let driver = driver().with_hooks(faults.clone());
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        *faults.fault.lock().unwrap() = Some((step, 1));
        let error = GpuBuffer::with_options(&context, 100, FD).unwrap_err();
        assert_eq!(error.op(), step);
        assert!(GpuBuffer::with_options(&context, 100, FD).is_ok(), "after a failed {step} it works again");
        drop(context);
        for (make, free) in pairs {
            // The failed call made nothing.
            let made = faults.count(make) - usize::from(make == step);
            assert_eq!(made, faults.count(free), "{make} and {free} when {step} fails");
        }
    }
}

/// Says "not ready" to every question about a stream while that is wished.
#[derive(Default)]
struct Busy(AtomicBool);

impl Hooks for Busy {
    fn before(&self, function: &'static str) -> Option<CUresult> {
        let busy = function == "cuStreamQuery" && self.0.load(Ordering::Relaxed);
        busy.then_some(CUresult::CUDA_ERROR_NOT_READY)
    }
}

#[test]
fn a_copy_that_was_given_up_keeps_memory_of_another_device_until_it_is_done() {
    let busy = Arc::new(Busy::default());
    let driver = driver().with_hooks(busy.clone());
    let [here, there] = [0, 1].map(|n| Context::new(&Device::new(&driver, n).unwrap()).unwrap());
    type Copy = fn(&DeviceSlice) -> crate::Result<()>;
    let copies: [Copy; 3] = [
        |slice| slice.fill(3, Duration::from_millis(1)),
        |slice| slice.upload(0, &[1_u8; 64], Duration::from_millis(1)),
        |slice| slice.download(0, &mut [0_u8; 64], Duration::from_millis(1)),
    ];
    for copy in copies {
        let buffer = Arc::new(GpuBuffer::with_options(&there, 64, FD).unwrap());
        buffer.allow(here.device()).unwrap();
        let (weak, address) = (Arc::downgrade(&buffer), Address::of(&buffer));
        // SAFETY: `here` was given access to the buffer, which the slice keeps.
        let slice = unsafe { DeviceSlice::from_raw(&here, buffer.ptr(), 64, buffer) };
        // A block and a stream to copy with, as after an earlier copy.
        slice.fill(0, SOON).unwrap();
        busy.0.store(true, Ordering::Relaxed);
        assert_eq!(copy(&slice).unwrap_err().kind(), ErrorKind::Timeout);
        drop(slice);
        there.reap();
        assert!(weak.upgrade().is_some() && address.is_mapped(), "a stream of the other device is at it");
        assert_eq!(here.unreaped(), 1);
        busy.0.store(false, Ordering::Relaxed);
        here.reap();
        there.reap();
        assert!(weak.upgrade().is_none() && !address.is_mapped());
        assert_eq!((here.unreaped(), there.unreaped()), (0, 0));
    }
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
