//! Port channels of a plan: connections, a proxy, and the handles that kernels take.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use aqueduct_ptx::abi::{DeviceStruct as _, PortChannelHandle};

use super::ir::RankPlan;
use super::links::{Linking, Links, Way};
use super::lower::{Address, Store};
use crate::channel::PortChannel;
use crate::comm::{Communicator, Host2DeviceSemaphore, Pending, RegisteredMemory, Transport};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{GpuBuffer, Stream};
use crate::proxy::{MemoryId, ProxyService, SemaphoreId};

/// Tells the objects of one call of setup apart that lead to one peer: above the tags of 2^28 calls, and with room for all channels of a rank.
const NTH: u32 = 44;

/// Port channels whose connections are queued for `setup()`.
pub(super) struct PendingPorts {
    links: Arc<Links>,
    /// Of each channel.
    semaphores: Vec<(Way, Pending<Host2DeviceSemaphore>)>,
}

/// The port channels of a rank. They leave the service with this, but behind what the last calls have pushed.
#[derive(Debug)]
pub(super) struct Ports {
    pub(super) links: Arc<Links>,
    /// Of each channel.
    pub(super) semaphores: Vec<(Way, SemaphoreId)>,
}

/// The way by which a port channel reaches a peer, unless the user chose one: both ends see the same.
pub(super) fn transport(comm: &Communicator, peer: u32, chosen: Option<Transport>) -> Transport {
    let near = || comm.topology().peer(peer).is_some_and(|peer| peer.is_reachable());
    chosen.unwrap_or_else(|| if near() { Transport::CudaIpc } else { Transport::Ethernet })
}

/// The tags under which a rank asks for its port channels: channels to one peer are matched in their order.
pub(super) fn tags(plan: &RankPlan, tag: u64) -> Vec<u64> {
    let mut seen: BTreeMap<u32, u64> = BTreeMap::new();
    let nth = plan.port_channels.iter().map(|&peer| {
        let count = seen.entry(peer).or_default();
        *count += 1;
        *count
    });
    nth.map(|nth| tag | nth << NTH).collect()
}

impl PendingPorts {
    /// Asks for a connection to each peer that has none, and a semaphore for each channel; nothing for a plan without ports.
    pub(super) fn begin(
        comm: &Communicator,
        linking: &mut Linking<'_>,
        plan: &RankPlan,
        tag: u64,
        chosen: Option<Transport>,
    ) -> Result<Option<Self>> {
        if plan.port_channels.is_empty() {
            return Ok(None);
        }
        let links = linking.links()?;
        let semaphores = plan.port_channels.iter().zip(tags(plan, tag)).map(|(&peer, tag)| {
            let way = (peer, transport(comm, peer, chosen));
            let connection = linking.connection(way, tag)?;
            Ok((way, comm.build_host2device_semaphore_internal(connection, tag)?))
        });
        Ok(Some(Self { semaphores: semaphores.collect::<Result<_>>()?, links }))
    }

    /// The channels, once `setup()` has resolved what [`begin`](Self::begin) asked for.
    pub(super) fn finish(self) -> Result<Ports> {
        let mut ports = Ports { links: self.links, semaphores: Vec::new() };
        for (way, pending) in self.semaphores {
            let id = ports.links.add(way, &pending.get()?)?;
            ports.semaphores.push((way, id));
        }
        Ok(ports)
    }
}

impl Drop for Ports {
    fn drop(&mut self) {
        self.semaphores.iter().for_each(|&(way, id)| self.links.retire(way, id));
    }
}

/// Memories that puts read and write, by their numbers in the service. They leave it with this, but behind what the last calls have pushed.
#[derive(Debug)]
pub(super) struct Memories {
    service: ProxyService,
    /// This rank's stores, and those of peers by rank.
    numbers: HashMap<(Option<u32>, Store), MemoryId>,
}

impl Memories {
    pub(super) fn of(ports: &Ports) -> Self {
        Self { service: ports.links.service().clone(), numbers: HashMap::new() }
    }

    /// Adds memory of this rank, or of a peer.
    pub(super) fn add(&mut self, whose: Option<u32>, store: Store, memory: &RegisteredMemory) -> Result<()> {
        let number = self.service.add_memory(memory).map_err(|error| match error.kind() {
            ErrorKind::Exhausted => {
                let message = "the proxy of this communicator's plans has no number left for the plan's buffers: drop plans or shown buffers";
                Error::new(ErrorKind::Exhausted, "Executor::prepare", message).with_source(error)
            }
            _ => error,
        })?;
        self.numbers.insert((whose, store), number);
        Ok(())
    }
}

impl Drop for Memories {
    fn drop(&mut self) {
        for &number in self.numbers.values() {
            // A service that has failed or stopped has let go of them.
            let _ = self.service.retire_memory(number);
        }
    }
}

/// Handles of port channels in device memory, one for each pair of memories that a channel moves data between.
#[derive(Debug)]
pub(super) struct Handles {
    table: Option<Arc<GpuBuffer>>,
    channels: Vec<PortChannel>,
    places: HashMap<Address, usize>,
    /// Behind the channels that use them.
    _memories: Vec<Arc<Memories>>,
}

impl Handles {
    /// Makes a handle for each address that names one, with memories from the first of `memories` that has them.
    pub(super) fn new(
        comm: &Communicator,
        ports: &Ports,
        memories: Vec<Arc<Memories>>,
        addresses: impl Iterator<Item = Address>,
        deadline: Deadline,
    ) -> Result<Self> {
        let find = |whose: Option<u32>, store: Store| {
            memories.iter().find_map(|some| some.numbers.get(&(whose, store)).copied()).ok_or_else(|| {
                let message = format!("{store:?} of {whose:?} is not in the proxy");
                Error::new(ErrorKind::Internal, "Executor::prepare", message)
            })
        };
        let (mut channels, mut places, mut bytes) = (Vec::new(), HashMap::new(), Vec::new());
        for address in addresses {
            let Address::Port { channel, source, target } = address else { continue };
            if places.contains_key(&address) {
                continue;
            }
            let ((peer, _), semaphore) = ports.semaphores[channel as usize];
            let made = PortChannel::new(
                ports.links.service(),
                semaphore,
                find(Some(peer), target)?,
                find(None, source)?,
            )?;
            bytes.extend_from_slice(made.device_handle().as_bytes());
            places.insert(address, channels.len());
            channels.push(made);
        }
        let table = match bytes.is_empty() {
            true => None,
            false => {
                let table = GpuBuffer::new(comm.context(), bytes.len())?;
                table.upload(0, &bytes, deadline)?;
                Some(Arc::new(table))
            }
        };
        Ok(Self { table, channels, places, _memories: memories })
    }

    /// The address of a handle.
    pub(super) fn address(&self, address: Address) -> Option<u64> {
        let place = *self.places.get(&address)?;
        Some(self.table.as_ref()?.ptr() + (place * size_of::<PortChannelHandle>()) as u64)
    }

    /// Has waits for `stream` return an error if a channel fails.
    pub(super) fn report_to(&self, stream: &Stream) {
        self.channels.iter().for_each(|channel| channel.report_to(stream));
    }

    pub(super) fn check(&self) -> Result<()> {
        self.channels.iter().try_for_each(PortChannel::check)
    }
}
