//! Channels of one rank to several peers, or several channels to one peer.

use std::sync::Arc;

use aqueduct::channel::PortChannel;
use aqueduct::comm::{Connection, EndpointConfig, Host2DeviceSemaphore, RegisteredMemory};
use aqueduct::gpu::{BufferOptions, GpuBuffer, HandlePolicy, Stream};
use aqueduct::proxy::{MemoryId, ProxyService, SemaphoreId};

use crate::data::{assert_same, bytes};
use crate::group::{Rank, soon};

/// This rank's end of a channel to one peer over its own connection, with all its parts.
pub(super) struct PeerChannel {
    pub(super) peer: u32,
    pub(super) connection: Connection,
    pub(super) stream: Stream,
    /// Source of this rank's puts, and target of the peer's.
    pub(super) local: Arc<GpuBuffer>,
    pub(super) inbox: Arc<GpuBuffer>,
    /// The peer's inbox and this rank's `local`, and their ids in the service.
    pub(super) theirs: RegisteredMemory,
    pub(super) mine: RegisteredMemory,
    pub(super) dst: MemoryId,
    pub(super) src: MemoryId,
    pub(super) host: Host2DeviceSemaphore,
    pub(super) semaphore: SemaphoreId,
    /// Another semaphore of the connection, not added to the service.
    pub(super) spare: Host2DeviceSemaphore,
    pub(super) channel: PortChannel,
}

/// Makes a channel to each `(peer, tag)` with buffers of `len` bytes. The peers must do the same.
pub(super) fn peer_channels(
    rank: &Rank,
    service: &ProxyService,
    peers: &[(u32, u64)],
    endpoint: impl Into<EndpointConfig>,
    len: usize,
) -> Vec<PeerChannel> {
    let (comm, endpoint) = (&rank.comm, endpoint.into());
    let pending: Vec<_> = peers
        .iter()
        .map(|&(peer, tag)| {
            // Large buffers are not zeroed, so that only touched pages take memory.
            let options = BufferOptions { zeroed: len <= 1 << 30, handles: HandlePolicy::Auto };
            let [local, inbox] =
                [(); 2].map(|()| Arc::new(GpuBuffer::with_options(comm.context(), len, options).unwrap()));
            let [mine, arrivals] =
                [&local, &inbox].map(|buffer| comm.register_memory(buffer, endpoint.transport).unwrap());
            comm.send_memory(&arrivals, peer, tag).unwrap();
            let theirs = comm.recv_memory(peer, tag).unwrap();
            let connection = comm.connect(peer, tag, endpoint.clone()).unwrap();
            let semaphore = service.build_and_add_semaphore(&connection, 2 * tag).unwrap();
            let spare = comm.build_host2device_semaphore(&connection, 2 * tag + 1).unwrap();
            (peer, local, inbox, mine, theirs, connection, semaphore, spare)
        })
        .collect();
    comm.setup(soon()).unwrap();
    pending
        .into_iter()
        .map(|(peer, local, inbox, mine, theirs, connection, pending, spare)| {
            let theirs = theirs.get().unwrap();
            let [dst, src] = [&theirs, &mine].map(|memory| service.add_memory(memory).unwrap());
            let semaphore = pending.get().unwrap();
            let channel = PortChannel::new(service, semaphore, dst, src).unwrap();
            assert_eq!(channel.peer(), peer);
            PeerChannel {
                peer,
                connection: connection.get().unwrap(),
                stream: Stream::new(comm.context()).unwrap(),
                local,
                inbox,
                theirs,
                mine,
                dst,
                src,
                host: pending.semaphore().unwrap(),
                semaphore,
                spare: spare.get().unwrap(),
                channel,
            }
        })
        .collect()
}

impl PeerChannel {
    /// Waits for the stream and asserts that no kernel left early.
    #[track_caller]
    pub(super) fn done(&self) {
        self.stream.synchronize(soon()).unwrap();
        self.channel.check().unwrap();
    }

    /// Exchanges data both ways a few times and checks it. The peer must do the same.
    #[track_caller]
    pub(super) fn works(&self, me: u32) {
        const SIZE: usize = 5000;
        for round in 0..4 {
            self.local.upload(0, &bytes(me, round, SIZE), soon()).unwrap();
            self.channel.put_with_signal_and_flush(&self.stream, 0, 0, SIZE).unwrap();
            self.channel.wait(&self.stream).unwrap();
            self.done();
            let mut seen = vec![0; SIZE];
            self.inbox.download(0, &mut seen, soon()).unwrap();
            assert_same(&seen, &bytes(self.peer, round, SIZE), format_args!("round {round}"));
            // Neither rank puts again before both have read the data. The flush sends this rank's signal before
            // returning.
            self.channel.signal(&self.stream).unwrap();
            self.channel.flush(&self.stream).unwrap();
            self.channel.wait(&self.stream).unwrap();
            self.done();
        }
    }

    /// Waits until the channel fails and returns the error.
    #[track_caller]
    pub(super) fn reason(&self) -> aqueduct::Error {
        let deadline = soon();
        loop {
            if let Err(error) = self.channel.check() {
                return error;
            }
            assert!(!deadline.expired(), "the channel did not fail");
            std::thread::yield_now();
        }
    }

    /// The first words of a buffer of this rank.
    pub(super) fn words(buffer: &GpuBuffer, count: usize) -> Vec<u64> {
        let mut words = vec![0; count];
        buffer.download(0, &mut words, soon()).unwrap();
        words
    }
}
