//! Ping-pong: kernels on two GPUs pass a ball back and forth, without the host.
//!
//! The ball is a number that each side increments before it returns it. `ping_pong.ptx` is the kernel.

use std::{error::Error, sync::Arc, time::Duration};

use aqueduct::channel::MemoryChannel;
use aqueduct::comm::{Communicator, CommunicatorConfig, Transport};
use aqueduct::device::device_library;
use aqueduct::gpu::{Context, Device, Driver, GpuBuffer, LaunchConfig, Module, Stream, arg};
use aqueduct::{Deadline, bootstrap};

const PASSES: u32 = 2000;

fn main() -> Result<(), Box<dyn Error>> {
    let deadline = Deadline::after(Duration::from_secs(60));
    let bootstrap = bootstrap::from_env()?.filter(|all| all.size() == 2);
    let bootstrap = bootstrap.ok_or("start two ranks: aqueduct run -n 2 -- ping-pong")?;
    let (rank, peer) = (bootstrap.rank(), 1 - bootstrap.rank());
    let driver = Driver::select(Some(cuda_soft::driver_table))?;
    let device = Device::of_rank(&driver, bootstrap::local_rank_from_env()?.unwrap_or(rank))?;
    let context = Context::new(&device)?;
    let comm = Communicator::new(&*bootstrap, &context, CommunicatorConfig::from_env()?, deadline)?;

    // Each rank has a place for the ball, which the other writes.
    let ball = Arc::new(GpuBuffer::new(&context, size_of::<u64>())?);
    let mine = comm.register_memory(&ball, Transport::CudaIpc)?;
    comm.send_memory(&mine, peer, 0)?;
    let theirs = comm.recv_memory(peer, 0)?;
    let connection = comm.connect(peer, 0, Transport::CudaIpc)?;
    let semaphore = comm.build_semaphore(&connection, 0)?;
    comm.setup(deadline)?;
    let channel = MemoryChannel::new(&semaphore.get()?, &theirs.get()?, &mine, None)?;

    let parts = [("ping_pong", include_str!("ping_pong.ptx")), ("library", &device_library(&context)?)];
    let kernel = Module::link_ptx(&context, &parts)?.function("ping_pong")?;
    let (stream, handle, place) = (Stream::new(&context)?, channel.device_handle(), ball.ptr());
    let args = [arg(&handle), arg(&place), arg(&rank), arg(&PASSES)];
    // SAFETY: the arguments are those of `ping_pong`; the stream retains the memory they lead to.
    unsafe { kernel.launch(&stream, &LaunchConfig::linear(1, 1), &args) }?;
    stream.retain_all([channel.keep_alive(), ball.clone()])?;
    comm.report_to(&stream);
    stream.synchronize(deadline)?;

    // Rank 1 makes the last pass, and rank 0 the one before.
    let mut last = [0_u64];
    ball.download(0, &mut last, deadline)?;
    if last[0] != u64::from(PASSES - rank) {
        return Err(format!("the ball is {} after {PASSES} passes", last[0]).into());
    }
    println!("rank {rank} on {}: the ball is {}, as it should be", driver.provenance(), last[0]);
    bootstrap.barrier(deadline)?;
    // The peer's close may wait until this rank has let go of its memory.
    drop((channel, semaphore, theirs));
    Ok(comm.close(deadline)?)
}
