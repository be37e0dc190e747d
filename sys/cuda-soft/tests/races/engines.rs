//! Copies and fills: they order nothing, and only whole words of theirs may be polled.

use std::ptr;

use cuda_driver_sys::CUresult;

use crate::device::Devices;

/// Waits by relaxed loads for a flag 8 KiB behind the data, acquires the zero 4 KiB behind it, and reads.
const PEEK: &str = ".version 7.7
.target sm_90
.address_size 64
.visible .entry k(.param .u64 memory, .param .u32 device)
{
    .reg .u64 %data;
    .reg .u32 %r0;
    .reg .pred %p;
    ld.param.u64 %data, [memory];
WAIT:
    ld.relaxed.sys.global.u32 %r0, [%data+8192];
    setp.ne.u32 %p, %r0, 1;
    @%p bra WAIT;
ZERO:
    ld.acquire.sys.global.u32 %r0, [%data+4096];
    setp.ne.u32 %p, %r0, 0;
    @%p bra ZERO;
    ld.weak.global.u32 %r0, [%data];
    ret;
}
";

/// Stores a word at an offset.
fn store(semantics: &str, offset: u32, value: u32) -> String {
    format!(
        ".version 7.7
.target sm_90
.address_size 64
.visible .entry k(.param .u64 memory, .param .u32 device)
{{
    .reg .u64 %data;
    ld.param.u64 %data, [memory];
    st.{semantics}.global.u32 [%data+{offset}], {value};
    ret;
}}
"
    )
}

/// Polls a word 4 KiB behind the data until it is not zero.
fn poll(kind: &str) -> String {
    format!(
        ".version 7.7
.target sm_90
.address_size 64
.visible .entry k(.param .u64 memory, .param .u32 device)
{{
    .reg .u64 %data;
    .reg .{kind} %value;
    .reg .pred %p;
    ld.param.u64 %data, [memory];
WAIT:
    ld.relaxed.sys.global.{kind} %value, [%data+4096];
    setp.eq.{kind} %p, %value, 0;
    @%p bra WAIT;
    ret;
}}
"
    )
}

fn ok(code: CUresult) {
    assert_eq!(code, CUresult::CUDA_SUCCESS);
}

fn wait(devices: &Devices, device: usize) {
    devices.enter(device);
    // SAFETY: the stream is alive.
    ok(unsafe { (devices.table.cuStreamSynchronize)(devices.streams[device]) });
}

/// Device 0 writes the data, the host waits for it, and then a stream tells device 1 without an acquire. The zero that
/// `bring` put where device 1 then acquires is no word of the host's, so nothing orders the data.
fn unordered(bring: impl Fn(&Devices)) -> usize {
    let devices = Devices::new();
    let before = cuda_soft::races().len();
    bring(&devices);
    wait(&devices, 0);
    devices.launch(PEEK, 1, 1, 1);
    devices.launch(&store("weak", 0, 7), 0, 1, 1);
    wait(&devices, 0);
    // SAFETY: the memory is alive until the devices are dropped, and the flag is aligned.
    ok(unsafe {
        (devices.table.cuStreamWriteValue32_v2.unwrap())(devices.streams[0], devices.data + 8192, 1, 0)
    });
    devices.finish(before).len()
}

#[test]
fn what_a_fill_wrote_is_not_the_hosts() {
    // All memory of the devices was filled.
    assert!(unordered(|_| {}) > 0);
}

#[test]
fn what_a_copy_wrote_is_not_the_hosts() {
    let found = unordered(|devices| {
        let zeros = [0_u8; 64];
        // SAFETY: the memory is alive, and pageable memory is read before the call returns.
        ok(unsafe {
            (devices.table.cuMemcpyHtoDAsync_v2)(
                devices.data + 4096,
                zeros.as_ptr().cast(),
                64,
                devices.streams[0],
            )
        });
    });
    assert!(found > 0);
}

#[test]
fn what_a_kernel_wrote_by_weak_stores_is_not_the_hosts() {
    assert!(unordered(|devices| devices.launch(&store("weak", 4096, 0), 0, 1, 1)) > 0);
}

/// By an operation on eight bytes, of which device 1 then reads four.
#[test]
fn what_a_kernel_wrote_by_an_atomic_operation_is_not_the_hosts() {
    let exchange = ".version 7.7
.target sm_90
.address_size 64
.visible .entry k(.param .u64 memory, .param .u32 device)
{
    .reg .u64 %data, %old;
    ld.param.u64 %data, [memory];
    atom.exch.relaxed.sys.global.b64 %old, [%data+4096], 0;
    ret;
}
";
    let found = unordered(|devices| {
        devices.enter(0);
        // SAFETY: the memory is alive until the devices are dropped.
        ok(unsafe { (devices.table.cuMemsetD32Async)(devices.data + 4096, 7, 2, devices.streams[0]) });
        devices.launch(exchange, 0, 1, 1);
    });
    assert!(found > 0);
}

/// A copy moves long ranges in several steps.
#[test]
fn a_copy_races_with_a_store_anywhere_in_its_source_and_destination() {
    const HALF: u64 = 512 << 10;
    const LEN: usize = 400 << 10;
    for (offset, race) in [
        (0, true),
        (300 << 10, true),
        (LEN as u64 - 4, true),
        (LEN as u64, false),
        (HALF + (300 << 10), true),
        (HALF + LEN as u64, false),
    ] {
        let mut devices = Devices::new();
        let before = cuda_soft::races().len();
        devices.enter(0);
        // SAFETY: the output is a local. The memory ends with the context.
        ok(unsafe { (devices.table.cuMemAlloc_v2)(&raw mut devices.data, 2 * HALF as usize) });
        devices.launch(&store("weak", offset as u32, 7), 1, 1, 1);
        devices.enter(0);
        let (from, to) = (devices.data, devices.data + HALF);
        // SAFETY: both ranges are in the memory.
        let code = unsafe { (devices.table.cuMemcpyDtoDAsync_v2)(to, from, LEN, devices.streams[0]) };
        assert!(code == CUresult::CUDA_SUCCESS || race, "{code:?}");
        assert_eq!(!devices.finish(before).is_empty(), race, "a store at {offset}");
    }
}

/// The host's own word orders what the host knows, also where a fill was before, and when a kernel has written since.
#[test]
fn what_the_host_wrote_over_a_fill_is_the_hosts() {
    let mut devices = Devices::new();
    let before = cuda_soft::races().len();
    let mut pinned = ptr::null_mut();
    devices.enter(0);
    // SAFETY: the output is a local; the memory is large enough for all offsets, and filled before kernels run.
    unsafe {
        ok((devices.table.cuMemHostAlloc)(&raw mut pinned, 16 << 10, 3));
        ok((devices.table.cuMemsetD8_v2)(pinned as u64, 1, 16 << 10));
        ok((devices.table.cuCtxSynchronize)());
    }
    let data = std::mem::replace(&mut devices.data, pinned as u64);
    let word = |offset: usize| {
        // SAFETY: the word is in pinned memory, aligned, and alive until the end of the test.
        unsafe { &*pinned.byte_add(offset).cast::<std::sync::atomic::AtomicU32>() }
    };
    word(8192).store(0, std::sync::atomic::Ordering::SeqCst);
    devices.launch(PEEK, 1, 1, 1);
    devices.launch(&store("weak", 0, 7), 0, 1, 1);
    wait(&devices, 0);
    word(8192).store(1, std::sync::atomic::Ordering::SeqCst);
    word(4096).store(0, std::sync::atomic::Ordering::SeqCst);
    let races = devices.finish(before);
    devices.data = data;
    // SAFETY: no kernel runs any more.
    ok(unsafe { (devices.table.cuMemFreeHost)(pinned) });
    assert!(races.is_empty(), "{races:?}");
}

/// Runs `bring` while a kernel polls a word. 8 KiB behind the data are ones.
fn polled(kind: &str, bring: impl Fn(&Devices) -> CUresult) -> usize {
    let devices = Devices::new();
    let before = cuda_soft::races().len();
    devices.enter(0);
    // SAFETY: the memory is alive until the devices are dropped.
    unsafe {
        ok((devices.table.cuMemsetD8_v2)(devices.data + 8192, 1, 256));
        ok((devices.table.cuCtxSynchronize)());
    }
    devices.launch(&poll(kind), 1, 1, 1);
    devices.enter(0);
    let code = bring(&devices);
    let found = devices.finish(before).len();
    assert!(code == CUresult::CUDA_SUCCESS || found > 0, "{code:?}");
    found
}

#[test]
fn a_kernel_may_poll_the_words_that_a_copy_moves_at_once_and_no_others() {
    // Offsets from the polled word and from the ones, and the length.
    for (kind, to, from, len, race) in [
        ("u64", 0, 0, 8, false),
        ("u64", 0, 0, 64, false),
        ("u64", -4_i64, 4, 16, false),
        ("u64", -7, 1, 17, false),
        ("u64", 0, 4, 64, true),
        ("u64", 0, 1, 64, true),
        ("u64", -8, 2, 64, true),
        ("u64", 4, 4, 16, true),
        ("u64", -8, 0, 12, true),
        ("u64", 0, 0, 7, true),
        ("u32", 0, 0, 4, false),
        ("u32", 0, 4, 64, false),
        ("u32", -1, 3, 5, false),
        ("u32", 0, 2, 64, true),
        ("u32", 0, 0, 3, true),
    ] {
        let found = polled(kind, |devices| {
            let target = devices.data.wrapping_add_signed(4096 + to);
            // SAFETY: the memory is alive until the devices are dropped.
            unsafe {
                (devices.table.cuMemcpyDtoDAsync_v2)(
                    target,
                    devices.data + 8192 + from,
                    len,
                    devices.streams[0],
                )
            }
        });
        assert_eq!(found > 0, race, "{kind} at {to} from {from}, {len} bytes");
    }
}

#[test]
fn a_kernel_may_poll_the_words_that_a_fill_stores_at_once_and_no_others() {
    for (kind, to, len, race) in
        [("u64", 0, 8, false), ("u64", -3_i64, 64, false), ("u64", 0, 4, true), ("u64", 1, 64, true)]
    {
        let found = polled(kind, |devices| {
            let target = devices.data.wrapping_add_signed(4096 + to);
            // SAFETY: the memory is alive until the devices are dropped.
            unsafe { (devices.table.cuMemsetD8Async)(target, 1, len, devices.streams[0]) }
        });
        assert_eq!(found > 0, race, "{kind} at {to}, {len} bytes");
    }
}
