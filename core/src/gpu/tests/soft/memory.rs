//! Buffers and mappings.

mod handles;
mod unmapping;

use std::sync::{Arc, Mutex};

use cuda_driver_sys::CUresult;

use super::{SOON, context, driver};
use crate::ErrorKind;
use crate::gpu::vmm::{self, HandleTypes, Mapping, PhysicalAllocation};
use crate::gpu::{
    BufferOptions, Context, Device, GpuBuffer, HandlePolicy, Hooks, HostRegistration, MemoryKind,
    PinnedBuffer, PointerInfo, Stream,
};
use crate::sync::Ordering;

const PLAIN: BufferOptions = BufferOptions { zeroed: true, handles: HandlePolicy::Legacy };
pub(super) const FD: BufferOptions = BufferOptions { zeroed: true, handles: HandlePolicy::Fd };

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
        assert!(error.message().contains("AQUEDUCT_SOFT_MEMORY"), "{error}");
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
