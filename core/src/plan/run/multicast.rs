//! Switches on multicast hardware: which ranks can, and the objects of a plan's teams.
//!
//! Every step is followed by a meeting of all ranks: if one rank cannot, none goes on, and all reach the members of switches one
//! by one. So no rank waits for one that has given up, and binding, which waits for all devices without a deadline, finds them.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::agreement::all_can;
use super::config::ExecutorConfig;
use super::ir::{Plan, Protocol};
use super::lower::{Store, Team, teams};
use super::sizes::Chunks;
use crate::comm::{Communicator, Pending};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::multicast::{MulticastObject, granularity};
use crate::gpu::vmm::{Mapping, PhysicalAllocation};
use crate::memory::{BindingPlace, Teammate};
use crate::setup::key::SETUP;
use crate::wire::{Reader, WireResult, Writer};

/// Tells the exchanges of one call of setup apart that lead to one peer.
const NTH: u32 = 40;

/// The multicast objects of a prepared plan.
#[derive(Debug)]
pub(super) struct Multicast {
    /// All of the plan, by number.
    teams: Vec<Team>,
    granularity: u64,
    /// Over scratch.
    pub(super) scratch: Joined,
    /// The most chunks of a rank's input and output.
    most: [u32; 2],
}

/// The objects of this rank's teams over some of its memories, mapped.
#[derive(Debug)]
pub(super) struct Joined {
    /// By the team's number; none for teams of other memories, and of other ranks.
    mappings: Vec<Option<Mapping>>,
    /// Bytes bound of arena, input and output.
    bytes: [u64; 3],
    /// Behind the mappings: peers may end their bindings once these are gone.
    _teammates: Vec<Arc<Teammate>>,
    _places: Vec<Arc<BindingPlace>>,
}

/// The teams for which this rank makes kernels with multicast addresses, and the granularity of their objects. None unless it was
/// asked for; a device that cannot is no error.
pub(super) fn wanted(comm: &Communicator, plan: &Plan, config: &ExecutorConfig) -> Option<(Vec<Team>, u64)> {
    if !config.multicast.unwrap_or(comm.config().multicast) {
        return None;
    }
    let teams = teams(plan);
    if teams.is_empty() {
        return None;
    }
    if plan.settings.protocol == Protocol::Ll128 {
        log::warn!("{}: switches go without multicast, because LL128 packets have none", plan.name);
        return None;
    }
    match possible(comm, &teams) {
        Ok(granularity) => Some((teams, granularity)),
        Err(error) => {
            log::warn!("{}: switches go without multicast: {error}", plan.name);
            None
        }
    }
}

fn possible(comm: &Communicator, teams: &[Team]) -> Result<u64> {
    let (context, device) = (comm.context(), comm.context().device());
    let unsupported = |message: String| Err(Error::new(ErrorKind::Unsupported, "multicast", message));
    if !device.supports_multicast()? {
        return unsupported(format!("device {} has none", device.ordinal()));
    }
    if !device.supports_fd_handles()? {
        return unsupported(format!("device {} shares no memory by descriptors", device.ordinal()));
    }
    let mine = || teams.iter().filter(|team| team.ranks.contains(&comm.rank()));
    for &peer in mine().flat_map(|team| &team.ranks).filter(|&&peer| peer != comm.rank()) {
        if !comm.topology().peer(peer).is_some_and(|peer| peer.same_host && !peer.same_device) {
            return unsupported(format!("rank {peer} is on another host, or on the same device"));
        }
    }
    let of = |team: &Team| granularity(context, u32::try_from(team.ranks.len()).unwrap_or(u32::MAX));
    let largest = mine().map(of).try_fold(1, |most, next| Ok::<_, Error>(most.max(next?)))?;
    Ok(largest as u64)
}

/// Makes the objects of the teams over scratch. Returns `None` on all ranks if one rank cannot.
pub(super) fn over_scratch(
    comm: &Communicator,
    op: &'static str,
    plan: &Plan,
    granularity: u64,
    arena: Option<(&Arc<PhysicalAllocation>, u64)>,
    tag: u64,
    deadline: Deadline,
) -> Result<Option<Multicast>> {
    let teams = teams(plan);
    let bytes = [arena.map_or(0, |(_, bytes)| bytes), 0, 0];
    let memories = [arena.map(|(memory, _)| memory), None, None];
    let joined = Joined::of(comm, op, (&teams, &[Store::Arena]), memories, bytes, tag, deadline)?;
    let most = [Store::Input, Store::Output].map(|store| {
        let chunks = plan.ranks.iter().map(|rank| match store {
            Store::Output => rank.output_chunks,
            _ => rank.input_chunks,
        });
        chunks.max().unwrap_or(0)
    });
    let made = joined.map(|scratch| Multicast { teams, granularity, scratch, most });
    if made.is_some() {
        log::warn!("{}: switches are on multicast, which no hardware has confirmed", plan.name);
    }
    Ok(made)
}

impl Multicast {
    /// Whether there are teams over users' buffers.
    pub(super) fn reaches_users(&self) -> bool {
        self.teams.iter().any(|team| team.store != Store::Arena)
    }

    /// Makes the objects of the teams over buffers that are shown. Returns `None` on all ranks if one rank cannot.
    pub(super) fn over_buffers(
        &self,
        comm: &Communicator,
        op: &'static str,
        buffers: [Option<&Arc<PhysicalAllocation>>; 2],
        tag: u64,
        deadline: Deadline,
    ) -> Result<Option<Joined>> {
        // Objects are as long as the shortest buffer of all ranks.
        let bytes = buffers.map(|memory| memory.map_or(0, |memory| memory.size() as u64));
        let mut least = bytes;
        for (rank, theirs) in (0..).zip(comm.gather(op, &encode(bytes), deadline)?) {
            let theirs = decode(&theirs).map_err(|error| {
                let message = format!("rank {rank} called something else; make the same calls on all ranks");
                Error::new(ErrorKind::Remote, op, message).with_peer(rank).with_source(error)
            })?;
            least = std::array::from_fn(|side| least[side].min(theirs[side]));
        }
        let [input, output] = least.map(|bytes| bytes / self.granularity * self.granularity);
        let memories = [None, buffers[0], buffers[1]];
        let stores = [Store::Input, Store::Output];
        Joined::of(comm, op, (&self.teams, &stores), memories, [0, input, output], tag, deadline)
    }

    /// Whether a call of so many bytes in chunks of `chunk` bytes accesses only whole vectors within what is bound. All ranks
    /// answer alike.
    pub(super) fn serves(&self, joined: &Joined, chunks: Chunks, bytes: u64, chunk: u64) -> bool {
        let fits = |(store, most): (Store, u32)| {
            let used = self.teams.iter().any(|team| team.store == store);
            !used || chunks.buffer(most, bytes, chunk) <= joined.bytes[place(store)]
        };
        bytes.is_multiple_of(16)
            && chunk.is_multiple_of(16)
            && [Store::Input, Store::Output].into_iter().zip(self.most).all(fits)
    }
}

impl Joined {
    /// The address of a team's memory in this process.
    pub(super) fn address(&self, number: u32) -> Option<u64> {
        Some(self.mappings.get(number as usize)?.as_ref()?.ptr())
    }

    /// Makes the objects of this rank's teams over some memories, which have so many `bytes` to bind. Collective.
    fn of(
        comm: &Communicator,
        op: &'static str,
        (teams, stores): (&[Team], &[Store]),
        memories: [Option<&Arc<PhysicalAllocation>>; 3],
        bytes: [u64; 3],
        tag: u64,
        deadline: Deadline,
    ) -> Result<Option<Self>> {
        let is_mine = |team: &Team| stores.contains(&team.store) && team.ranks.contains(&comm.rank());
        let mine = (0..).zip(teams).filter(|(_, team)| is_mine(team));
        let tag_of = |number: u64| tag | (number + 1) << NTH;
        let begin = |(number, team): (u64, &Team)| {
            let size = bytes[place(team.store)];
            begin(comm, number, team, memories[place(team.store)], size, tag_of(number))
        };
        let begun = mine.clone().map(begin).collect::<Result<Vec<_>>>();
        let withdraw = || comm.withdraw(&mine.clone().map(|(number, _)| tag_of(number)).collect::<Vec<_>>());
        let begun = all_can(comm, op, begun, deadline).inspect_err(|_| withdraw())?;
        let Some(begun) = begun else {
            withdraw();
            return Ok(None);
        };
        let set_up = comm.setup(deadline).map_err(|error| error.called(SETUP, op));
        let added = set_up.and_then(|()| {
            let added = begun.into_iter().map(|member| member.add(comm));
            added.collect::<Result<Vec<_>>>()
        });
        let Some(added) = all_can(comm, op, added, deadline)? else { return Ok(None) };
        let bound = added.iter().try_for_each(Added::bind);
        let Some(()) = all_can(comm, op, bound, deadline)? else { return Ok(None) };
        let mapped = added.iter().map(|member| member.object.map()).collect::<Result<Vec<_>>>();
        let Some(mapped) = all_can(comm, op, mapped, deadline)? else { return Ok(None) };
        let mut joined = Self {
            mappings: teams.iter().map(|_| None).collect(),
            bytes,
            _teammates: Vec::new(),
            _places: Vec::new(),
        };
        for (member, mapping) in added.into_iter().zip(mapped) {
            joined.mappings[member.number] = Some(mapping);
            joined._teammates.extend(member.teammates);
            joined._places.push(member.place);
        }
        Ok(Some(joined))
    }
}

/// A team of this rank whose members have been asked for their promises.
struct Begun {
    number: usize,
    /// If this rank has made it.
    object: Option<MulticastObject>,
    memory: Arc<PhysicalAllocation>,
    size: usize,
    place: Arc<BindingPlace>,
    teammates: Vec<Pending<Arc<Teammate>>>,
}

/// A team to which this rank's device has been added.
struct Added {
    number: usize,
    object: MulticastObject,
    memory: Arc<PhysicalAllocation>,
    size: usize,
    place: Arc<BindingPlace>,
    teammates: Vec<Arc<Teammate>>,
}

/// The lowest rank of a team makes its object and passes it on.
fn begin(
    comm: &Communicator,
    number: u64,
    team: &Team,
    memory: Option<&Arc<PhysicalAllocation>>,
    size: u64,
    tag: u64,
) -> Result<Begun> {
    let unsupported = |message: &'static str| Error::new(ErrorKind::Unsupported, "multicast", message);
    let memory =
        memory.ok_or_else(|| unsupported("this memory was allocated without virtual memory management"))?;
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    if size == 0 || size > memory.size() {
        return Err(unsupported("a rank's memory is shorter than the granularity of multicast"));
    }
    let devices = u32::try_from(team.ranks.len()).unwrap_or(u32::MAX);
    let makes = team.ranks[0] == comm.rank();
    let object = makes.then(|| MulticastObject::create(comm.context(), devices, size)).transpose()?;
    let place = Arc::new(BindingPlace::new());
    let join = |&peer: &u32| {
        let fd = object.as_ref().map(MulticastObject::export_fd).transpose()?;
        comm.join_team_internal(peer, tag, fd, &place)
    };
    let peers = team.ranks.iter().filter(|&&peer| peer != comm.rank());
    let teammates = peers.map(join).collect::<Result<_>>()?;
    Ok(Begun { number: number as usize, object, memory: memory.clone(), size, place, teammates })
}

impl Begun {
    /// Adds this rank's device to the object, which it may have got from the lowest rank.
    fn add(self, comm: &Communicator) -> Result<Added> {
        let Self { number, object, memory, size, place, teammates } = self;
        let teammates = teammates.iter().map(Pending::get).collect::<Result<Vec<_>>>()?;
        let fd = || teammates.first().and_then(|lowest| lowest.fd.as_ref()).map(OwnedFd::as_fd);
        let object = match (object, fd()) {
            (Some(object), _) => object,
            (None, Some(fd)) => MulticastObject::import_fd(comm.context(), fd, size)?,
            (None, None) => {
                let message = "the lowest rank of a switch has sent no multicast object";
                return Err(Error::new(ErrorKind::Remote, "multicast", message));
            }
        };
        object.add_device()?;
        Ok(Added { number, object, memory, size, place, teammates })
    }
}

impl Added {
    fn bind(&self) -> Result<()> {
        self.place.fill(self.object.bind(&self.memory, self.size)?);
        Ok(())
    }
}

fn place(store: Store) -> usize {
    match store {
        Store::Arena => 0,
        Store::Input => 1,
        Store::Output => 2,
    }
}

fn encode(bytes: [u64; 2]) -> Vec<u8> {
    let mut w = Writer::new();
    w.u64(bytes[0]).u64(bytes[1]);
    w.finish()
}

fn decode(bytes: &[u8]) -> WireResult<[u64; 2]> {
    let mut r = Reader::new(bytes);
    let bytes = [r.u64()?, r.u64()?];
    r.finish()?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::samples;

    /// The software device binds whole buffers; where granules are larger, their ends stay unbound.
    #[test]
    fn calls_beyond_what_is_bound_go_without_multicast() {
        let plan = samples::all().into_iter().find(|plan| plan.name == "switch").unwrap();
        let teams = teams(&plan);
        let joined =
            |bytes| Joined { mappings: vec![None], bytes, _teammates: Vec::new(), _places: Vec::new() };
        let multicast = Multicast { teams, granularity: 1, scratch: joined([0; 3]), most: [2, 2] };
        let serves =
            |bound, bytes, chunk| multicast.serves(&joined([0, bound, 0]), Chunks::of(&plan), bytes, chunk);
        assert!(serves(4096, 4096, 2048) && !serves(4095, 4096, 2048));
        assert!(!serves(8192, 4100, 2064), "the last vector is not whole");
        assert!(serves(8192, 4112, 2064) && !serves(8192, 4112, 2056));
    }
}
