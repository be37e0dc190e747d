//! Host-side semaphores: the host of each rank writes to the peer's GPU and signals, and the peer's host or GPU waits.

use std::{error::Error, sync::Arc, time::Duration};

use aqueduct::channel::InboundSignals;
use aqueduct::comm::{Communicator, CommunicatorConfig, Transport};
use aqueduct::gpu::{Context, Device, Driver, GpuBuffer, Stream};
use aqueduct::{Deadline, bootstrap};

/// Works between any two hosts. `CudaIpc` within a host, or `Ib(0)` with a NIC, needs no other change.
const WAY: Transport = Transport::Ethernet;
const HALF: usize = 64 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let deadline = Deadline::after(Duration::from_secs(60));
    let bootstrap = bootstrap::from_env()?.filter(|all| all.size() == 2);
    let bootstrap = bootstrap.ok_or("start two ranks: aqueduct run -n 2 -- host-semaphores")?;
    let (rank, peer) = (bootstrap.rank(), 1 - bootstrap.rank());
    let driver = Driver::select(Some(cuda_soft::driver_table))?;
    let device = Device::of_rank(&driver, bootstrap::local_rank_from_env()?.unwrap_or(rank))?;
    let context = Context::new(&device)?;
    let comm = Communicator::new(&*bootstrap, &context, CommunicatorConfig::from_env()?, deadline)?;

    let [source, inbox] = [(); 2].map(|()| GpuBuffer::new(&context, 2 * HALF).map(Arc::new));
    let (source, inbox) = (source?, inbox?);
    source.fill(rank as u8 + 1, deadline)?;
    let mine = comm.register_memory(&source, WAY)?;
    comm.send_memory(&comm.register_memory(&inbox, WAY)?, peer, 0)?;
    let theirs = comm.recv_memory(peer, 0)?;
    let connection = comm.connect(peer, 0, WAY)?;
    let (to_host, to_device) =
        (comm.build_host2host_semaphore(&connection, 0)?, comm.build_host2device_semaphore(&connection, 1)?);
    comm.setup(deadline)?;
    let (connection, theirs) = (connection.get()?, theirs.get()?);

    // The peer's host waits: what was written before the signal has arrived.
    connection.write(&theirs, 0, &mine, 0, HALF)?;
    to_host.get()?.signal()?;
    to_host.get()?.wait(deadline)?;
    let mut first = vec![0; HALF];
    inbox.download(0, &mut first, deadline)?;

    // A stream of the peer waits: its later work sees what was written.
    connection.write(&theirs, HALF, &mine, HALF, HALF)?;
    to_device.get()?.signal()?;
    let (stream, copy) = (Stream::new(&context)?, Arc::new(GpuBuffer::new(&context, HALF)?));
    InboundSignals::new(&to_device.get()?)?.wait(&stream)?;
    stream.copy(&copy.slice(..)?, &inbox.slice(HALF..)?)?;
    stream.synchronize(deadline)?;
    let mut second = vec![0; HALF];
    copy.download(0, &mut second, deadline)?;

    assert!(first.iter().chain(&second).all(|&byte| byte == peer as u8 + 1), "the peer sent something else");
    println!("rank {rank} on {}: both halves came, over {WAY:?}", driver.provenance());
    bootstrap.barrier(deadline)?;
    // The peer's close may wait until this rank has let go of its memory.
    drop(theirs);
    Ok(comm.close(deadline)?)
}
