//! Adds up a million numbers of each rank, on GPUs or on the software device. Each rank checks its result.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use aqueduct::collective::{Collective, CollectiveConfig};
use aqueduct::comm::{Communicator, CommunicatorConfig};
use aqueduct::gpu::{Context, Device, Driver, GpuBuffer, Stream};
use aqueduct::plan::{Element, Kind, Reduction};
use aqueduct::{Deadline, bootstrap};

const COUNT: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let deadline = Deadline::after(Duration::from_secs(60));
    // NVIDIA's driver if it is there and has a device, otherwise the software device; AQUEDUCT_DRIVER decides.
    let driver = Driver::select(Some(cuda_soft::driver_table))?;
    // The rank of this process in the job, from `aqueduct run` or another launcher.
    let bootstrap = bootstrap::from_env()?.ok_or("start ranks of it: aqueduct run -n 2 -- first-crate")?;
    let (rank, ranks) = (bootstrap.rank(), bootstrap.size());
    let device = Device::of_rank(&driver, bootstrap::local_rank_from_env()?.unwrap_or(rank))?;
    let context = Context::new(&device)?;
    let comm = Communicator::new(&*bootstrap, &context, CommunicatorConfig::from_env()?, deadline)?;

    let sum = CollectiveConfig::default().with_variants([(Element::F32, Reduction::Sum)]);
    let all_reduce = Collective::prepare(&comm, Kind::AllReduce, sum, deadline)?;

    // Element i of rank r is i % 1000 + r.
    let mine: Vec<f32> = (0..COUNT).map(|i| (i % 1000) as f32 + rank as f32).collect();
    let buffer = Arc::new(GpuBuffer::new(&context, COUNT * size_of::<f32>())?);
    buffer.upload(0, &mine, deadline)?;

    // In place, on a stream; the wait fails if a rank is lost meanwhile.
    let (stream, slice) = (Stream::new(&context)?, buffer.slice(..)?);
    all_reduce.launch(&stream, &slice, &slice, COUNT, Element::F32, Reduction::Sum)?;
    stream.synchronize(deadline)?;

    let mut sums = vec![0.0_f32; COUNT];
    buffer.download(0, &mut sums, deadline)?;
    let of_ranks = (ranks * (ranks - 1) / 2) as f32;
    for (i, &sum) in sums.iter().enumerate() {
        let expected = (i % 1000) as f32 * ranks as f32 + of_ranks;
        if sum != expected {
            return Err(format!("element {i} is {sum}, not {expected}").into());
        }
    }
    println!("rank {rank} of {ranks} on {}: all {COUNT} sums are right", driver.provenance());
    // Wait for all ranks: one that leaves early is an error for the others.
    bootstrap.barrier(deadline)?;
    drop(all_reduce);
    Ok(comm.close(deadline)?)
}
