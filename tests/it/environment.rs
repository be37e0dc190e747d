//! Unusable environments: GPU mode, driver, rendezvous, limits. Each gives an error that names the setting to change.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct::bootstrap::TcpBootstrap;
use aqueduct::comm::{Communicator, CommunicatorConfig};
use aqueduct::gpu::{BufferOptions, CUresult, Context, Device, Driver, GpuBuffer, HandlePolicy};
use aqueduct::internals::fault::{Calls, DriverFault, DriverFaults};
use aqueduct::{Deadline, Error, ErrorKind, Result, bootstrap};
use aqueduct_tests::ranks;

use crate::group::{Machine, start_rendezvous};

#[track_caller]
fn refused<T>(result: Result<T>, kind: ErrorKind, words: &[&str]) -> Error {
    let Err(error) = result else { panic!("succeeded, but should fail with {words:?}") };
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    words.iter().for_each(|word| assert!(text.contains(word), "`{word}` is not in: {text}"));
    error
}

#[test]
fn a_gpu_in_exclusive_or_prohibited_mode() {
    let retain = Calls::Function("cuDevicePrimaryCtxRetain".into());
    let rule = DriverFault::nth(retain, 1, CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE);
    let driver = Machine::Software.driver().with_hooks(Arc::new(DriverFaults::new([rule])));
    let device = Device::new(&driver, 0).unwrap();
    let words = ["cuDevicePrimaryCtxRetain", "exclusive or prohibited compute mode", "nvidia-smi -c DEFAULT"];
    refused(Context::new(&device), ErrorKind::Cuda, &words);
    Context::new(&device).expect("works after the mode was changed");
}

#[test]
fn a_driver_too_old_for_vmm() {
    let mut table = cuda_soft::driver_table();
    table.cuMemAddressReserve = None;
    table.cuMemCreate = None;
    table.cuMemMap = None;
    table.cuMemSetAccess = None;
    table.cuMemExportToShareableHandle = None;
    let driver = Driver::from_table(table, "an old driver").unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let fd = BufferOptions { zeroed: false, handles: HandlePolicy::Fd };
    let error = refused(GpuBuffer::with_options(&context, 64, fd), ErrorKind::Unsupported, &[]);
    assert!(error.to_string().contains("HandlePolicy::") || error.to_string().contains("update"), "{error}");
    GpuBuffer::new(&context, 64).expect("a plain allocation takes its place");
}

#[test]
fn a_rendezvous_whose_server_has_stopped() {
    // Another test's listener may get the port: it cannot prove the secret. That does not happen every time.
    let joined = (0..20).find_map(|_| {
        let rendezvous = start_rendezvous(Some(2));
        let id = rendezvous.unique_id().clone();
        drop(rendezvous);
        // It gives up long before its deadline.
        let joined = TcpBootstrap::new(0, 2, &id, Deadline::after(Duration::from_secs(3600)));
        let stranger = joined.as_ref().is_err_and(|error| error.kind() == ErrorKind::Authentication);
        (!stranger).then_some(joined)
    });
    let words = ["rank 0 cannot join at the rendezvous", "still runs", "firewall"];
    refused(joined.expect("the port stays free once"), ErrorKind::System, &words);
}

/// With every limit from too few to enough, the result is an error that names the setting, never a hang: also where a rank
/// has room for all but the connections it accepts, and the call ends at its deadline.
#[test]
fn too_few_file_descriptors() {
    if ranks::start(1, "environment::too_few_file_descriptors").is_none() {
        return;
    }
    let driver = Machine::Software.driver();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    allow_descriptors(0);
    // Wherever a wait ends at its deadline: it may have waited for what needed a descriptor.
    let late = Error::timeout("wait", "nobody came").to_string();
    assert!(late.contains("nobody came (this process has no file descriptors left"), "{late}");
    // The limit applies to the highest descriptor number; lower numbers may be free.
    for (named, more) in (4..100).enumerate() {
        allow_descriptors(more);
        let (since, patience) = (Instant::now(), Deadline::after(Duration::from_secs(2)));
        let outcomes: Vec<Result<()>> = std::thread::scope(|scope| {
            let ranks: Vec<_> = bootstrap::local(2)
                .into_iter()
                .map(|bootstrap| {
                    let context = &context;
                    let config = CommunicatorConfig::default()
                        .with_local_address(std::net::Ipv4Addr::LOCALHOST.into());
                    scope.spawn(move || Communicator::new(&bootstrap, context, config, patience).map(drop))
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
        });
        assert!(since.elapsed() < Duration::from_secs(60), "at most {more}: {outcomes:?}");
        if outcomes.iter().all(Result::is_ok) {
            assert!(named > 3, "only {named} limits gave an error that names the setting");
            return;
        }
        let says =
            |word: &str| outcomes.iter().any(|o| o.as_ref().is_err_and(|e| e.to_string().contains(word)));
        assert!(says("ulimit -n") && !says("MEMORY"), "at most {more}: {outcomes:?}");
    }
    panic!("100 descriptors are not enough for a communicator of two");
}

/// Sets the limit of this process, which is a test's own.
fn allow_descriptors(most: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a live output.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
    limit.rlim_cur = most;
    // SAFETY: `limit` is a live input.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
}
