//! Launches whose arguments are not those of the kernel.

use std::sync::Arc;

use aqueduct_ptx::{Target, catalog, instantiate};
use cuda_driver_sys::{CUfunction, CUresult};

use super::{Calls, SOON, driver};
use crate::ErrorKind;
use crate::gpu::{
    Context, Device, Driver, Function, GpuBuffer, KernelArg, LaunchConfig, Module, Stream, arg,
};

/// `store(u64 p, u32 v, 12 bytes)`: writes v to p. `nothing()` has no parameters.
const PTX: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry store(.param .u64 p, .param .u32 v, .param .align 4 .b8 more[12])
{
    .reg .u32 %r<2>;
    .reg .u64 %a<2>;
    ld.param.u64 %a1, [p];
    ld.param.u32 %r1, [v];
    st.weak.global.u32 [%a1], %r1;
    ret;
}
.visible .entry nothing() { ret; }
";

/// The sizes of a kernel's parameters, as the driver says them.
fn ask(context: &Context, kernel: CUfunction) -> Box<[usize]> {
    let _entered = context.enter().unwrap();
    let get = context.driver().table().cuFuncGetParamInfo.expect("the software device has it");
    let next = |index| {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the outputs are live, and the caller's kernel is loaded in this context, which is current.
        let result = unsafe { get(kernel, index, &raw mut offset, &raw mut size) };
        (result == CUresult::CUDA_SUCCESS).then_some(size)
    };
    (0..).map_while(next).collect()
}

fn on(driver: &Driver) -> Context {
    Context::new(&Device::new(driver, 0).unwrap()).unwrap()
}

/// Loaded, and linked.
fn both_ways(context: &Context) -> [Module; 2] {
    [Module::load_ptx(context, PTX).unwrap(), Module::link_ptx(context, &[("the kernels", PTX)]).unwrap()]
}

#[test]
fn the_wrong_number_or_size_of_arguments_is_refused_before_anything_is_enqueued() {
    let calls = Arc::new(Calls::default());
    let context = on(&driver().with_hooks(calls.clone()));
    let (stream, buffer) = (Stream::new(&context).unwrap(), GpuBuffer::new(&context, 4).unwrap());
    let (p, v, more) = (buffer.ptr(), 7_u32, [0_u32; 3]);
    let (p, v, more) = (arg(&p), arg(&v), arg(&more));
    for module in both_ways(&context) {
        let [store, nothing] = ["store", "nothing"].map(|name| module.function(name).unwrap());
        buffer.fill(0, SOON).unwrap();
        let launched = calls.of("cuLaunchKernel");
        let launch = |function: &Function, args: &[KernelArg<'_>]| {
            // SAFETY: what is not refused has the kernel's arguments; the buffer lives to the end of the test.
            unsafe { function.launch(&stream, &LaunchConfig::linear(1, 1), args) }
        };
        let refused = |function: &Function, args: &[KernelArg<'_>], message: &str| {
            let error = launch(function, args).unwrap_err();
            assert_eq!((error.kind(), error.op()), (ErrorKind::InvalidUsage, "launch"));
            assert!(error.message().contains(message), "{error}");
        };
        refused(&store, &[], "kernel store: arguments: 0, parameters: 3");
        refused(&store, &[p, v], "kernel store: arguments: 2, parameters: 3");
        refused(&store, &[p, v, more, v], "kernel store: arguments: 4, parameters: 3");
        refused(&store, &[p, p, more], "kernel store: argument 2 of 3 has 8 bytes, its parameter has 4");
        refused(&store, &[p, v, v], "kernel store: argument 3 of 3 has 4 bytes, its parameter has 12");
        refused(&nothing, &[v], "kernel nothing: arguments: 1, parameters: 0");
        assert_eq!(calls.of("cuLaunchKernel"), launched, "the driver heard of one");
        launch(&nothing, &[]).unwrap();
        launch(&store, &[p, v, more]).unwrap();
        assert_eq!(calls.of("cuLaunchKernel"), launched + 2);
        stream.synchronize(SOON).unwrap();
        let mut seen = [0_u32];
        buffer.download(0, &mut seen, SOON).unwrap();
        assert_eq!(seen, [7]);
    }
}

#[test]
fn the_text_says_what_the_driver_says() {
    let context = on(&driver());
    let target = Target::for_device(9, 0, 12_040).unwrap();
    let rows = catalog::rows().map(|row| instantiate(row.name, target, &[]).unwrap());
    let texts = rows.map(|instance| (instance.text, instance.entries)).chain([
        (PTX.to_owned(), vec!["store".to_owned(), "nothing".to_owned()]),
        (
            include_str!("../../../../../ptx/examples/nvcc/ring_all_gather.sm_75.ptx").to_owned(),
            vec!["ring_all_gather".to_owned()],
        ),
    ]);
    let mut compared = 0;
    for (text, entries) in texts {
        let module = Module::load_ptx(&context, &text).unwrap();
        for entry in entries {
            let function = module.function(&entry).unwrap();
            let read = function.inner.params.as_deref();
            assert_eq!(read, Some(&*ask(&context, function.raw())), "{entry}");
            compared += 1;
        }
    }
    assert!(compared > 20, "{compared} kernels");
}
