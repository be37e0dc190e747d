//! Streams, events, copies and the host's own waits.

use std::ptr;

use cuda_driver_sys::{CUevent, CUresult};

use crate::device::Devices;

const READ: &str = ".version 7.7
.target sm_90
.address_size 64
.visible .entry k(.param .u64 memory, .param .u32 device)
{
    .reg .u64 %data;
    .reg .u32 %r0;
    ld.param.u64 %data, [memory];
    ld.weak.global.u32 %r0, [%data];
    ret;
}
";

/// Writes, and tells of it by a flag 4 KiB behind the data.
const TELL: &str = ".version 7.7
.target sm_90
.address_size 64
.visible .entry k(.param .u64 memory, .param .u32 device)
{
    .reg .u64 %data;
    ld.param.u64 %data, [memory];
    st.weak.global.u32 [%data], 7;
    st.release.sys.global.u32 [%data+4096], 1;
    ret;
}
";

/// Waits for the flag, and reads.
const HEAR: &str = ".version 7.7
.target sm_90
.address_size 64
.visible .entry k(.param .u64 memory, .param .u32 device)
{
    .reg .u64 %data;
    .reg .u32 %r0;
    .reg .pred %p;
    ld.param.u64 %data, [memory];
WAIT:
    ld.acquire.sys.global.u32 %r0, [%data+4096];
    setp.ne.u32 %p, %r0, 1;
    @%p bra WAIT;
    ld.weak.global.u32 %r0, [%data];
    ret;
}
";

fn ok(code: CUresult) {
    assert_eq!(code, CUresult::CUDA_SUCCESS);
}

/// Runs `run` on fresh devices and returns the number of races.
fn races(run: impl Fn(&Devices)) -> usize {
    let devices = Devices::new();
    let before = cuda_soft::races().len();
    run(&devices);
    devices.finish(before).len()
}

fn fill(devices: &Devices, device: usize) {
    devices.enter(device);
    // SAFETY: the memory is alive until the devices are dropped.
    ok(unsafe { (devices.table.cuMemsetD32Async)(devices.data, 7, 16, devices.streams[device]) });
}

#[test]
fn work_of_two_streams_needs_an_event_or_a_wait_of_the_host() {
    let event = |devices: &Devices| {
        let mut event: CUevent = ptr::null_mut();
        // SAFETY: the output is a local, and the streams are alive.
        unsafe {
            ok((devices.table.cuEventCreate)(&raw mut event, 2));
            ok((devices.table.cuEventRecord)(event, devices.streams[0]));
            ok((devices.table.cuStreamWaitEvent)(devices.streams[1], event, 0));
        }
    };
    let wait = |devices: &Devices| {
        // SAFETY: the stream is alive.
        ok(unsafe { (devices.table.cuStreamSynchronize)(devices.streams[0]) });
    };
    let nothing = |_: &Devices| {};
    let races_with = |order: &dyn Fn(&Devices)| {
        races(|devices| {
            fill(devices, 0);
            order(devices);
            devices.launch(READ, 1, 1, 1);
        })
    };
    assert_eq!((races_with(&event), races_with(&wait)), (0, 0));
    assert!(races_with(&nothing) > 0);
}

#[test]
fn work_of_one_stream_is_ordered_also_when_the_earlier_work_has_long_ended() {
    let found = races(|devices| {
        for _ in 0..3 {
            fill(devices, 0);
            std::thread::sleep(std::time::Duration::from_millis(5));
            devices.launch(READ, 0, 1, 1);
        }
    });
    assert_eq!(found, 0);
}

#[test]
fn stream_values_publish_and_acquire() {
    let write = |devices: &Devices| {
        devices.enter(0);
        // SAFETY: the memory is alive until the devices are dropped, and the flag is aligned.
        ok(unsafe {
            (devices.table.cuStreamWriteValue32_v2.unwrap())(devices.streams[0], devices.data + 4096, 1, 0)
        });
    };
    let wait = |devices: &Devices| {
        devices.enter(1);
        // SAFETY: as above.
        ok(unsafe {
            (devices.table.cuStreamWaitValue32_v2.unwrap())(devices.streams[1], devices.data + 4096, 1, 1)
        });
    };
    for (text, race) in [
        (HEAR.to_owned(), false),
        (HEAR.replace("ld.acquire.sys", "ld.relaxed.sys"), true),
        (HEAR.replace("ld.acquire.sys", "ld.acquire.gpu"), true),
    ] {
        let found = races(|devices| {
            devices.launch(&text, 1, 1, 1);
            fill(devices, 0);
            write(devices);
        });
        assert_eq!(found > 0, race, "{text}");
    }
    for (text, race) in [
        (TELL.to_owned(), false),
        (TELL.replace("st.release.sys", "st.relaxed.sys"), true),
        (TELL.replace("st.release.sys", "st.release.gpu"), true),
    ] {
        let found = races(|devices| {
            wait(devices);
            fill(devices, 1);
            devices.launch(&text, 0, 1, 1);
        });
        assert_eq!(found > 0, race, "{text}");
    }
}

/// A relaxed store tells what the stream did before its kernel, to everyone if the scope says so, and not what the kernel did.
#[test]
fn the_start_of_a_kernel_publishes_what_its_stream_did() {
    let relaxed = TELL.replace("st.release.sys", "st.relaxed.sys");
    let without_data = relaxed.replace("    st.weak.global.u32 [%data], 7;\n", "");
    assert_ne!(relaxed, without_data);
    for (text, race) in [
        (&without_data, false),
        (&without_data.replace("st.relaxed.sys", "st.relaxed.gpu"), true),
        (&relaxed, true),
    ] {
        let found = races(|devices| {
            devices.launch(HEAR, 1, 1, 1);
            fill(devices, 0);
            devices.launch(text, 0, 1, 1);
        });
        assert_eq!(found > 0, race, "{text}");
    }
}

/// Any thread of a kernel tells what the stream did before it.
#[test]
fn a_kernel_starts_in_each_of_its_threads() {
    let tell = |block: u32, thread: u32| {
        let chosen = format!(
            ".reg .u32 %where;
    .reg .pred %other;
    mov.u32 %where, %ctaid.x;
    setp.ne.u32 %other, %where, {block};
    @%other bra DONE;
    mov.u32 %where, %tid.x;
    setp.ne.u32 %other, %where, {thread};
    @%other bra DONE;
    st.relaxed.sys.global.u32 [%data+4096], 1;
DONE:"
        );
        TELL.replace("    st.weak.global.u32 [%data], 7;\n", "")
            .replace("st.release.sys.global.u32 [%data+4096], 1;", &chosen)
    };
    for (block, thread) in [(0, 0), (0, 1), (0, 32), (1, 0), (1, 63)] {
        let found = races(|devices| {
            devices.launch(HEAR, 1, 1, 1);
            fill(devices, 0);
            devices.launch(&tell(block, thread), 0, 2, 64);
        });
        assert_eq!(found, 0, "block {block}, thread {thread}");
    }
}

#[test]
fn a_copy_that_nothing_orders_races_with_the_kernel_that_writes() {
    let host = std::cell::RefCell::new([0_u8; 64]);
    for (synchronized, race) in [(true, false), (false, true)] {
        let found = races(|devices| {
            devices.launch(TELL, 0, 1, 1);
            // SAFETY: the stream is alive; the copy ends before `finish` returns, and `host` outlives it.
            unsafe {
                if synchronized {
                    ok((devices.table.cuStreamSynchronize)(devices.streams[0]));
                }
                devices.enter(1);
                let target = host.borrow_mut().as_mut_ptr().cast();
                let code = (devices.table.cuMemcpyDtoHAsync_v2)(target, devices.data, 64, devices.streams[1]);
                assert!(code == CUresult::CUDA_SUCCESS || race, "{code:?}");
            }
        });
        assert_eq!(found > 0, race);
    }
}

#[test]
fn memory_that_is_freed_and_allocated_again_is_new() {
    let found = races(|devices| {
        devices.enter(0);
        for _ in 0..4 {
            let mut memory = 0;
            // SAFETY: the memory is freed once, behind the fill.
            unsafe {
                ok((devices.table.cuMemAlloc_v2)(&raw mut memory, 4096));
                ok((devices.table.cuMemsetD32Async)(memory, 7, 16, devices.streams[0]));
                ok((devices.table.cuMemFree_v2)(memory));
            }
        }
    });
    assert_eq!(found, 0);
}

/// The host has seen a word of a kernel's, and then launches one that reads what the first wrote.
#[test]
fn the_host_knows_what_a_kernel_told_it_only_if_the_scopes_of_fence_and_store_include_it() {
    for (fence, write, race) in
        [("sys", "sys", false), ("gpu", "sys", true), ("sys", "gpu", true), ("sys", "cta", true)]
    {
        let found = races(|devices| {
            let mut pinned = ptr::null_mut();
            devices.enter(0);
            // SAFETY: the output is a local, and the memory one aligned word.
            ok(unsafe { (devices.table.cuMemHostAlloc)(&raw mut pinned, 4, 3) });
            // SAFETY: alive, because nobody frees it.
            let word = unsafe { &*pinned.cast::<std::sync::atomic::AtomicU32>() };
            word.store(0, std::sync::atomic::Ordering::SeqCst);
            let tell = format!(
                "mov.u64 %data, {};\n    fence.acq_rel.{fence};\n    st.relaxed.{write}.global.u32 [%data], 1;",
                pinned as u64
            );
            devices.launch(&TELL.replace("st.release.sys.global.u32 [%data+4096], 1;", &tell), 0, 1, 1);
            while word.load(std::sync::atomic::Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            devices.launch(READ, 1, 1, 1);
        });
        assert_eq!(found > 0, race, "a fence of scope {fence}, a store of {write}");
    }
}
