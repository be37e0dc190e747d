//! A communicator with, for each partner of this rank, the channels and buffers that checks use.

use std::sync::Arc;

use anyhow::Result;
use aqueduct::channel::MemoryChannel;
use aqueduct::comm::{
    Communicator, CommunicatorConfig, Device2DeviceSemaphore, Pending, RegisteredMemory, Transport,
};
use aqueduct::gpu::{GpuBuffer, Stream};

use crate::job::Rank;

/// Bytes of each buffer: more than one iteration of the largest copy launch, with room on either side.
pub(super) const LEN: usize = 96 << 10;

/// Distance between the packet formats' regions in the packet buffer. A region keeps one format for life.
pub(super) const PACKET_REGION: usize = 64 << 10;

/// A communicator, and this rank's partners in it.
pub(super) struct Group {
    pub(super) comm: Communicator,
    /// Other ranks that this one is checked with, in the order in which they meet.
    pub(super) partners: Vec<u32>,
    /// The pairs with those partners whose memory this device reaches.
    pub(super) pairs: Vec<Pair>,
}

/// This rank's side of a pair: all it needs for checks with one partner.
pub(super) struct Pair {
    pub(super) peer: u32,
    pub(super) stream: Stream,
    /// Source of puts of `data` and `packets`, and target of gets and unpacked packets. `ring` has a buffer of its own.
    pub(super) local: Arc<GpuBuffer>,
    /// Target of the peer's `data` channel.
    pub(super) inbox: Arc<GpuBuffer>,
    pub(super) semaphore: Device2DeviceSemaphore,
    pub(super) data: MemoryChannel,
    pub(super) packets: MemoryChannel,
    /// Source and target of `ring`, here and at the peer.
    pub(super) ring_buffer: Arc<GpuBuffer>,
    pub(super) ring: MemoryChannel,
}

impl Group {
    /// Makes a communicator over all ranks of the job and sets up a pair with this rank's partner of each round.
    /// Collective.
    pub(super) fn new(rank: &Rank, rounds: &[u32]) -> Result<Self> {
        let config = CommunicatorConfig::from_env()?;
        let comm = Communicator::new(&rank.bootstrap, &rank.context, config, rank.deadline())?;
        let reachable = |peer: &u32| comm.topology().peer(*peer).is_some_and(|peer| peer.is_reachable());
        let met = |&round: &u32| partner(round, comm.rank(), comm.size());
        let partners: Vec<u32> = rounds.iter().filter_map(met).collect();
        let mut pending = Vec::new();
        for &peer in partners.iter().filter(|&peer| reachable(peer)) {
            pending.push(PendingPair::of(&comm, peer)?);
        }
        comm.setup(rank.deadline())?;
        let pairs = pending.into_iter().map(PendingPair::pair).collect::<Result<_>>()?;
        Ok(Self { comm, partners, pairs })
    }
}

/// The rounds in which some rank has a partner. With `quick`, only as many as give every rank a partner.
pub(super) fn rounds(size: u32, quick: bool) -> Vec<u32> {
    let any = |round: &u32| (0..size).any(|rank| partner(*round, rank, size).is_some());
    // A rank without a partner in round 1 has one in round 2.
    let wanted = if quick { 1..size.min(3) } else { 0..size };
    wanted.filter(any).collect()
}

/// The partner of `rank` in `round`: the two ranks add up to the round's number, modulo the size.
pub(super) fn partner(round: u32, rank: u32, size: u32) -> Option<u32> {
    let partner = (round + size - rank) % size;
    (partner != rank).then_some(partner)
}

/// A pair before `setup()`.
struct PendingPair {
    stream: Stream,
    local: Arc<GpuBuffer>,
    inbox: Arc<GpuBuffer>,
    local_memory: RegisteredMemory,
    packet_memory: RegisteredMemory,
    ring_buffer: Arc<GpuBuffer>,
    ring_memory: RegisteredMemory,
    /// The peer's inbox, packet buffer and ring buffer.
    theirs: [Pending<RegisteredMemory>; 3],
    semaphores: [Pending<Device2DeviceSemaphore>; 3],
}

impl PendingPair {
    fn of(comm: &Communicator, peer: u32) -> Result<Self> {
        let buffer = |len| GpuBuffer::new(comm.context(), len).map(Arc::new);
        let register = |buffer| comm.register_memory(buffer, Transport::CudaIpc);
        let (local, inbox, packets) = (buffer(LEN)?, buffer(LEN)?, buffer(3 * PACKET_REGION)?);
        let ring_buffer = buffer(LEN)?;
        let (local_memory, packet_memory, ring_memory) =
            (register(&local)?, register(&packets)?, register(&ring_buffer)?);
        comm.send_memory(&register(&inbox)?, peer, 0)?;
        comm.send_memory(&packet_memory, peer, 1)?;
        comm.send_memory(&ring_memory, peer, 2)?;
        let connection = comm.connect(peer, 0, Transport::CudaIpc)?;
        Ok(Self {
            stream: Stream::new(comm.context())?,
            local,
            inbox,
            local_memory,
            packet_memory,
            ring_buffer,
            ring_memory,
            theirs: [comm.recv_memory(peer, 0)?, comm.recv_memory(peer, 1)?, comm.recv_memory(peer, 2)?],
            semaphores: [
                comm.build_semaphore(&connection, 0)?,
                comm.build_semaphore(&connection, 1)?,
                comm.build_semaphore(&connection, 2)?,
            ],
        })
    }

    fn pair(self) -> Result<Pair> {
        let [data, packets, ring] = self.semaphores;
        let [inbox, packet_buffer, ring_buffer] = self.theirs;
        let semaphore = data.get()?;
        Ok(Pair {
            peer: semaphore.peer(),
            data: MemoryChannel::new(&semaphore, &inbox.get()?, &self.local_memory, None)?,
            packets: MemoryChannel::new(
                &packets.get()?,
                &packet_buffer.get()?,
                &self.local_memory,
                Some(&self.packet_memory),
            )?,
            ring: MemoryChannel::new(&ring.get()?, &ring_buffer.get()?, &self.ring_memory, None)?,
            ring_buffer: self.ring_buffer,
            stream: self.stream,
            local: self.local,
            inbox: self.inbox,
            semaphore,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_meets_in_one_round_and_quick_rounds_give_every_rank_a_partner() {
        for size in 1..=9u32 {
            let mut met = Vec::new();
            for round in rounds(size, false) {
                for rank in 0..size {
                    let Some(peer) = partner(round, rank, size) else { continue };
                    assert_eq!(partner(round, peer, size), Some(rank), "both ends agree");
                    met.push((rank, peer));
                }
            }
            met.sort_unstable();
            let all: Vec<_> =
                (0..size).flat_map(|a| (0..size).map(move |b| (a, b))).filter(|(a, b)| a != b).collect();
            assert_eq!(met, all, "{size} ranks");
            let quick = rounds(size, true);
            assert!(quick.len() <= 2);
            let meets = |rank| quick.iter().any(|&round| partner(round, rank, size).is_some());
            assert!(size == 1 || (0..size).all(meets), "{size} ranks, quickly");
        }
    }
}
