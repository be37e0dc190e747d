//! A connection to one partner over any transport, between memories of either kind.

use std::fmt;
use std::sync::Arc;

use anyhow::Result;
use aqueduct::comm::{Connection, Host2HostSemaphore, HostBuffer, RegisteredMemory, Transport};

use super::check::Check;
use super::group::LEN;

/// Kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Device,
    Host,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "device",
            Self::Host => "host",
        })
    }
}

/// This rank's end of a connection, with memories of `LEN` bytes.
pub(super) struct Link {
    pub(super) peer: u32,
    pub(super) connection: Connection,
    pub(super) semaphore: Host2HostSemaphore,
    /// Source of this rank's writes, and target of its reads.
    pub(super) local: RegisteredMemory,
    /// Target of the peer's writes.
    pub(super) inbox: RegisteredMemory,
    /// The peer's inbox.
    pub(super) theirs: RegisteredMemory,
}

impl Link {
    /// Connects to rank `peer`, which does the same with the same `tag`.
    pub(super) fn new(
        check: &Check<'_>,
        peer: u32,
        transport: Transport,
        (local, inbox): (Kind, Kind),
        tag: u64,
    ) -> Result<Self> {
        let comm = &check.group.comm;
        let memory = |kind| -> Result<RegisteredMemory> {
            Ok(match kind {
                Kind::Device => comm.register_memory(&check.buffer(LEN)?, transport)?,
                Kind::Host => {
                    comm.register_host(&Arc::new(HostBuffer::new(comm.context(), LEN)?), transport)?
                }
            })
        };
        let (local, inbox) = (memory(local)?, memory(inbox)?);
        comm.send_memory(&inbox, peer, tag)?;
        let theirs = comm.recv_memory(peer, tag)?;
        let connection = comm.connect(peer, tag, transport)?;
        let semaphore = comm.build_host2host_semaphore(&connection, tag)?;
        comm.setup(check.deadline())?;
        let (connection, semaphore, theirs) = (connection.get()?, semaphore.get()?, theirs.get()?);
        Ok(Self { peer, connection, semaphore, local, inbox, theirs })
    }
}

/// Stores `data` at the start of a memory of this rank.
pub(super) fn load(check: &Check<'_>, memory: &RegisteredMemory, data: &[u8]) -> Result<()> {
    match memory.host() {
        Some(host) => host.write(0, data)?,
        None => memory.slice()?.upload(0, data, check.deadline())?,
    }
    Ok(())
}

/// All bytes of a memory of this rank.
pub(super) fn contents(check: &Check<'_>, memory: &RegisteredMemory) -> Result<Vec<u8>> {
    let mut seen = vec![0; memory.len()];
    match memory.host() {
        Some(host) => host.read(0, &mut seen)?,
        None => memory.slice()?.download(0, &mut seen, check.deadline())?,
    }
    Ok(check.read_back(seen))
}
