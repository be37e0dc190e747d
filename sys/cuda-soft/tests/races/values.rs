//! Values that streams write and wait for, beside kernels: strong accesses of their size.

use cuda_driver_sys::CUresult;

use crate::device::{Devices, kernel, ok, races};

/// A value of 4 or 8 bytes that the stream of device 0 writes, or waits for, at an offset in the memory.
#[derive(Clone, Copy, Debug)]
enum Value {
    Write(u32, u64),
    Wait(u32, u64),
}

impl Value {
    fn submit(self, devices: &Devices, device: usize) {
        devices.enter(device);
        let (table, stream) = (&devices.table, devices.streams[device]);
        // SAFETY: the memory is alive until the devices are dropped, and the place is aligned.
        let code = unsafe {
            match self {
                Self::Write(4, at) => {
                    (table.cuStreamWriteValue32_v2.unwrap())(stream, devices.data + at, 1, 0)
                }
                Self::Write(_, at) => {
                    (table.cuStreamWriteValue64_v2.unwrap())(stream, devices.data + at, 1, 0)
                }
                Self::Wait(4, at) => (table.cuStreamWaitValue32_v2.unwrap())(stream, devices.data + at, 1, 0),
                Self::Wait(_, at) => (table.cuStreamWaitValue64_v2.unwrap())(stream, devices.data + at, 1, 0),
            }
        };
        // The race may have been found already.
        assert!(matches!(code, CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_LAUNCH_FAILED), "{code:?}");
    }
}

/// Whether the value and the kernel, which runs on device 1 at the same time, race. Each comes first once.
fn race(text: &str, value: Value) -> bool {
    let body = format!("    mov.u64 %d1, 1;\n    {text}");
    let orders = [false, true].map(|kernel_first| {
        let found = races(|devices| {
            if matches!(value, Value::Wait(..)) {
                devices.enter(0);
                // SAFETY: the memory is alive until the devices are dropped.
                unsafe {
                    ok((devices.table.cuMemsetD8_v2)(devices.data + 4096, 1, 16));
                    ok((devices.table.cuCtxSynchronize)());
                }
            }
            let function = devices.load(&kernel(&body), 1);
            if kernel_first {
                devices.launch_loaded(function, 1, 1, 1);
            }
            value.submit(devices, 0);
            if !kernel_first {
                std::thread::sleep(std::time::Duration::from_millis(5));
                devices.launch_loaded(function, 1, 1, 1);
            }
        });
        !found.is_empty()
    });
    assert_eq!(orders[0], orders[1], "the kernel first, and the value first: {text} {value:?}");
    orders[0]
}

#[test]
fn a_value_races_with_strong_accesses_of_another_size_or_place() {
    use Value::{Wait, Write};
    for (text, value) in [
        ("ld.relaxed.sys.global.u64 %d0, [%flag];", Write(4, 4096)),
        ("ld.relaxed.sys.global.u64 %d0, [%flag];", Write(4, 4100)),
        ("st.relaxed.sys.global.u64 [%flag], %d1;", Write(4, 4096)),
        ("st.relaxed.sys.global.u64 [%flag], %d1;", Write(4, 4100)),
        ("st.relaxed.sys.global.u8 [%flag], 1;", Write(4, 4096)),
        ("ld.relaxed.sys.global.u32 %r0, [%flag];", Write(8, 4096)),
        ("st.relaxed.sys.global.u32 [%flag+4], 1;", Write(8, 4096)),
        ("atom.relaxed.sys.global.add.u32 %r0, [%flag+4], 1;", Write(8, 4096)),
        ("st.release.sys.global.u64 [%flag], %d1;", Wait(4, 4096)),
        ("st.release.sys.global.u32 [%flag], 1;", Wait(8, 4096)),
        ("ld.weak.global.u32 %r0, [%flag];", Write(4, 4096)),
        ("ld.relaxed.cta.global.u32 %r0, [%flag];", Write(4, 4096)),
    ] {
        assert!(race(text, value), "{text} {value:?}");
    }
}

#[test]
fn a_value_does_not_race_with_strong_accesses_of_its_size() {
    use Value::{Wait, Write};
    for (text, value) in [
        ("ld.relaxed.sys.global.u32 %r0, [%flag];", Write(4, 4096)),
        ("st.relaxed.sys.global.u32 [%flag], 1;", Write(4, 4096)),
        ("atom.relaxed.sys.global.add.u32 %r0, [%flag], 1;", Write(4, 4096)),
        ("ld.relaxed.sys.global.u64 %d0, [%flag];", Write(8, 4096)),
        ("red.relaxed.sys.global.add.u64 [%flag], 1;", Write(8, 4096)),
        ("ld.relaxed.sys.global.u32 %r0, [%flag+4];", Write(4, 4096)),
    ] {
        assert!(!race(text, value), "{text} {value:?}");
    }
    // The wait takes a value that is there already.
    assert!(!race("st.relaxed.sys.global.u32 [%flag+4], 1;", Wait(4, 4096)));
}

/// A FIFO is closed in this way (docs/memory-model.md, "Closing a FIFO").
#[test]
fn the_upper_half_of_a_word_may_be_written_while_kernels_add_to_it_and_by_no_others() {
    const UPPER: Value = Value::Write(4, 4100);
    for text in
        ["atom.relaxed.gpu.global.add.u64 %d0, [%flag], %d1;", "red.relaxed.sys.global.add.u64 [%flag], %d1;"]
    {
        // The kernel runs on the other device, which the scope of the first does not include.
        assert_eq!(race(text, UPPER), text.contains(".gpu"), "{text}");
        assert!(race(text, Value::Write(4, 4096)), "the lower half: {text}");
    }
    let found = races(|devices| {
        let add = devices.load(&kernel("    atom.relaxed.gpu.global.add.u64 %d0, [%flag], 1;"), 0);
        let other = devices.stream(0);
        UPPER.submit(devices, 0);
        devices.launch_on(other, add, 0, 2, 32);
        UPPER.submit(devices, 0);
    });
    assert!(found.is_empty(), "{found:?}");
    for text in [
        "atom.relaxed.sys.global.exch.b64 %d0, [%flag], %d1;",
        "atom.relaxed.sys.global.cas.b64 %d0, [%flag], %d1, 0;",
        "atom.relaxed.sys.global.and.b64 %d0, [%flag], %d1;",
    ] {
        assert!(race(text, UPPER), "{text}");
    }
}

#[test]
fn values_of_two_streams_race_if_their_sizes_differ() {
    for (second, race) in
        [(Value::Write(4, 4096), false), (Value::Write(8, 4096), true), (Value::Write(4, 4100), false)]
    {
        let found = races(|devices| {
            Value::Write(4, 4096).submit(devices, 0);
            second.submit(devices, 1);
        });
        assert_eq!(!found.is_empty(), race, "{second:?}");
    }
}
