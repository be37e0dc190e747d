//! Scratch regions: memory of the same layout on every rank, mapped by all of them.

use std::sync::Arc;

use aqueduct_ptx::abi;

use crate::comm::{Communicator, Pending, RegisteredMemory, Transport, Transports};
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{BufferOptions, GpuBuffer, HandlePolicy, KeepAlive};

/// Size, layout and packet format of a region.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegionSpec {
    /// One of `abi::PACKET_FORMAT_*`, for life.
    pub(super) format: u32,
    /// Bytes of the whole region.
    pub(super) bytes: u64,
    /// Bytes of one half (packet formats), 0 otherwise.
    pub(super) half_bytes: u64,
    /// The largest grid.
    pub(super) max_blocks: u32,
    /// Bytes of one per-block entry (epoch or sequence).
    pub(super) entry_bytes: usize,
}

/// A region whose exchange is queued for `setup()`; call [`finish`](Self::finish) behind it.
pub(super) struct PendingRegion {
    spec: RegionSpec,
    buffer: Arc<GpuBuffer>,
    entries: GpuBuffer,
    peers: Vec<Option<Pending<RegisteredMemory>>>,
}

/// A region that every rank has mapped.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) handle: abi::ScratchRegion,
    /// Keeps the memory behind the handle's addresses.
    _keep: (Arc<GpuBuffer>, GpuBuffer, Vec<RegisteredMemory>, KeepAlive),
}

impl PendingRegion {
    /// Allocates this rank's part, zeroed, and asks for every other rank's under `tag`, which is reserved for the
    /// library and the same on every rank.
    pub(super) fn begin(comm: &Communicator, tag: u64, spec: RegionSpec) -> Result<Self> {
        if comm.size() as usize > abi::MAX_REGION_RANKS {
            let message =
                format!("{} ranks; a scratch region joins at most {}", comm.size(), abi::MAX_REGION_RANKS);
            return Err(Error::new(ErrorKind::Unsupported, "AllReduce::prepare", message));
        }
        let bytes = usize::try_from(spec.bytes).unwrap_or(usize::MAX);
        let buffer = Arc::new(GpuBuffer::new(comm.context(), bytes)?);
        let plain = BufferOptions { zeroed: true, handles: HandlePolicy::Legacy };
        let entries = GpuBuffer::with_options(
            comm.context(),
            spec.max_blocks as usize * spec.entry_bytes + ENTRIES,
            plain,
        )?;
        let mine = comm.register_memory(&buffer, Transports::from(Transport::CudaIpc))?;
        let peers = (0..comm.size())
            .map(|peer| {
                if peer == comm.rank() {
                    return Ok(None);
                }
                comm.send_memory_internal(&mine, peer, tag)?;
                comm.recv_memory_internal(peer, tag).map(Some)
            })
            .collect::<Result<_>>()?;
        Ok(Self { spec, buffer, entries, peers })
    }

    /// The region, once `setup()` has resolved what [`begin`](Self::begin) asked for.
    pub(super) fn finish(self, comm: &Communicator) -> Result<Region> {
        let mut peers = [0; abi::MAX_REGION_RANKS];
        let mut memories = Vec::new();
        for (rank, pending) in self.peers.iter().enumerate() {
            peers[rank] = match pending {
                None => self.buffer.ptr(),
                Some(pending) => {
                    let memory = pending.get()?;
                    if memory.len() as u64 != self.spec.bytes {
                        let message = format!(
                            "rank {rank} has {} bytes of scratch, this rank {}; use the same settings on every rank",
                            memory.len(),
                            self.spec.bytes
                        );
                        return Err(Error::usage("AllReduce::prepare", message));
                    }
                    let ptr = memory.ptr();
                    memories.push(memory);
                    ptr
                }
            };
        }
        let handle = abi::ScratchRegion {
            base: self.buffer.ptr(),
            // The first bytes are the grid barrier.
            epochs: self.entries.ptr() + ENTRIES as u64,
            half_bytes: self.spec.half_bytes,
            max_blocks: self.spec.max_blocks,
            ranks: comm.size(),
            rank: comm.rank(),
            format: self.spec.format,
            barrier: self.entries.ptr(),
            abort: comm.abort_handle(),
            peers,
        };
        Ok(Region { handle, _keep: (self.buffer, self.entries, memories, comm.keep_alive()) })
    }
}

/// Offset of the per-block entries, behind the grid barrier.
const ENTRIES: usize = 64;
const _: () = assert!(size_of::<abi::GridBarrierState>() <= ENTRIES);
