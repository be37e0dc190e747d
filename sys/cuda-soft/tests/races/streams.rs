//! Streams, events, copies and the host's own waits.

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_driver_sys::{CUevent, CUresult};

use crate::device::{Devices, kernel, ok, races, races_on_host};

const READ: &str = "    ld.weak.global.u32 %r0, [%data];";

/// Writes, and tells of it by a flag.
const TELL: &str = "
    st.weak.global.u32 [%data], 7;
    st.release.sys.global.u32 [%flag], 1;";

/// Waits for the flag, and reads.
const HEAR: &str = "
WAIT:
    ld.acquire.sys.global.u32 %r0, [%flag];
    setp.ne.u32 %p0, %r0, 1;
    @%p0 bra WAIT;
    ld.weak.global.u32 %r0, [%data];";

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
    let wait = |devices: &Devices| devices.wait(0);
    let nothing = |_: &Devices| {};
    let races_with = |order: &dyn Fn(&Devices)| {
        races(|devices| {
            fill(devices, 0);
            order(devices);
            devices.launch(READ, 1, 1, 1);
        })
    };
    assert_eq!((races_with(&event), races_with(&wait)), (vec![], vec![]));
    assert!(!races_with(&nothing).is_empty());
}

/// A program that destroys streams has not waited for their work.
#[test]
fn work_of_a_destroyed_stream_is_not_known_because_another_stream_is_destroyed() {
    let found = races(|devices| {
        let read = devices.load(&kernel(READ), 1);
        for value in [7, 8] {
            let stream = devices.stream(0);
            if value == 7 {
                // SAFETY: the memory is alive until the devices are dropped.
                ok(unsafe { (devices.table.cuMemsetD32Async)(devices.data, value, 16, stream) });
                // It has ended when the other stream is destroyed.
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            // SAFETY: the stream was made just now.
            ok(unsafe { (devices.table.cuStreamDestroy_v2)(stream) });
        }
        devices.launch_loaded(read, 1, 1, 1);
    });
    assert!(!found.is_empty());
}

/// Work that waits for an event that a graph records is behind what is before the event in the graph.
#[test]
fn an_event_that_a_graph_records_orders_what_is_before_it() {
    for (before, race) in [(true, false), (false, true)] {
        let found = races(|devices| {
            let mut event: CUevent = ptr::null_mut();
            let read = devices.load(&kernel(READ), 1);
            devices.enter(0);
            // SAFETY: the output is a local.
            ok(unsafe { (devices.table.cuEventCreate)(&raw mut event, 2) });
            let (opener, gate) = (devices.stream(0), devices.data + 8192);
            devices.launch_as_graph(|| {
                // The graph is launched, and runs when others have been told to wait for it.
                // SAFETY: the memory is alive until the devices are dropped, and the word is aligned.
                ok(unsafe {
                    (devices.table.cuStreamWaitValue32_v2.unwrap())(devices.streams[0], gate, 1, 1)
                });
                if before {
                    fill(devices, 0);
                }
                // SAFETY: the event and the stream are alive.
                ok(unsafe { (devices.table.cuEventRecordWithFlags)(event, devices.streams[0], 1) });
                if !before {
                    fill(devices, 0);
                }
            });
            devices.enter(1);
            // SAFETY: as above.
            ok(unsafe { (devices.table.cuStreamWaitEvent)(devices.streams[1], event, 0) });
            devices.launch_loaded(read, 1, 1, 1);
            devices.enter(0);
            // SAFETY: as above.
            ok(unsafe { (devices.table.cuStreamWriteValue32_v2.unwrap())(opener, gate, 1, 0) });
        });
        assert_eq!(!found.is_empty(), race);
    }
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
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn stream_values_publish_and_acquire() {
    let wait = |devices: &Devices| {
        devices.enter(1);
        // SAFETY: the memory is alive until the devices are dropped, and the flag is aligned.
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
            devices.stream_writes(0, 4096, 1);
        });
        assert_eq!(!found.is_empty(), race, "{text}");
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
        assert_eq!(!found.is_empty(), race, "{text}");
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
        assert_eq!(!found.is_empty(), race, "{text}");
    }
}

/// Any thread of a kernel tells what the stream did before it.
#[test]
fn a_kernel_starts_in_each_of_its_threads() {
    let tell = |block: u32, thread: u32| {
        let chosen = format!(
            "setp.ne.u32 %p0, %block, {block};
    @%p0 bra DONE;
    setp.ne.u32 %p0, %tid, {thread};
    @%p0 bra DONE;
    st.relaxed.sys.global.u32 [%flag], 1;"
        );
        TELL.replace("    st.weak.global.u32 [%data], 7;\n", "")
            .replace("st.release.sys.global.u32 [%flag], 1;", &chosen)
    };
    for (block, thread) in [(0, 0), (0, 1), (0, 32), (1, 0), (1, 63)] {
        let found = races(|devices| {
            devices.launch(HEAR, 1, 1, 1);
            fill(devices, 0);
            devices.launch(&tell(block, thread), 0, 2, 64);
        });
        assert!(found.is_empty(), "block {block}, thread {thread}: {found:?}");
    }
}

/// The host's word publishes what the host knows. An atomic operation on it passes that on, a store over it does not. The reader
/// polls another word: it would acquire from the host's own value.
#[test]
fn an_update_of_the_hosts_word_passes_on_what_the_host_knows() {
    for (update, race) in [
        ("atom.add.relaxed.sys.global.u32 %r0, [%flag], 1;", false),
        ("red.add.relaxed.sys.global.u32 [%flag], 1;", false),
        ("st.relaxed.sys.global.u32 [%flag], 2;", true),
    ] {
        let text = format!(
            "
    setp.ne.u32 %p0, %block, 0;
    @%p0 bra READ;
UPDATE:
    ld.relaxed.sys.global.u32 %r0, [%flag];
    setp.ne.u32 %p0, %r0, 1;
    @%p0 bra UPDATE;
    {update}
    st.relaxed.sys.global.u32 [%flag+128], 1;
    bra DONE;
READ:
    ld.relaxed.sys.global.u32 %r0, [%flag+128];
    setp.ne.u32 %p0, %r0, 1;
    @%p0 bra READ;
    ld.acquire.sys.global.u32 %r0, [%flag];
    ld.weak.global.u32 %r0, [%data];"
        );
        let found = races_on_host(|devices| {
            devices.launch(&text, 1, 2, 1);
            fill(devices, 0);
            devices.wait(0);
            devices.store(4096, 1);
        });
        assert_eq!(!found.is_empty(), race, "{update} {found:?}");
    }
}

#[test]
fn a_copy_that_nothing_orders_races_with_the_kernel_that_writes() {
    let host = std::cell::RefCell::new([0_u8; 64]);
    for (synchronized, race) in [(true, false), (false, true)] {
        let found = races(|devices| {
            devices.launch(TELL, 0, 1, 1);
            if synchronized {
                devices.wait(0);
            }
            devices.enter(1);
            // SAFETY: the stream is alive; the copy ends before `races` returns, and `host` outlives it.
            unsafe {
                let target = host.borrow_mut().as_mut_ptr().cast();
                let code = (devices.table.cuMemcpyDtoHAsync_v2)(target, devices.data, 64, devices.streams[1]);
                assert!(code == CUresult::CUDA_SUCCESS || race, "{code:?}");
            }
        });
        assert_eq!(!found.is_empty(), race);
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
    assert!(found.is_empty(), "{found:?}");
}

/// The host has seen a word of a kernel's, and then launches one that reads what the first wrote.
#[test]
fn the_host_knows_what_a_kernel_told_it_only_if_the_scopes_of_fence_and_store_include_it() {
    for (fence, write, race) in
        [("sys", "sys", false), ("gpu", "sys", true), ("sys", "gpu", true), ("sys", "cta", true)]
    {
        for word in [pinned_word, registered_word] {
            let found = races(|devices| {
                let word = word(devices);
                let tell = format!(
                    "mov.u64 %data, {};\n    fence.acq_rel.{fence};\n    st.relaxed.{write}.global.u32 [%data], 1;",
                    word.as_ptr() as u64
                );
                devices.launch(&TELL.replace("st.release.sys.global.u32 [%flag], 1;", &tell), 0, 1, 1);
                while word.load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
                devices.launch(READ, 1, 1, 1);
            });
            assert_eq!(!found.is_empty(), race, "a fence of scope {fence}, a store of {write}");
        }
    }
}

/// A word of the host's memory, zero at first, that both devices access. Nobody frees it.
fn pinned_word(devices: &Devices) -> &'static AtomicU32 {
    let mut memory = ptr::null_mut();
    devices.enter(0);
    // SAFETY: the output is a local.
    ok(unsafe { (devices.table.cuMemHostAlloc)(&raw mut memory, 4, 3) });
    // SAFETY: aligned, and alive because nobody frees it.
    let word = unsafe { &*memory.cast::<AtomicU32>() };
    word.store(0, Ordering::SeqCst);
    word
}

/// The same, in memory of the program that it registers. The registration ends with the context.
fn registered_word(devices: &Devices) -> &'static AtomicU32 {
    let word: &AtomicU32 = Box::leak(Box::default());
    devices.enter(0);
    // SAFETY: the word lives as long as the process.
    ok(unsafe { (devices.table.cuMemHostRegister_v2)(word.as_ptr().cast(), 4, 3) });
    word
}

/// Words that the program registers one by one are places of their own, and each is one for all.
#[test]
fn registered_words_are_told_apart() {
    for (same, race) in [(false, false), (true, true)] {
        let found = races(|devices| {
            let first = registered_word(devices);
            let second = if same { first } else { registered_word(devices) };
            for (device, word) in [(0, first), (1, second)] {
                let write =
                    format!("    mov.u64 %at, {};\n    st.weak.global.u32 [%at], 1;", word.as_ptr() as u64);
                devices.launch(&write, device, 1, 1);
            }
        });
        assert_eq!(!found.is_empty(), race, "{found:?}");
    }
}
