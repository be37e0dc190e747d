//! One fault at a time, at every place. Each rank ends with an error that names what failed, or with right data.
//! Nothing hangs, panics or leaks.

mod driver;
mod every_byte;
mod net;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct::bootstrap::Bootstrap;
use aqueduct::comm::{Communicator, CommunicatorConfig};
use aqueduct::gpu::{Context, Device, Driver, GpuBuffer, Stream};
use aqueduct::plan::programs::{self, Choices};
use aqueduct::plan::{Element, Executor, ExecutorConfig, Reduction};
use aqueduct::{Deadline, Result};

/// Deadline of every rank.
const PATIENCE: Duration = Duration::from_secs(4);
/// No case takes so long unless something hangs, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
const COUNT: usize = 64;

/// The job of each rank: starts the library, makes one all-reduce, and leaves. A `Collective` would prepare six plans, one
/// after the other, and cases with delays have little time.
fn job(bootstrap: &dyn Bootstrap, context: &Context, config: CommunicatorConfig) -> Result<Vec<f32>> {
    let deadline = Deadline::after(PATIENCE);
    let comm = Communicator::new(bootstrap, context, config, deadline)?;
    let buffer = Arc::new(GpuBuffer::new(context, COUNT * 4)?);
    buffer.upload(0, &[comm.rank() as f32 + 1.0; COUNT], deadline)?;
    let plan = programs::find("all-reduce", Some("one-shot"))?
        .program(comm.size(), &Choices::default())?
        .compile()?;
    let config = ExecutorConfig::default()
        .with_variants([(Element::F32, Some(Reduction::Sum))])
        .with_max_bytes(4 * COUNT as u64);
    let reduce = Executor::prepare(&comm, &plan, config, deadline)?;
    let stream = Stream::new(context)?;
    let output = Arc::new(GpuBuffer::new(context, COUNT * 4)?);
    reduce.execute(&stream, &buffer.slice(..)?, &output.slice(..)?, COUNT, Element::F32, Reduction::Sum)?;
    stream.synchronize(deadline)?;
    let mut sums = vec![0.0; COUNT];
    output.download(0, &mut sums, deadline)?;
    drop((reduce, stream));
    comm.close(deadline)?;
    Ok(sums)
}

/// Asserts that no rank succeeded with wrong data, and that all ended within the limit.
#[track_caller]
fn judge(case: &str, since: Instant, ends: &[Result<Vec<f32>>]) {
    let took = since.elapsed();
    assert!(took < LIMIT, "{case}: took {took:?}: {ends:?}");
    for (rank, end) in ends.iter().enumerate() {
        if let Ok(sums) = end {
            assert_eq!(*sums, [3.0; COUNT], "{case}: rank {rank} got wrong data");
        }
    }
}

/// Frees memory whose owner was dropped while work still used it, as the next user of the devices would.
fn reap(drivers: [&Driver; 2]) {
    for (driver, ordinal) in drivers.into_iter().zip(0..) {
        // The context, if such work still holds it. What a drop deferred is freed by a later call.
        if let Ok(context) = Device::new(driver, ordinal).and_then(|device| Context::new(&device)) {
            context.reap();
        }
    }
}

/// Open descriptors of this process.
fn descriptors() -> usize {
    open().len()
}

/// Their targets.
fn open() -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/proc/self/fd").expect("/proc is there");
    entries.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect()
}

/// Polls until `now` returns at most `before`. Service threads and the reaper may need a moment.
#[track_caller]
fn settles(case: &str, what: &str, before: usize, now: impl Fn() -> usize) {
    let since = Instant::now();
    while now() > before {
        if since.elapsed() > LIMIT {
            panic!("{case}: {what}: {before} before, {} after; open are {:?}", now(), open());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
