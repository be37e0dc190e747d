//! Preparation of plans: each of its steps is one meeting of the ranks, for however many plans.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::agreement::{Agreed, Offer, agree, all_done};
use super::arena::{Parts, PendingArena, neighbours, reaches_users};
use super::compile::{Compiled, Shortage, Uncompiled, demand, describe, scratch};
use super::config::ExecutorConfig;
use super::ir::Plan;
use super::lane::Lanes;
use super::links::{self, Demand, Linking, Links};
use super::load::Loader;
use super::lower::Team;
use super::multicast;
use super::overflow::Overflow;
use super::ports::{self, Memories, PendingPorts};
use super::prepared::Prepared;
use super::sizes::Chunks;
use super::touched::touched;
use super::trace::Trace;
use super::turns::{Beginning, Calls, Facts, Place, Turns};
use crate::comm::{Communicator, ScratchShare, Transport, Transports};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::gpu::{Room, Series};
use crate::setup::key::SETUP;
use crate::sync::raw::{AtomicU64, Ordering};

const PREPARE: &str = "Executor::prepare";

/// Tells the plans of one transaction apart: within the 16 bits of tags that a call has, above the few that it counts.
const PLAN: u32 = 8;
/// The most plans of one transaction: there are eight bits.
const MOST: usize = 256;

/// Number of the next executor.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A plan on its way.
struct Draft<'p> {
    comm: &'p Communicator,
    plan: &'p Plan,
    config: ExecutorConfig,
    /// Of its arena and its ports.
    tag: u64,
    /// The teams of its switches and the granularity of this rank's multicast objects, if this rank asks for them.
    multicast: Option<(Vec<Team>, u64)>,
}

/// What a draft has become behind the agreement.
struct Begun {
    arena: PendingArena,
    ports: Option<PendingPorts>,
    share: ScratchShare,
}

/// A draft with this rank's kernels.
struct Made {
    compiled: Compiled,
    trace: Option<Trace>,
    room: Room,
}

/// Sizes that follow from the agreement.
struct Sized {
    chunks: Chunks,
    scratch: (u64, u64),
    parts: Vec<Parts>,
    /// Bytes of scratch that the plan takes of every rank.
    share: u64,
    transports: Transports,
}

/// Prepares plans. Collective.
pub(super) fn prepare_all<'p>(
    comm: &'p Communicator,
    wanted: &[(&'p Plan, ExecutorConfig)],
    deadline: Deadline,
) -> Result<Vec<Prepared>> {
    // First, and one for all plans, so that ranks agree on tags even after a call that failed on some of them or had other plans there.
    let (tag, turns_tag) = (comm.next_internal_tag(), comm.next_internal_tag());
    let draft = |(nth, (plan, config)): (u64, &(&'p Plan, ExecutorConfig))| Draft {
        comm,
        plan,
        config: config.clone(),
        tag: tag | nth << PLAN,
        multicast: multicast::wanted(comm, plan, config),
    };
    let drafts: Vec<Draft<'_>> = (0..).zip(wanted).map(draft).collect();
    let offers: Vec<Offer> = drafts.iter().map(Draft::offer).collect();
    let compiled = match wanted.len() {
        0..=MOST => compile(comm, &drafts, &offers, deadline),
        many => Err(Error::usage(PREPARE, format!("{many} plans at once; give at most {MOST}"))),
    };
    let demand = demand_of(&drafts);
    let (number, known) = Links::find(comm, demand);
    let known_turns = comm.turns().get::<Turns>();
    let facts = Turns::facts(comm, &known_turns, drafts.iter().any(|draft| draft.turns().is_some()));
    let ((compiled, agreed), shared) = agree(comm, &offers, (number, &facts), compiled, deadline)?;
    let turns = known_turns.1.filter(|_| shared.turns.same).unwrap_or_else(Turns::new);
    let places = turns.places(&shared.turns, drafts.iter().map(Draft::turns))?;

    // Of what all ranks know: it fails on all of them or on none.
    let sized = size_all(&drafts, &agreed, 0)?.map_err(|shortage| {
        let enough = |more| matches!(size_all(&drafts, &agreed, more), Ok(Ok(_)));
        let more = least(shortage.missing(), |more| !deadline.expired() && enough(more));
        // The ranks have agreed on scratch for all plans together.
        shortage.error(agreed[0], more, comm.size())
    })?;
    // From here on a failure may leave links on some ranks only.
    let mut linking = wanted
        .iter()
        .any(|(plan, _)| links::are_wanted(plan))
        .then(|| Linking::begin(comm, known.filter(|_| shared.links), demand));
    let steps = drafts.iter().zip(&sized).zip(&compiled);
    let begun: Result<Vec<Begun>> = steps
        .map(|((draft, sized), made)| draft.begin(sized, &made.compiled, &mut linking, deadline))
        .collect();
    let calls = if shared.turns.same { facts.calls } else { Calls::default() };
    let begin_turns = || Beginning::new(comm, &turns, calls, turns_tag, deadline);
    let begun = begun.and_then(|begun| Ok((begun, shared.turns.begins.then(begin_turns).transpose()?)));
    // A rank without memory left, say, has asked its peers for nothing: they must not wait for it.
    let (begun, mut beginning) = all_done(comm, PREPARE, begun, deadline).inspect_err(|_| {
        drafts.iter().for_each(|draft| comm.withdraw(&draft.tags()));
        comm.withdraw(&[turns_tag]);
    })?;

    let set_up = comm.setup(deadline).map_err(|error| error.called(SETUP, PREPARE));
    let made = set_up.and_then(|()| {
        beginning.as_mut().map(|beginning| beginning.made(comm, deadline)).transpose()?;
        let parts = sized.into_iter().zip(compiled).zip(begun).zip(places);
        let finished = drafts.iter().zip(parts);
        let finish = |(draft, (((sized, made), begun), place)): (&Draft<'_>, _)| {
            draft.finish(sized, made, begun, place, deadline)
        };
        finished.map(finish).collect()
    });
    let failed = made.is_err();
    let made: Result<Vec<Prepared>> = all_done(comm, PREPARE, made, deadline);
    // Before calls may begin that know of it by their turns.
    made.iter().flatten().for_each(|prepared| prepared.room.confirm());
    beginning.into_iter().for_each(|beginning| beginning.end(failed, &made));
    let mut made: Vec<Prepared> = made?;
    if !shared.turns.same {
        comm.turns().set(tag, Some(&turns));
    }
    if let Some(linking) = linking {
        linking.keep(tag);
    }
    for ((prepared, draft), agreed) in made.iter_mut().zip(&drafts).zip(&agreed) {
        if let Some(granularity) = agreed.multicast {
            let arena = prepared.arena.memory();
            prepared.multicast =
                multicast::over_scratch(comm, PREPARE, draft.plan, granularity, arena, draft.tag, deadline)?;
        }
    }
    Ok(made)
}

/// Tells the ranks that prepare plans why this one does not. Returns `error`.
pub(super) fn decline(comm: &Communicator, error: Error, deadline: Deadline) -> Error {
    // As in `prepare_all`.
    comm.next_internal_tag();
    comm.next_internal_tag();
    match agree::<()>(comm, &[], (0, &Facts::default()), Err(error.clone()), deadline) {
        Ok(_) => error,
        Err(error) => error,
    }
}

/// What their port channels want of the proxy on this rank: for each plan with any a number for its arena, and one for each peer's at most.
fn demand_of(drafts: &[Draft<'_>]) -> Demand {
    let counts = drafts.iter().map(Draft::port_channels).filter(|count| *count > 0);
    counts.fold(Demand::default(), |all, count| Demand {
        semaphores: all.semaphores + count,
        memories: all.memories + drafts[0].comm.size() as usize,
    })
}

/// The sizes of all drafts, with `more` bytes of scratch than every rank has left; or which of them has too little. Plans without a size
/// take a part of what the others leave, so that no plan has less for want of less.
fn size_all(
    drafts: &[Draft<'_>],
    agreed: &[Agreed],
    more: u64,
) -> Result<std::result::Result<Vec<Sized>, Shortage>> {
    let (mut taken, mut all) = (0, Vec::new());
    let mut order: Vec<usize> = (0..drafts.len()).collect();
    order.sort_by_key(|&nth| drafts[nth].config.max_bytes.is_none());
    for nth in order {
        let (draft, agreed) = (&drafts[nth], &agreed[nth]);
        let chunks = Chunks::of(draft.plan);
        let left = agreed.scratch_bytes.saturating_add(more).saturating_sub(taken);
        let scratch = match scratch(draft.plan, chunks, &draft.config, left) {
            Ok(scratch) => scratch,
            Err(shortage) => return Ok(Err(shortage)),
        };
        let parts = Parts::of_all(draft.plan, scratch.0, agreed.multicast)?;
        let share = parts.iter().map(Parts::scratch_bytes).max().unwrap_or(0);
        taken += share;
        all.push((nth, Sized { chunks, scratch, parts, share, transports: draft.transports() }));
    }
    all.sort_by_key(|(nth, _)| *nth);
    Ok(Ok(all.into_iter().map(|(_, sized)| sized).collect()))
}

/// The least number of bytes from `from` on that is `enough`, if any is that a device may have. What is more than enough is enough.
fn least(from: u64, enough: impl Fn(u64) -> bool) -> Option<u64> {
    const MOST: u64 = 1 << 50;
    let mut above = from.max(1);
    let mut below = above - 1;
    while !enough(above) {
        below = above;
        above = above.checked_mul(2).filter(|&bytes| bytes <= MOST)?;
    }
    while above - below > 1 {
        let middle = below + (above - below) / 2;
        if enough(middle) { above = middle } else { below = middle }
    }
    Some(above)
}

/// This rank's kernels of each draft, the records that they write, and their room on the device.
fn compile(
    comm: &Communicator,
    drafts: &[Draft<'_>],
    offers: &[Offer],
    deadline: Deadline,
) -> Result<Vec<Made>> {
    let (began, was_late) = (Instant::now(), deadline.expired());
    let in_time = || {
        // Otherwise the meeting of the ranks would blame one that has not come yet.
        if comm.size() > 1 && !was_late && deadline.expired() {
            return Err(compiled_too_late(drafts.len(), began.elapsed()));
        }
        comm.check_all(PREPARE)
    };
    let uncompiled = drafts.iter().zip(offers).map(|(draft, offer)| {
        in_time()?;
        draft.uncompiled(offer)
    });
    let uncompiled = uncompiled.collect::<Result<Vec<_>>>()?;
    let kernels: Vec<_> = uncompiled.iter().flat_map(Uncompiled::kernels).collect();
    let mut functions = Loader::of(comm).load(&kernels, in_time)?.into_iter();
    in_time()?;
    let compiled = drafts.iter().zip(uncompiled).map(|(draft, uncompiled)| {
        let compiled = uncompiled.loaded(comm.context(), &mut functions)?;
        // Before the ranks tell each other whether their kernels have room.
        let config = &draft.config;
        let room = comm.company().reserve(PREPARE, demand(&compiled)?, config.any_order, config.series)?;
        Ok(Made { compiled, trace: draft.trace(deadline)?, room })
    });
    compiled.collect()
}

#[cold]
fn compiled_too_late(plans: usize, took: Duration) -> Error {
    let text = format!(
        "the deadline passed {took:?} after this rank had begun to compile the kernels of {plans} plans; give more time, fewer variants, or a \
         folder for compiled kernels (AQUEDUCT_CACHE, CommunicatorConfig::with_cache)"
    );
    Error::timeout(PREPARE, text)
}

impl Draft<'_> {
    fn uncompiled(&self, offer: &Offer) -> Result<Uncompiled> {
        let teams = self.multicast.as_ref().map_or(&[][..], |(teams, _)| teams);
        describe(self.comm, self.plan, &self.config, offer, teams)
    }

    /// For the records that the kernels write.
    fn trace(&self, deadline: Deadline) -> Result<Option<Trace>> {
        let mine = &self.plan.ranks[self.comm.rank() as usize];
        let trace = |records| Trace::new(self.comm, mine, records, deadline);
        self.config.records().map(trace).transpose()
    }

    /// How many this rank has.
    fn port_channels(&self) -> usize {
        self.plan.ranks.get(self.comm.rank() as usize).map_or(0, |mine| mine.port_channels.len())
    }

    /// Of which series it takes turns, if any, where there is no room; `None` if it does not, as one for which there always is.
    fn turns(&self) -> Option<Option<Series>> {
        let ExecutorConfig { call_order, any_order, series, .. } = self.config;
        (!call_order && !any_order).then_some(series)
    }

    fn offer(&self) -> Offer {
        let granularity = self.multicast.as_ref().map(|(_, granularity)| *granularity);
        Offer::new(self.plan, &self.config, granularity)
    }

    /// Allocates, and asks for what peers have.
    fn begin(
        &self,
        sized: &Sized,
        compiled: &Compiled,
        linking: &mut Option<Linking<'_>>,
        deadline: Deadline,
    ) -> Result<Begun> {
        let Self { comm, plan, config, tag, .. } = self;
        let (comm, plan, tag) = (*comm, *plan, *tag);
        let Sized { parts, transports, .. } = sized;
        let arena = PendingArena::begin(comm, plan, &compiled.control, parts, tag, *transports, deadline)?;
        let mine = &plan.ranks[comm.rank() as usize];
        let ports = match linking {
            Some(linking) => PendingPorts::begin(comm, linking, mine, tag, config.port_transport)?,
            None => None,
        };
        Ok(Begun { arena, ports, share: comm.scratch().take(sized.share) })
    }

    /// The prepared plan, once `setup()` has resolved what [`begin`](Self::begin) asked for.
    fn finish(
        &self,
        sized: Sized,
        Made { compiled, trace, room }: Made,
        begun: Begun,
        place: Place,
        deadline: Deadline,
    ) -> Result<Prepared> {
        let Self { comm, plan, config, .. } = self;
        let (comm, plan) = (*comm, *plan);
        let Sized { chunks, scratch, parts, transports, .. } = sized;
        let arena = begun.arena.finish(comm, parts)?;
        let ports = match begun.ports {
            Some(ports) => {
                let ports = ports.finish()?;
                let mut memories = Memories::of(&ports);
                arena.add_to(&mut memories)?;
                Some((ports, Arc::new(memories)))
            }
            None => None,
        };
        let longest = plan.ranks.iter().any(|rank| rank.scratch_chunks > 0).then_some(scratch.0);
        let overflow =
            |()| Overflow::new(comm.context(), &plan.collective.kind, longest, config.misfit).map(Arc::new);
        let overflow = plan.settings.variable_chunks.then_some(()).map(overflow);
        let reaches_buffers = plan.ranks.iter().any(reaches_users);
        let mut inner = Prepared {
            comm: comm.clone(),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            agreed: self.tag,
            plan: plan.clone(),
            reduction: plan.reductions().next(),
            chunks,
            touched: touched(plan, comm.rank()),
            overflow: overflow.transpose()?,
            either_place: config.either_place,
            scratch,
            _share: begun.share,
            arena,
            transports,
            reaches_buffers,
            variants: compiled.kernels,
            lanes: Lanes::new(compiled.lanes),
            by_multicast: compiled.multicast,
            multicast: None,
            room,
            place,
            handles: None,
            ports,
            trace,
        };
        if !reaches_buffers {
            inner.handles = inner.port_handles(Vec::new(), deadline)?;
        }
        Ok(inner)
    }

    /// All tags under which it asks for something.
    fn tags(&self) -> Vec<u64> {
        let mine = &self.plan.ranks[self.comm.rank() as usize];
        let mut tags = ports::tags(mine, self.tag);
        tags.push(self.tag);
        tags
    }

    /// The transports by which memory of the plan is reached.
    fn transports(&self) -> Transports {
        let Self { comm, plan, config, .. } = self;
        let mine = &plan.ranks[comm.rank() as usize];
        let ports =
            mine.port_channels.iter().map(|&peer| ports::transport(comm, peer, config.port_transport));
        // Peers on this host map it; without any, nobody asks for a handle.
        let near = !neighbours(comm.rank(), plan).is_empty();
        let near = near.then_some(Transport::CudaIpc);
        ports.chain(near).fold(Transports::default(), |all, transport| all | Transports::from(transport))
    }
}
