//! Two ranks, connected over a transport, with memory of a given kind.

use std::sync::Arc;

use aqueduct::comm::{
    Connection, EndpointConfig, Host2HostSemaphore, HostBuffer, RegisteredMemory, Transport,
};
use aqueduct::gpu::{BufferOptions, GpuBuffer, HandlePolicy};

use crate::group::{Rank, soon};

/// Kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Host,
    Device,
}

/// This rank's side: the source of its writes, the target of the peer's writes, and the connection.
pub(super) struct Pair {
    pub(super) rank: Rank,
    pub(super) peer: u32,
    pub(super) transport: Transport,
    pub(super) endpoint: EndpointConfig,
    pub(super) source_kind: Kind,
    pub(super) target_kind: Kind,
    pub(super) source: RegisteredMemory,
    /// This rank's memory that the peer writes to.
    pub(super) inbox: RegisteredMemory,
    /// The peer's memory that this rank writes to.
    pub(super) target: RegisteredMemory,
    pub(super) connection: Connection,
    pub(super) semaphore: Host2HostSemaphore,
}

/// Bytes of source, inbox and target.
pub(super) const LEN: usize = 3 << 20;

impl Pair {
    pub(super) fn new(
        rank: Rank,
        endpoint: impl Into<EndpointConfig>,
        source_kind: Kind,
        target_kind: Kind,
    ) -> Self {
        let (peer, endpoint) = (1 - rank.me(), endpoint.into());
        let transport = endpoint.transport;
        let source = memory(&rank, transport, source_kind, LEN);
        let inbox = memory(&rank, transport, target_kind, LEN);
        let comm = &rank.comm;
        comm.send_memory(&inbox, peer, 0).unwrap();
        let target = comm.recv_memory(peer, 0).unwrap();
        let connection = comm.connect(peer, 0, endpoint.clone()).unwrap();
        let semaphore = comm.build_host2host_semaphore(&connection, 0).unwrap();
        comm.setup(soon()).unwrap();
        let (target, connection, semaphore) =
            (target.get().unwrap(), connection.get().unwrap(), semaphore.get().unwrap());
        Self {
            rank,
            peer,
            transport,
            endpoint,
            source_kind,
            target_kind,
            source,
            inbox,
            target,
            connection,
            semaphore,
        }
    }

    pub(super) fn me(&self) -> u32 {
        self.rank.me()
    }
}

/// Registers `len` bytes of a kind. Only touched pages of a large memory exist.
pub(super) fn memory(rank: &Rank, transport: Transport, kind: Kind, len: usize) -> RegisteredMemory {
    match kind {
        Kind::Host => {
            let buffer = Arc::new(HostBuffer::new(rank.comm.context(), len).unwrap());
            rank.comm.register_host(&buffer, transport).unwrap()
        }
        Kind::Device => {
            let options = BufferOptions { zeroed: len <= 1 << 30, handles: HandlePolicy::Auto };
            let buffer = Arc::new(GpuBuffer::with_options(rank.comm.context(), len, options).unwrap());
            rank.comm.register_memory(&buffer, transport).unwrap()
        }
    }
}

/// Stores `data` at `offset` of a memory of this rank.
pub(super) fn load(memory: &RegisteredMemory, offset: usize, data: &[u8]) {
    match memory.host() {
        Some(host) => host.write(offset, data).unwrap(),
        None => memory.slice().unwrap().upload(offset, data, soon()).unwrap(),
    }
}

/// Loads `len` bytes at `offset` of a memory of this rank.
pub(super) fn look(memory: &RegisteredMemory, offset: usize, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    match memory.host() {
        Some(host) => host.read(offset, &mut data).unwrap(),
        None => memory.slice().unwrap().download(offset, &mut data, soon()).unwrap(),
    }
    data
}
