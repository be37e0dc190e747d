//! Modules, launches, and what is left after a kernel has failed.

use std::sync::Arc;

use super::{SOON, context};
use crate::ErrorKind;
use crate::deadline::{Backoff, Deadline};
use crate::gpu::{Context, Function, GpuBuffer, LaunchConfig, Module, Stream, arg};
use crate::sync::{AtomicUsize, Ordering};

/// `scale(u64 p, u32 n, u32 k)`: multiplies each of n words at p by k. `wild()`: stores to address 64. `two_blocks()`
/// has 40000 bytes of shared memory.
const PTX: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 8 .u64 counter;

.visible .entry scale(.param .u64 p, .param .u32 n, .param .u32 k)
{
    .reg .pred %q;
    .reg .u32 %r<8>;
    .reg .u64 %a<4>;
    ld.param.u64 %a1, [p];
    ld.param.u32 %r1, [n];
    ld.param.u32 %r2, [k];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.u32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %q, %r6, %r1;
    @%q bra DONE;
    cvta.to.global.u64 %a2, %a1;
    mul.wide.u32 %a3, %r6, 4;
    add.u64 %a2, %a2, %a3;
    ld.global.u32 %r7, [%a2];
    mul.lo.u32 %r7, %r7, %r2;
    st.global.u32 [%a2], %r7;
DONE:
    ret;
}

.visible .entry wild()
{
    .reg .u64 %a<2>;
    mov.u64 %a1, 64;
    st.global.u64 [%a1], %a1;
    ret;
}
";

fn function(context: &Context, name: &str) -> Function {
    Module::load_ptx(context, PTX).unwrap().function(name).unwrap()
}

#[test]
fn a_kernel_runs_on_what_it_is_given() {
    let context = context(0);
    let scale = function(&context, "scale");
    assert!(scale.attributes().max_threads_per_block >= 32);
    let stream = Stream::new(&context).unwrap();
    let n = 1000_u32;
    let buffer = Arc::new(GpuBuffer::new(&context, n as usize * 4).unwrap());
    let data: Vec<u32> = (0..n).collect();
    buffer.upload(0, &data, SOON).unwrap();
    let config = LaunchConfig::linear(n.div_ceil(128), 128);
    for cooperative in [false, true] {
        let config = LaunchConfig { cooperative, ..config };
        // SAFETY: the parameters are scale's; the buffer has n words and lives to the end of the test.
        unsafe { scale.launch(&stream, &config, &[arg(&buffer.ptr()), arg(&n), arg(&3_u32)]) }.unwrap();
    }
    stream.synchronize(SOON).unwrap();
    let mut seen = vec![0_u32; n as usize];
    buffer.download(0, &mut seen, SOON).unwrap();
    assert!(seen.iter().zip(&data).all(|(s, d)| *s == d * 9));
}

#[test]
fn ptx_that_does_not_assemble_shows_the_log_and_the_line() {
    let broken = PTX.replace("mul.lo.u32 %r7", "mulll.lo.u32 %r7");
    let error = Module::load_ptx(&context(0), &broken).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cuda);
    assert!(error.message().contains("mulll"), "{error}");
    assert!(error.message().contains("PTX compiler says"), "{error}");
}

const CALLEE: &str = ".version 7.0
.target sm_70
.address_size 64
.visible .func (.reg .u32 %r) twice(.reg .u32 %x)
{
    shl.b32 %r, %x, 1;
    ret;
}
";
const CALLER: &str = ".version 7.0
.target sm_70
.address_size 64
.extern .func (.reg .u32 %r) twice(.reg .u32 %x);
.visible .entry doubled(.param .u64 out)
{
    .reg .u64 %out;
    .reg .u32 %v;
    ld.param.u64 %out, [out];
    mov.u32 %v, 21;
    call.uni (%v), twice, (%v);
    st.weak.global.u32 [%out], %v;
    ret;
}
";

#[test]
fn texts_that_call_each_other_are_linked() {
    let context = context(0);
    let stream = Stream::new(&context).unwrap();
    let parts = [("the caller", CALLER), ("the callee", CALLEE)];
    let doubled = Module::link_ptx(&context, &parts).unwrap().function("doubled").unwrap();
    let buffer = GpuBuffer::new(&context, 4).unwrap();
    // SAFETY: the one parameter is the address of a word that lives to the end of the test.
    unsafe { doubled.launch(&stream, &LaunchConfig::linear(1, 1), &[arg(&buffer.ptr())]) }.unwrap();
    stream.synchronize(SOON).unwrap();
    let mut seen = [0_u32];
    buffer.download(0, &mut seen, SOON).unwrap();
    assert_eq!(seen, [42]);

    let alone = Module::link_ptx(&context, &parts[..1]).unwrap_err();
    assert!(alone.message().contains("twice"), "{alone}");
    let broken = CALLEE.replace("shl.b32", "shll.b32");
    let error = Module::link_ptx(&context, &[parts[0], ("the callee", &broken)]).unwrap_err();
    assert_eq!((error.kind(), error.op()), (ErrorKind::Cuda, "cuLinkAddData_v2"));
    assert!(error.message().starts_with("the callee: ") && error.message().contains("shll"), "{error}");
}

#[test]
fn a_module_in_use_is_found_again_by_its_key() {
    let context = context(0);
    let load = |key, text: &str| Module::load_cached(&context, key, || Module::load_ptx(&context, text));
    let first = load("a", PTX).unwrap();
    let again = load("a", "not looked at").unwrap();
    assert_eq!(first.global("counter").unwrap(), again.global("counter").unwrap());
    assert_ne!(load("b", PTX).unwrap().global("counter").unwrap().0, first.global("counter").unwrap().0);
    drop((first, again));
    assert!(load("a", "not PTX").is_err(), "nobody used it any more");
}

#[test]
fn different_keys_are_loaded_at_a_time_and_the_same_one_once() {
    let context = context(0);
    let loads = AtomicUsize::new(0);
    let load = |key| {
        Module::load_cached(&context, key, || {
            loads.fetch_add(1, Ordering::Relaxed);
            // Nobody passes alone.
            let (soon, mut backoff) = (Deadline::after(SOON), Backoff::new());
            while loads.load(Ordering::Relaxed) < 2 {
                soon.check("load", "the other key, which is not loaded meanwhile")?;
                backoff.pause(soon);
            }
            Module::load_ptx(&context, PTX)
        })
        .unwrap()
    };
    let global = |module: Module| module.global("counter").unwrap().0;
    let found = std::thread::scope(|scope| {
        let threads = ["a", "b", "a", "b"].map(|key| scope.spawn(move || load(key)));
        threads.map(|thread| thread.join().unwrap())
    });
    assert_eq!(loads.into_inner(), 2);
    let [a, b, same_a, same_b] = found.map(global);
    assert_eq!((a, b), (same_a, same_b));
    assert_ne!(a, b);
}

#[test]
fn names_that_are_not_in_the_module_are_said() {
    let module = Module::load_ptx(&context(0), PTX).unwrap();
    assert!(module.function("nothing").unwrap_err().message().contains("no kernel named nothing"));
    assert!(module.global("nothing").unwrap_err().message().contains("no global variable named nothing"));
    assert_eq!(module.global("counter").unwrap().1, 8);
}

#[test]
fn shapes_that_do_not_fit_are_refused_before_the_launch() {
    let context = context(0);
    let scale = function(&context, "scale");
    let refused = |config: LaunchConfig| {
        let error = scale.validate(&config).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage);
        error.message().to_owned()
    };
    assert!(refused(LaunchConfig::linear(0, 32)).contains("must not contain 0"));
    assert!(refused(LaunchConfig::linear(1, 4096)).contains("exceeds the device's"));
    assert!(
        refused(LaunchConfig { block: [64, 64, 1], ..LaunchConfig::linear(1, 1) }).contains("4096 threads")
    );
    assert!(refused(LaunchConfig { grid: [1, 100_000, 1], ..LaunchConfig::linear(1, 1) }).contains("grid"));
    assert!(
        refused(LaunchConfig::linear(1, 32).with_shared_bytes(1 << 30)).contains("bytes of shared memory")
    );

    let most = scale.max_resident_blocks(256, 0).unwrap();
    scale.validate(&LaunchConfig::linear(most, 256).cooperative()).unwrap();
    let text = refused(LaunchConfig::linear(most + 1, 256).cooperative());
    assert!(text.contains(&format!("launch at most {most} blocks")), "{text}");
    scale.validate(&LaunchConfig::linear(most + 1, 256)).unwrap();
}

#[test]
fn a_stream_of_another_context_is_refused() {
    let scale = function(&context(0), "scale");
    let stream = Stream::new(&context(1)).unwrap();
    // SAFETY: the launch is refused before the parameters are looked at.
    let error = unsafe { scale.launch(&stream, &LaunchConfig::linear(1, 1), &[]) }.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidUsage);
}

#[test]
fn a_lost_context_is_said_and_drops_quietly() {
    // A device that no other test uses: its context is lost for the rest of the process.
    let context = context(7);
    let stream = Stream::new(&context).unwrap();
    let wild = function(&context, "wild");
    let buffer = Arc::new(GpuBuffer::new(&context, 64).unwrap());
    // SAFETY: wild has no parameters. That its store is invalid is what the test is about: the device reports it.
    unsafe { wild.launch(&stream, &LaunchConfig::linear(1, 1), &[]) }.unwrap();
    stream.retain(buffer.clone()).unwrap();
    let error = stream.synchronize(SOON).unwrap_err();
    assert!(crate::gpu::is_sticky(error.code()), "{error}");
    assert!(error.message().contains("context is lost"), "{error}");
    assert!(context.is_lost());
    let weak = Arc::downgrade(&buffer);
    drop((stream, buffer, wild));
    assert!(weak.upgrade().is_some(), "what a lost context used is leaked, not freed");
    assert!(GpuBuffer::new(&context, 64).is_err());
}
