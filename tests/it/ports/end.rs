//! One end of a port channel to the other rank.

use std::sync::Arc;

use aqueduct::Result;
use aqueduct::channel::PortChannel;
use aqueduct::comm::{EndpointConfig, Transport};
use aqueduct::gpu::{GpuBuffer, Stream};
use aqueduct::proxy::{ProxyService, ProxyServiceConfig};

use crate::group::{Rank, soon};

/// Bytes of each buffer.
pub(super) const LEN: usize = 256 << 10;

pub(super) struct End<'a> {
    pub(super) rank: &'a Rank,
    pub(super) transport: Transport,
    pub(super) peer: u32,
    pub(super) stream: Stream,
    pub(super) service: ProxyService,
    /// Source of this rank's puts.
    pub(super) local: Arc<GpuBuffer>,
    /// Target of the peer's puts.
    pub(super) inbox: Arc<GpuBuffer>,
    pub(super) channel: PortChannel,
    /// Source and target of the data that is sent as packets, where the transport has the packet form.
    pub(super) data: Arc<GpuBuffer>,
    pub(super) packets: Result<PortChannel>,
}

impl<'a> End<'a> {
    pub(super) fn new(rank: &'a Rank, endpoint: &EndpointConfig) -> Self {
        let (comm, peer) = (&rank.comm, 1 - rank.me());
        let buffer = || rank.buffer(LEN);
        let (local, inbox, data, packed, packet_inbox) = (buffer(), buffer(), buffer(), buffer(), buffer());
        let register = |buffer| comm.register_memory(buffer, endpoint.transport).unwrap();
        let (mine, packed, inboxes) =
            (register(&local), register(&packed), [&inbox, &packet_inbox].map(register));
        for (memory, tag) in inboxes.iter().zip(0..) {
            comm.send_memory(memory, peer, tag).unwrap();
        }
        let theirs = [0, 1].map(|tag| comm.recv_memory(peer, tag).unwrap());
        let connection = comm.connect(peer, 0, endpoint.clone()).unwrap();
        let service = ProxyService::start(comm, ProxyServiceConfig::default()).unwrap();
        let semaphores = [0, 1].map(|tag| service.build_and_add_semaphore(&connection, tag).unwrap());
        comm.setup(soon()).unwrap();
        let [semaphore, other] = semaphores.map(|semaphore| semaphore.get().unwrap());
        let [theirs, their_packets] = theirs.map(|memory| memory.get().unwrap());
        let add = |memory| service.add_memory(memory).unwrap();
        let (dst, src) = (add(&theirs), add(&mine));
        let data_memory = register(&data);
        let channel = PortChannel::new(&service, semaphore, dst, src).unwrap();
        let packets = PortChannel::with_packets(
            &service,
            other,
            add(&their_packets),
            add(&packed),
            &data_memory,
            &inboxes[1],
        );
        Self {
            stream: Stream::new(comm.context()).unwrap(),
            rank,
            transport: endpoint.transport,
            peer,
            service,
            local,
            inbox,
            channel,
            data,
            packets,
        }
    }

    pub(super) fn me(&self) -> u32 {
        self.rank.me()
    }

    pub(super) fn done(&self) {
        self.stream.synchronize(soon()).unwrap();
    }

    pub(super) fn load(&self, buffer: &GpuBuffer, data: &[u8]) {
        buffer.upload(0, data, soon()).unwrap();
    }

    pub(super) fn contents(&self, buffer: &GpuBuffer) -> Vec<u8> {
        let mut seen = vec![0; buffer.len()];
        buffer.download(0, &mut seen, soon()).unwrap();
        seen
    }
}
