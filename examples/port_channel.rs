//! Port channel: a thread of a kernel (`port_channel.ptx`) asks the host's proxy to copy to the peer's GPU and to signal it.
//! The copy uses the copy engine, TCP or a NIC, and no threads of the GPU.

use std::{error::Error, sync::Arc, time::Duration};

use aqueduct::channel::PortChannel;
use aqueduct::comm::{Communicator, CommunicatorConfig, Transport};
use aqueduct::device::device_library;
use aqueduct::gpu::{Context, Device, Driver, GpuBuffer, LaunchConfig, Module, Stream, arg};
use aqueduct::proxy::{ProxyService, ProxyServiceConfig};
use aqueduct::{Deadline, bootstrap};

/// `Ethernet` between hosts, or `Ib(0)` with a NIC, needs no other change.
const WAY: Transport = Transport::CudaIpc;
const COUNT: usize = 100_000;

fn main() -> Result<(), Box<dyn Error>> {
    let deadline = Deadline::after(Duration::from_secs(60));
    let bootstrap = bootstrap::from_env()?.filter(|all| all.size() == 2);
    let bootstrap = bootstrap.ok_or("start two ranks: aqueduct run -n 2 -- port-channel")?;
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
    let mine = comm.register_memory(&source, WAY)?;
    comm.send_memory(&comm.register_memory(&inbox, WAY)?, peer, 0)?;
    let theirs = comm.recv_memory(peer, 0)?;
    // A host thread, which knows connections and memories by number.
    let proxy = ProxyService::start(&comm, ProxyServiceConfig::default())?;
    let semaphore = proxy.build_and_add_semaphore(&comm.connect(peer, 0, WAY)?, 0)?;
    comm.setup(deadline)?;
    let (dst, src) = (proxy.add_memory(&theirs.get()?)?, proxy.add_memory(&mine)?);
    let channel = PortChannel::new(&proxy, semaphore.get()?, dst, src)?;

    let parts = [("exchange", include_str!("port_channel.ptx")), ("library", &device_library(&context)?)];
    let kernel = Module::link_ptx(&context, &parts)?.function("exchange")?;
    let (stream, handle) = (Stream::new(&context)?, channel.device_handle());
    // SAFETY: the arguments are those of `exchange`; the stream retains the memory they lead to.
    unsafe { kernel.launch(&stream, &LaunchConfig::linear(1, 1), &[arg(&handle), arg(&bytes)]) }?;
    stream.retain(channel.keep_alive())?;
    channel.report_to(&stream);
    stream.synchronize(deadline)?;

    let mut received = vec![0; COUNT];
    inbox.download(0, &mut received, deadline)?;
    assert!(received == numbers(peer), "the peer's numbers are not what it sent");
    println!("rank {rank} on {}: all {COUNT} numbers came, over {WAY:?}", driver.provenance());
    bootstrap.barrier(deadline)?;
    proxy.stop(deadline)?;
    // The peer's close may wait until this rank has let go of its memory.
    drop((channel, proxy, semaphore, theirs));
    Ok(comm.close(deadline)?)
}
