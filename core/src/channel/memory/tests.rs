//! A memory channel between two devices of one process.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::*;
use crate::ErrorKind;
use crate::bootstrap::{self, Bootstrap as _, LocalBootstrap};
use crate::channel::PacketFormat;
use crate::comm::{Communicator, CommunicatorConfig, Transport};
use crate::deadline::Deadline;
use crate::gpu::{Context, Device, Driver, PinnedBuffer};
use crate::memory::Registration;
use crate::sync::Ordering;

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// Runs both ranks, each on a device of its own.
fn two_ranks(run: impl Fn(&LocalBootstrap, Communicator) + Sync) {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    std::thread::scope(|scope| {
        for bootstrap in bootstrap::local(2) {
            let (driver, run) = (driver.clone(), &run);
            scope.spawn(move || {
                let context = Context::new(&Device::new(&driver, bootstrap.rank()).unwrap()).unwrap();
                let config = CommunicatorConfig::default().with_local_address(Ipv4Addr::LOCALHOST.into());
                run(&bootstrap, Communicator::new(&bootstrap, &context, config, soon()).unwrap());
                context.settle();
            });
        }
    });
}

/// A channel to the other rank over 64 bytes of each. Both ranks call this.
fn channel(comm: &Communicator) -> MemoryChannel {
    let peer = 1 - comm.rank();
    let buffer = Arc::new(GpuBuffer::new(comm.context(), 64).unwrap());
    let mine = comm.register_memory(&buffer, Transport::CudaIpc).unwrap();
    comm.send_memory(&mine, peer, 0).unwrap();
    let theirs = comm.recv_memory(peer, 0).unwrap();
    let connection = comm.connect(peer, 0, Transport::CudaIpc).unwrap();
    let semaphore = comm.build_semaphore(&connection, 0).unwrap();
    comm.setup(soon()).unwrap();
    MemoryChannel::new(&semaphore.get().unwrap(), &theirs.get().unwrap(), &mine, None).unwrap()
}

#[test]
fn a_channel_refuses_what_does_not_fit_in_the_words_of_the_call_and_everything_after_an_abort() {
    two_ranks(|bootstrap, comm| {
        let (me, context, channel) = (bootstrap.rank(), comm.context().clone(), channel(&comm));
        if me == 0 {
            let stream = Stream::new(&context).unwrap();
            let says = |result: Result<()>, words: &str| {
                let error = result.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidUsage);
                assert!(error.message().contains(words), "{error}");
            };
            says(channel.put(&stream, 60, 0, 8), "of dst do not fit");
            says(channel.put(&stream, 0, 60, 8), "of src do not fit");
            says(channel.get(&stream, 60, 0, 8), "of the peer's memory do not fit");
            says(channel.get(&stream, 0, 60, 8), "of my memory do not fit");
            channel.put(&stream, 56, 0, 8).unwrap();
            stream.synchronize(soon()).unwrap();
            comm.abort("enough");
            let error = channel.put(&stream, 56, 0, 8).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
        }
        bootstrap.barrier(soon()).unwrap();
        drop((channel, comm));
    });
}

/// Kernels would fault where the memory is mapped without the right to write, and succeed where it is not.
#[test]
fn a_channel_keeps_to_the_rights_of_the_peers_memory() {
    two_ranks(|bootstrap, comm| {
        let (peer, context) = (1 - bootstrap.rank(), comm.context().clone());
        let buffer = Arc::new(GpuBuffer::new(&context, 64).unwrap());
        let connection = comm.connect(peer, 0, Transport::CudaIpc).unwrap();
        let stream = Stream::new(&context).unwrap();
        for (tag, rights) in [(0, Rights::REMOTE_READ), (1, Rights::REMOTE_WRITE)] {
            let registration = Registration::from(Transport::CudaIpc).with_rights(rights);
            let mine = comm.register_memory(&buffer, registration).unwrap();
            comm.send_memory(&mine, peer, tag).unwrap();
            let theirs = comm.recv_memory(peer, tag).unwrap();
            let semaphore = comm.build_semaphore(&connection, tag).unwrap();
            comm.setup(soon()).unwrap();
            let (semaphore, theirs) = (semaphore.get().unwrap(), theirs.get().unwrap());
            let channel = MemoryChannel::new(&semaphore, &theirs, &mine, None).unwrap();
            let value = buffer.slice(..8).unwrap();
            let writes = [
                channel.put(&stream, 0, 0, 8),
                channel.put_aligned(&stream, 0, 0, 16),
                channel.put_packets(&stream, PacketFormat::Ll8, 0, 0, 8, 1),
                channel.write_u32(&stream, 0, 1),
                channel.write_u64(&stream, 0, 1),
            ];
            let reads = [
                channel.get(&stream, 0, 0, 8),
                channel.get_aligned(&stream, 0, 0, 16),
                channel.read_u32(&stream, 0, &value),
                channel.read_u64(&stream, 0, &value),
            ];
            let (allowed, refused) =
                if tag == 0 { (&reads[..], &writes[..]) } else { (&writes[..], &reads[..]) };
            for result in refused {
                let error = result.as_ref().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
            }
            assert!(allowed.iter().all(Result::is_ok), "{allowed:?}");
            stream.synchronize(soon()).unwrap();
            bootstrap.barrier(soon()).unwrap();
        }
        drop((stream, connection, comm));
    });
}

/// The caller may drop it as soon as the call has returned, and the kernel writes later.
#[test]
fn a_stream_keeps_the_memory_of_a_result_until_its_kernel_has_ended() {
    two_ranks(|bootstrap, comm| {
        let (context, channel) = (comm.context().clone(), channel(&comm));
        let stream = Stream::new(&context).unwrap();
        let gate = Arc::new(PinnedBuffer::new(&context, 8).unwrap());
        for number in 1..=3 {
            stream.wait_value64(&gate.slice(..).unwrap(), number).unwrap();
            let result = Arc::new(GpuBuffer::new(&context, 8).unwrap());
            let place = result.slice(..).unwrap();
            match number {
                1 => channel.poll(&stream, &place).unwrap(),
                2 => channel.read_u32(&stream, 0, &place).unwrap(),
                _ => channel.read_u64(&stream, 0, &place).unwrap(),
            }
            drop(place);
            let kept = Arc::strong_count(&result) > 1;
            gate.memory().word64(0).unwrap().store(number, Ordering::Release);
            stream.synchronize(soon()).unwrap();
            assert!(kept, "call {number}");
        }
        bootstrap.barrier(soon()).unwrap();
        drop((channel, stream, comm));
    });
}
