use std::sync::Arc;
use std::time::Duration;

use aqueduct::bootstrap::{Bootstrap, TcpBootstrap, UniqueId};
use aqueduct::channel::MemoryChannel;
use aqueduct::comm::{Communicator, CommunicatorConfig, Transport};
use aqueduct::gpu::{Context, Device, Driver, GpuBuffer, Stream};
use aqueduct::{Deadline, Result};

/// Each of two ranks puts 4 KiB into the other's memory and waits for what comes.
fn exchange(rank: u32, id: &UniqueId, driver: &Driver) -> Result<Vec<u8>> {
    let deadline = Deadline::after(Duration::from_secs(30));
    let (peer, context) = (1 - rank, Context::new(&Device::of_rank(driver, rank)?)?);
    let bootstrap = TcpBootstrap::new(rank, 2, id, deadline)?;
    let comm = Communicator::new(&bootstrap, &context, CommunicatorConfig::from_env()?, deadline)?;
    let mine = Arc::new(GpuBuffer::new(&context, 4096)?);
    let inbox = Arc::new(GpuBuffer::new(&context, 4096)?);
    mine.fill(rank as u8 + 1, deadline)?;

    let connection = comm.connect(peer, 0, Transport::CudaIpc)?;
    let source = comm.register_memory(&mine, Transport::CudaIpc)?;
    comm.send_memory(&comm.register_memory(&inbox, Transport::CudaIpc)?, peer, 0)?;
    let target = comm.recv_memory(peer, 0)?;
    let semaphore = comm.build_semaphore(&connection, 0)?;
    comm.setup(deadline)?;

    let channel = MemoryChannel::new(&semaphore.get()?, &target.get()?, &source, None)?;
    let stream = Stream::new(&context)?;
    channel.put_with_signal(&stream, 0, 0, 4096)?;
    channel.wait(&stream)?;
    // An error if the peer is lost. Whoever waits for the stream by the driver alone also has to call `comm.check()`.
    stream.synchronize(deadline)?;
    let mut received = vec![0; 4096];
    inbox.download(0, &mut received, deadline)?;
    // Wait for both: a rank that leaves early is an error for the other.
    bootstrap.barrier(deadline)?;
    drop((channel, semaphore, target));
    comm.close(deadline)?;
    Ok(received)
}
