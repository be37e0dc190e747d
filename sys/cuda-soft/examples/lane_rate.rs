//! Measures the lane-instructions per second of one core, by kind of work.
//!
//! The time is the processor time of the process, so a busy machine does not affect the result.
//!
//! `cargo run -p aqueduct-cuda-soft --release --example lane_rate`

use std::error::Error;
use std::ffi::{CString, c_void};
use std::time::Duration;

use cuda_driver_sys::{CUresult, DriverTable};

/// A loop body: name, instructions, and number of repetitions inside the loop.
struct Work {
    name: &'static str,
    body: &'static [&'static str],
    unroll: u32,
}

const WORKS: [Work; 6] = [
    Work {
        name: "32-bit integers",
        body: &["mad.lo.u32 %r3, %r3, 5, %r1;", "xor.b32 %r4, %r4, %r3;", "add.u32 %r3, %r3, %r4;"],
        unroll: 16,
    },
    Work {
        name: "64-bit integers",
        body: &["add.u64 %rd4, %rd4, %rd5;", "xor.b64 %rd5, %rd5, %rd4;", "shl.b64 %rd6, %rd4, 3;"],
        unroll: 16,
    },
    Work { name: "f32 fma", body: &["fma.rn.f32 %f1, %f1, %f2, %f3;", "add.f32 %f3, %f3, %f1;"], unroll: 16 },
    Work { name: "f16x2 add", body: &["add.f16x2 %r3, %r3, %r4;"], unroll: 16 },
    Work {
        name: "copy of 16 bytes per lane",
        body: &[
            "ld.global.v2.u64 {%rd4, %rd5}, [%rd2];",
            "st.global.v2.u64 [%rd3], {%rd4, %rd5};",
            "add.u64 %rd2, %rd2, 0;",
        ],
        unroll: 8,
    },
    Work {
        name: "packets of 16 bytes per lane",
        body: &[
            "st.relaxed.sys.global.v2.u64 [%rd3], {%rd4, %rd5};",
            "ld.relaxed.sys.global.v2.u64 {%rd6, %rd7}, [%rd3];",
            "setp.eq.u64 %p2, %rd6, %rd4;",
            "vote.sync.all.pred %p3, %p2, 0xffffffff;",
        ],
        unroll: 8,
    },
];

const THREADS: u32 = 256;
const BYTES: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let table = cuda_soft::driver_table();
    let mut device = 0;
    let mut context = std::ptr::null_mut();
    let mut buffer = 0;
    // SAFETY: the calls of a program that uses one device, with pointers to its own variables.
    unsafe {
        check((table.cuInit)(0))?;
        check((table.cuDeviceGet)(&raw mut device, 0))?;
        check((table.cuDevicePrimaryCtxRetain)(&raw mut context, device))?;
        check((table.cuCtxSetCurrent)(context))?;
        check((table.cuMemAlloc_v2)(&raw mut buffer, 2 * BYTES))?;
    }
    println!("{:<32} {:>14} {:>14}", "# work", "M lane-instr/s", "ns/warp-instr");
    for work in &WORKS {
        let rate = measure(&table, work, buffer)?;
        println!("{:<32} {:>14.0} {:>14.1}", work.name, rate / 1e6, 32e9 / rate);
    }
    Ok(())
}

/// Measures the lane-instructions per second of one block, which runs on one core.
fn measure(table: &DriverTable, work: &Work, mut buffer: u64) -> Result<f64, Box<dyn Error>> {
    let body = work.body.join("\n        ");
    let body = vec![body; work.unroll as usize].join("\n        ");
    let text = CString::new(format!(
        ".version 7.0\n.target sm_70\n.address_size 64\n
.visible .entry work(.param .u64 buffer, .param .u32 turns)
{{
        .reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %rd<8>; .reg .f32 %f<4>;
        ld.param.u64 %rd1, [buffer];
        ld.param.u32 %r2, [turns];
        mov.u32 %r1, %tid.x;
        mul.wide.u32 %rd2, %r1, 16;
        add.u64 %rd2, %rd2, %rd1;
        add.u64 %rd3, %rd2, {BYTES};
        mov.u32 %r3, %r1;
        mov.u32 %r4, 0x3c003c00;
        mov.u64 %rd4, 1;
        mov.u64 %rd5, 2;
        mov.f32 %f1, 0f3f800000;
        mov.f32 %f2, 0f3f000000;
        mov.f32 %f3, 0f3e800000;
turn:
        {body}
        sub.u32 %r2, %r2, 1;
        setp.ne.u32 %p1, %r2, 0;
        @%p1 bra turn;
        st.global.u32 [%rd3], %r3;
        st.global.f32 [%rd3+4], %f3;
        st.global.u64 [%rd3+8], %rd5;
        ret;
}}\n"
    ))?;
    let mut module = std::ptr::null_mut();
    let mut function = std::ptr::null_mut();
    // SAFETY: PTX text that ends in a zero, and a name likewise.
    unsafe {
        check((table.cuModuleLoadData)(&raw mut module, text.as_ptr().cast()))?;
        check((table.cuModuleGetFunction)(&raw mut function, module, c"work".as_ptr()))?;
    }
    let mut run = |mut turns: u32| -> Result<f64, Box<dyn Error>> {
        let mut params: [*mut c_void; 2] = [(&raw mut buffer).cast(), (&raw mut turns).cast()];
        let start = processor_time();
        // SAFETY: two parameters of the kernel's types, alive until the launch returns; the
        // kernel stays within the buffer.
        unsafe {
            let (stream, extra) = (std::ptr::null_mut(), std::ptr::null_mut());
            check((table.cuLaunchKernel)(
                function,
                1,
                1,
                1,
                THREADS,
                1,
                1,
                0,
                stream,
                params.as_mut_ptr(),
                extra,
            ))?;
            check((table.cuCtxSynchronize)())?;
        }
        Ok((processor_time() - start).as_secs_f64())
    };
    run(10)?;
    let per_turn = work.body.len() as f64 * f64::from(work.unroll) + 3.0;
    let mut turns = 100;
    loop {
        let seconds = run(turns)?;
        if seconds > 0.2 {
            return Ok(f64::from(turns) * per_turn * f64::from(THREADS) / seconds);
        }
        turns *= 3;
    }
}

fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec that lives here.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn check(result: CUresult) -> Result<(), Box<dyn Error>> {
    if result.0 == 0 { Ok(()) } else { Err(format!("CUDA error {}", result.0).into()) }
}
