//! Faults of the driver, on the software device: one call fails, for each function that a job calls and each of its
//! calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use aqueduct::comm::CommunicatorConfig;
use aqueduct::gpu::{CUresult, Context, Device, Driver, GpuBuffer};
use aqueduct::internals::fault::{Calls, DriverFault, DriverFaults};
use aqueduct::{ErrorKind, Result, bootstrap};
use aqueduct_tests::ranks;

use super::{descriptors, job, judge, reap, settles};
use crate::group::Machine;

/// Functions that free something. A failed call never reaches the driver, so its resource is not freed and counts as a
/// leak. The last three are needed to free anything at all.
const RELEASES: [&str; 14] = [
    "cuMemFree_v2",
    "cuMemFreeHost",
    "cuMemRelease",
    "cuMemUnmap",
    "cuMemAddressFree",
    "cuStreamDestroy_v2",
    "cuEventDestroy_v2",
    "cuModuleUnload",
    "cuLinkDestroy",
    "cuIpcCloseMemHandle",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2",
    "cuThreadExchangeStreamCaptureMode",
];

/// Runs ranks 0 and 1 as threads, each with its driver.
fn run(drivers: &[Driver; 2]) -> Vec<Result<Vec<f32>>> {
    std::thread::scope(|scope| {
        let ranks: Vec<_> = bootstrap::local(2)
            .into_iter()
            .zip(drivers)
            .zip(0..)
            .map(|((bootstrap, driver), ordinal)| {
                scope.spawn(move || {
                    let device = Device::new(driver, ordinal)?;
                    let context = Context::new(&device)?;
                    let config = CommunicatorConfig::from_env()
                        .expect("the environment is valid")
                        .with_local_address(std::net::Ipv4Addr::LOCALHOST.into())
                        .with_max_semaphores(64);
                    job(&bootstrap, &context, config)
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("no fault makes a rank panic")).collect()
    })
}

/// Bytes of device memory in use.
fn used(context: &Context) -> usize {
    let (free, total) = context.memory_info().expect("the device works");
    total - free
}

/// Runs a job in which one call of one function fails. Returns whether the job made that call.
fn case(driver: &Driver, watch: &Context, function: &'static str, nth: u64) -> bool {
    let name = format!("call {nth} of {function}");
    let result = match function {
        "cuMemAlloc_v2" | "cuMemCreate" | "cuMemHostAlloc" => CUresult::CUDA_ERROR_OUT_OF_MEMORY,
        _ => CUresult::CUDA_ERROR_UNKNOWN,
    };
    let (open, memory) = (descriptors(), used(watch));
    let rule = DriverFault::nth(Calls::Function(function.to_owned()), nth, result);
    let faults = Arc::new(DriverFaults::new([rule]));
    let since = Instant::now();
    let drivers = [driver.clone(), driver.with_hooks(faults.clone())];
    let ends = run(&drivers);
    judge(&name, since, &ends);
    eprintln!(
        "{name}: {:?}: {:?}",
        since.elapsed(),
        ends.iter().map(|end| end.as_ref().map(drop).map_err(ToString::to_string)).collect::<Vec<_>>()
    );
    if faults.injected().is_empty() {
        return false;
    }
    if let Err(error) = &ends[1] {
        assert!(error.to_string().contains(function), "{name}: the error does not name it: {error}");
    }
    if !RELEASES.contains(&function) {
        settles(&name, "descriptors", open, || {
            reap(drivers.each_ref());
            descriptors()
        });
        settles(&name, "bytes of device memory", memory, || {
            reap(drivers.each_ref());
            used(watch)
        });
    }
    true
}

/// Lets up to `most` calls of each function fail, one per job.
fn sweep(test: &str, most: u64) {
    if ranks::start(1, test).is_none() {
        return;
    }
    let driver = Machine::Software.driver();
    let watch = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let none = Arc::new(DriverFaults::default());
    let ends = run(&[driver.clone(), driver.with_hooks(none.clone())]);
    judge("without a fault", Instant::now(), &ends);
    assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    let calls: BTreeMap<&'static str, u64> = none.calls();
    assert!(calls.len() > 25 && calls.contains_key("cuMemCreate"), "{calls:?}");
    let mut failed = 0;
    for (function, count) in calls {
        for nth in 1..=most.min(count) {
            if !case(&driver, &watch, function, nth) {
                break;
            }
            failed += 1;
        }
    }
    println!("{failed} faults");
    assert!(failed > 25, "only {failed} faults took effect");
}

#[test]
fn the_first_call_of_each_function() {
    sweep("faults::driver::the_first_call_of_each_function", 1);
}

#[test]
#[ignore = "minutes long; ci/deep.sh faults"]
fn the_first_calls_of_each_function() {
    sweep("faults::driver::the_first_calls_of_each_function", 12);
}

/// The example of docs/faults.md.
fn the_second_allocation_fails(driver: &Driver) -> Result<()> {
    let out_of_memory = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    let calls = Calls::Function("cuMemCreate".into());
    let faults = Arc::new(DriverFaults::new([DriverFault::nth(calls, 2, out_of_memory)]));
    let context = Context::new(&Device::new(&driver.with_hooks(faults.clone()), 0)?)?;
    let _first = GpuBuffer::new(&context, 4096)?;
    let error = GpuBuffer::new(&context, 4096).unwrap_err();
    assert_eq!((error.kind(), error.op()), (ErrorKind::Cuda, faults.injected()[0]));
    Ok(())
}

#[test]
fn the_documented_example() {
    the_second_allocation_fails(&Machine::Software.driver()).unwrap();
    let (document, source) = (include_str!("../../../docs/faults.md"), include_str!("driver.rs"));
    let begin = document.find("fn the_second").expect("the document has the example");
    let example = &document[begin..begin + document[begin..].find("```").unwrap()];
    assert!(source.contains(example), "docs/faults.md shows another example");
}
