//! Memory channel: the threads of a kernel write to the peer's GPU with stores, then signal and wait.
//!
//! `memory_channel.ptx` is the kernel: one block, in which all threads copy and one signals.

use std::{error::Error, sync::Arc, time::Duration};

use aqueduct::channel::MemoryChannel;
use aqueduct::comm::{Communicator, CommunicatorConfig, Transport};
use aqueduct::device::device_library;
use aqueduct::gpu::{Context, Device, Driver, GpuBuffer, LaunchConfig, Module, Stream, arg};
use aqueduct::{Deadline, bootstrap};

const COUNT: usize = 100_000;

fn main() -> Result<(), Box<dyn Error>> {
    let deadline = Deadline::after(Duration::from_secs(60));
    let bootstrap = bootstrap::from_env()?.filter(|all| all.size() == 2);
    let bootstrap = bootstrap.ok_or("start two ranks: aqueduct run -n 2 -- memory-channel")?;
    let (rank, peer) = (bootstrap.rank(), 1 - bootstrap.rank());
    let driver = Driver::select(Some(cuda_soft::driver_table))?;
    let device = Device::of_rank(&driver, bootstrap::local_rank_from_env()?.unwrap_or(rank))?;
    let context = Context::new(&device)?;
    let comm = Communicator::new(&*bootstrap, &context, CommunicatorConfig::from_env()?, deadline)?;

    let bytes = (COUNT * size_of::<u32>()) as u64;
    let [source, inbox] = [(); 2].map(|()| GpuBuffer::new(&context, bytes as usize).map(Arc::new));
    let (source, inbox) = (source?, inbox?);
    let numbers = |rank: u32| (0..COUNT as u32).map(|i| i * 2 + rank).collect::<Vec<_>>();
    source.upload(0, &numbers(rank), deadline)?;
    let mine = comm.register_memory(&source, Transport::CudaIpc)?;
    comm.send_memory(&comm.register_memory(&inbox, Transport::CudaIpc)?, peer, 0)?;
    let theirs = comm.recv_memory(peer, 0)?;
    let connection = comm.connect(peer, 0, Transport::CudaIpc)?;
    let semaphore = comm.build_semaphore(&connection, 0)?;
    comm.setup(deadline)?;
    // Puts from my source to the peer's inbox.
    let channel = MemoryChannel::new(&semaphore.get()?, &theirs.get()?, &mine, None)?;

    let parts = [("exchange", include_str!("memory_channel.ptx")), ("library", &device_library(&context)?)];
    let kernel = Module::link_ptx(&context, &parts)?.function("exchange")?;
    let (stream, handle) = (Stream::new(&context)?, channel.device_handle());
    // SAFETY: the arguments are those of `exchange`; the stream retains the memory they lead to.
    unsafe { kernel.launch(&stream, &LaunchConfig::linear(1, 256), &[arg(&handle), arg(&bytes)]) }?;
    stream.retain(channel.keep_alive())?;
    comm.report_to(&stream);
    stream.synchronize(deadline)?;

    let mut received = vec![0; COUNT];
    inbox.download(0, &mut received, deadline)?;
    assert!(received == numbers(peer), "the peer's numbers are not what it sent");
    println!("rank {rank} on {}: all {COUNT} numbers came", driver.provenance());
    bootstrap.barrier(deadline)?;
    // The peer's close may wait until this rank has let go of its memory.
    drop((channel, semaphore, theirs));
    Ok(comm.close(deadline)?)
}
