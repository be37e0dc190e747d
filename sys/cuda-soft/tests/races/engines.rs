//! Copies and fills: they order nothing, and only whole words of theirs may be polled.

use cuda_driver_sys::CUresult;

use crate::device::{Devices, ok, races, races_on_host, races_on_team};

/// Waits by relaxed loads for a word 8 KiB behind the data, acquires the zero 4 KiB behind it, and reads.
const PEEK: &str = "
WAIT:
    ld.relaxed.sys.global.u32 %r0, [%data+8192];
    setp.ne.u32 %p0, %r0, 1;
    @%p0 bra WAIT;
ZERO:
    ld.acquire.sys.global.u32 %r0, [%flag];
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra ZERO;
    ld.weak.global.u32 %r0, [%data];";

/// Writes the data.
const WRITE: &str = "    st.weak.global.u32 [%data], 7;";

/// Device 0 writes the data, the host waits for it, and then a stream tells device 1 without an acquire. The zero that
/// `bring` put where device 1 then acquires is no word of the host's, so nothing orders the data.
fn unordered(bring: impl FnOnce(&Devices)) -> bool {
    let found = races(|devices| {
        bring(devices);
        devices.wait(0);
        devices.launch(PEEK, 1, 1, 1);
        devices.launch(WRITE, 0, 1, 1);
        devices.wait(0);
        devices.stream_writes(0, 8192, 1);
    });
    !found.is_empty()
}

#[test]
fn what_a_fill_wrote_is_not_the_hosts() {
    // All memory of the devices was filled.
    assert!(unordered(|_| {}));
}

#[test]
fn what_a_copy_wrote_is_not_the_hosts() {
    assert!(unordered(|devices| {
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
    }));
}

#[test]
fn what_a_kernel_wrote_by_weak_stores_is_not_the_hosts() {
    assert!(unordered(|devices| devices.launch("    st.weak.global.u32 [%flag], 0;", 0, 1, 1)));
}

/// By an operation on eight bytes, of which device 1 then reads four.
#[test]
fn what_a_kernel_wrote_by_an_atomic_operation_is_not_the_hosts() {
    assert!(unordered(|devices| {
        devices.enter(0);
        // SAFETY: the memory is alive until the devices are dropped.
        ok(unsafe { (devices.table.cuMemsetD32Async)(devices.data + 4096, 7, 2, devices.streams[0]) });
        devices.launch("    atom.exch.relaxed.sys.global.b64 %d0, [%flag], 0;", 0, 1, 1);
    }));
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
        devices.launch(&format!("    st.weak.global.u32 [%data+{offset}], 7;"), 1, 1, 1);
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
    let found = races_on_host(|devices| {
        devices.enter(0);
        // SAFETY: the memory is large enough, and filled before kernels run.
        unsafe {
            ok((devices.table.cuMemsetD8_v2)(devices.data, 1, 16 << 10));
            ok((devices.table.cuCtxSynchronize)());
        }
        devices.store(8192, 0);
        devices.launch(PEEK, 1, 1, 1);
        devices.launch(WRITE, 0, 1, 1);
        devices.wait(0);
        devices.store(8192, 1);
        devices.store(4096, 0);
    });
    assert!(found.is_empty(), "{found:?}");
}

/// Runs `bring` while a kernel polls a word. 8 KiB behind the data are ones.
fn polled(kind: &str, bring: impl Fn(&Devices) -> CUresult) -> bool {
    let poll = format!(
        "    .reg .{kind} %value;
WAIT:
    ld.relaxed.sys.global.{kind} %value, [%flag];
    setp.eq.{kind} %p0, %value, 0;
    @%p0 bra WAIT;"
    );
    let mut code = CUresult::CUDA_SUCCESS;
    let found = races(|devices| {
        devices.enter(0);
        // SAFETY: the memory is alive until the devices are dropped.
        unsafe {
            ok((devices.table.cuMemsetD8_v2)(devices.data + 8192, 1, 256));
            ok((devices.table.cuCtxSynchronize)());
        }
        devices.launch(&poll, 1, 1, 1);
        devices.enter(0);
        code = bring(devices);
    });
    assert!(code == CUresult::CUDA_SUCCESS || !found.is_empty(), "{code:?}");
    !found.is_empty()
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
        assert_eq!(found, race, "{kind} at {to} from {from}, {len} bytes");
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
        assert_eq!(found, race, "{kind} at {to}, {len} bytes");
    }
}

/// A race names the memory by its kind and the address of its beginning, whether a kernel or a copy found it.
#[test]
fn a_race_names_the_memory() {
    let by_kernel = races(|devices| devices.launch("    st.weak.global.u32 [%data+8], %tid;", 0, 2, 1));
    let mut at = 0;
    let by_copy = races(|devices| {
        at = devices.data;
        devices.launch("    st.weak.global.u32 [%data+8], 7;", 1, 1, 1);
        devices.enter(0);
        // SAFETY: the memory is large enough.
        unsafe { (devices.table.cuMemcpyDtoDAsync_v2)(at + 1024, at, 64, devices.streams[0]) };
    });
    let on_host = races_on_host(|devices| devices.launch("    st.weak.global.u32 [%data+8], %tid;", 0, 2, 1));
    let of_the_other = [(1, 2), (2, 1)].map(|(stores, blocks)| {
        // The second store is to all devices, and races with the first at one.
        let stores =
            &["    st.weak.global.u32 [%data+8], 7;\n", "    multimem.st.weak.global.u32 [%all+8], 7;"]
                [..stores];
        races_on_team(|devices| devices.launch(&stores.concat(), 1, blocks, 1))
    });
    let in_shared = races(|devices| devices.launch("    st.weak.shared.u32 [shared+8], %tid;", 0, 1, 64));
    for (found, memory) in [
        (&by_kernel, "device memory of device 0 at 0x"),
        (&by_copy, &format!("device memory of device 0 at {at:#x} + ")),
        (&on_host, "pinned host memory at 0x"),
        (&in_shared, "shared memory of block 0 + 8: "),
        (&of_the_other[0], "device memory of device 1 at 0x"),
        (&of_the_other[1], "device memory of device 1 at 0x"),
    ] {
        assert!(found[0].starts_with(&format!("data race at {memory}")), "{memory}: {found:?}");
    }
}
