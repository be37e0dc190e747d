//! Drivers, devices, PTX and launches that cannot be.

use std::path::Path;

use super::*;

#[test]
fn a_device_that_does_not_exist() {
    let driver = Machine::Software.driver();
    let count = Device::count(&driver).unwrap();
    for ordinal in [count, u32::MAX] {
        let words =
            [format!("there is no device {ordinal}; the devices are 0 ("), format!("{} (", count - 1)];
        refused(Device::new(&driver, ordinal), ErrorKind::InvalidUsage, &[&words[0], &words[1]]);
    }
}

#[test]
fn no_driver() {
    let nowhere = "/nonexistent/libcuda.so.1";
    let words = [nowhere, "No such file", "install the NVIDIA driver"];
    refused(Driver::load(Some(Path::new(nowhere))), ErrorKind::Unsupported, &words);
}

#[test]
fn a_driver_that_lacks_functions() {
    // Another library: every required function is missing and is named with its CUDA version.
    let words =
        ["libc.so.6 lacks required functions", "cuInit (CUDA 2.0)", "cuLaunchKernel (CUDA 4.0)", "update"];
    refused(Driver::load(Some(Path::new("libc.so.6"))), ErrorKind::Unsupported, &words);

    // An old driver: a missing function is named where it is needed, and everything else works.
    let mut table = cuda_soft::driver_table();
    table.cuMemCreate = None;
    table.cuStreamWriteValue64_v2 = None;
    let driver = Driver::from_table(table, "an old driver").unwrap();
    for missing in ["cuMemCreate", "cuStreamWriteValue64_v2"] {
        assert!(driver.missing().contains(&missing), "{:?}", driver.missing());
    }
    let context = context(&driver, 0);
    let words = ["an old driver", "has no cuMemCreate", "update the NVIDIA driver"];
    refused(PhysicalAllocation::create(&context, 64, HandleTypes::FD), ErrorKind::Unsupported, &words);
    let legacy = BufferOptions { zeroed: true, handles: HandlePolicy::Legacy };
    let buffer = Arc::new(GpuBuffer::with_options(&context, 64, legacy).unwrap());
    let stream = Stream::new(&context).unwrap();
    let word = buffer.slice(0..8).unwrap();
    refused(
        stream.write_value64(&word, 1),
        ErrorKind::Unsupported,
        &["has no cuStreamWriteValue64_v2", "update"],
    );
    stream.fill(&word, 7).unwrap();
    stream.synchronize(soon()).unwrap();
    // An allocation that needs no particular handle still works.
    let automatic = BufferOptions { zeroed: true, handles: HandlePolicy::Auto };
    GpuBuffer::with_options(&context, 64, automatic).expect("a plain allocation takes its place");
}

#[test]
fn ptx_that_does_not_assemble() {
    let context = device();
    let text = "\
.version 7.0
.target sm_70
.address_size 64
.visible .entry bad()
{
    .reg .u32 %r<2>;
    addd.u32 %r0, %r1, 1;
    ret;
}
";
    let error =
        refused(Module::load_ptx(&context, text), ErrorKind::Cuda, &["the PTX compiler says", "addd"]);
    assert!(error.to_string().ends_with("line 7 is: addd.u32 %r0, %r1, 1;"), "{error}");
    assert_ne!(error.code(), 0);
    refused(Module::load_ptx(&context, "no PTX at all"), ErrorKind::Cuda, &["cuModuleLoadDataEx"]);
    refused(Module::load_ptx(&context, "a\0b"), ErrorKind::InvalidUsage, &["NUL"]);
    let good = text.replace("addd", "add");
    let module = Module::load_ptx(&context, &good).expect("the context still works");
    refused(module.function("worse"), ErrorKind::InvalidUsage, &["no kernel named worse"]);
}

#[test]
fn launches_that_the_device_cannot_run() {
    let context = device();
    let text = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nop()\n{\n    ret;\n}\n";
    let kernel = Module::load_ptx(&context, text).unwrap().function("nop").unwrap();
    let stream = Stream::new(&context).unwrap();
    // SAFETY: the kernel has no parameters and touches nothing.
    let launch = |config| unsafe { kernel.launch(&stream, &config, &[]) };
    let usage = ErrorKind::InvalidUsage;
    let resident = kernel.max_resident_blocks(1024, 0).unwrap();
    let words =
        [format!("a grid barrier over {} blocks", resident + 1), format!("at most {resident} blocks")];
    let too_large = LaunchConfig::linear(resident + 1, 1024).cooperative();
    refused(launch(too_large), usage, &["launch", &words[0], &words[1]]);
    launch(LaunchConfig::linear(resident, 1024).cooperative()).unwrap();
    refused(launch(LaunchConfig::linear(1, 1025)), usage, &["1025"]);
    refused(launch(LaunchConfig::linear(0, 32)), usage, &["must not contain 0"]);
    refused(launch(LaunchConfig::linear(1, 0)), usage, &["must not contain 0"]);
    let shared = LaunchConfig::linear(1, 32).with_shared_bytes(u32::MAX);
    refused(launch(shared), usage, &["bytes of shared memory per block; the device has"]);
    // SAFETY: the kernel touches nothing.
    let too_many = unsafe { kernel.launch(&stream, &LaunchConfig::linear(1, 32), &[arg(&0_u64)]) };
    refused(too_many, usage, &["kernel nop: arguments: 1, parameters: 0"]);
    stream.synchronize(soon()).unwrap();
}
