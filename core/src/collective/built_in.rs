//! A prepared collective: its plans, and which of them serves a call.

use std::sync::Arc;

use super::agreement::agree_on_place;
use super::call::Call;
use super::choosing::{Chosen, Push, choose};
use super::config::{CollectiveConfig, reduces};
use super::drafts::{COPY_ENGINE, Draft, OVER_HOSTS, PUSH, TWO_SHOT, ZERO_COPY, drafts};
use super::entry::Entry;
use super::geometry::agreed_geometry;
use super::named::{called, called_for};
use super::plans::{self, Hosts};
use super::tuning::Choice;
use crate::comm::Communicator;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{DeviceSlice, GpuBuffer, Stream};
use crate::plan::{Element, Executor, Kind, PlanBuffers, Reduction, Staging};

const PREPARE: &str = "Collective::prepare";
const LAUNCH: &str = "Collective::launch";
const LAUNCH_ON: &str = "Collective::launch_on";

/// One collective over all ranks of a communicator: prepared once, then launched on streams.
///
/// Small messages go as packets through scratch, and where a table or the caller says so, longer ones as LL128 packets. Large ones
/// go directly between buffers that were shown to the peers with [`buffers`](Self::buffers), the largest by copy engines where a table,
/// the caller or a rule says so. Larger all-reduces of more than two ranks are pushed, slice by slice, into the scratch of the rank that
/// reduces them, which writes the result to all outputs. On buffers that were not shown, large messages go slice by slice through memory
/// of the library's own: an all-reduce through scratch, the others with a copy before and one behind. An all-to-all and a send-receive in
/// place always take that way. In a gather only the root has an output, in a scatter only the root an input: the others pass empty
/// slices, and in place is what the root's buffers are. The choice depends only on what all ranks must agree on: count, type, whether
/// the buffers were shown, and whether a call is in place.
///
/// Ranks of several hosts talk through port channels, whose proxies reach only scratch and buffers that were shown. A byte that all
/// ranks of a host need, or have a part of, crosses between hosts as often as with one rank for each host; in an all-reduce and a
/// reduce-scatter only where hosts have equally many ranks, and in what reduces only up to 32 ranks if averages are among the variants, and not if averages of f16 or FP8 are, for which a host's sum may be
/// too large: prepare those apart from others.
/// Where every host has several ranks, a reduce and a reduce-scatter of this kind send sums that lie in scratch, and take any buffers.
/// All other calls on buffers that were not shown go slice by slice through memory of the library's own, and so do long messages of
/// collectives that reduce.
///
/// Every rank calls with the same count, type and reduction, in the same order, and all in place or none. All calls of one
/// `Collective` belong on one stream, or on streams that the caller orders. Those of several may come in different orders on different ranks:
/// where there is no room for all on a device, ranks agree on one ([`CollectiveConfig::in_call_order`] spares that). Elements are reduced in the order of ranks, so that an
/// all-reduce gives all ranks the same bits. Where hosts spare bytes, each first reduces what its own ranks have, in their order; then come
/// the hosts in the order of their first ranks. A graph can capture calls. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Collective {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    comm: Communicator,
    kind: Kind,
    /// Nothing if the collective only moves data.
    variants: Vec<(Element, Option<Reduction>)>,
    /// The user's plans with their sizes, in the order given, then the built-in ones. The first that serves a call does.
    plans: Vec<Entry>,
    /// The first of them are the user's.
    users: usize,
    /// For calls that none of them serves.
    staging: Option<(Executor, Staging)>,
    chosen: Chosen,
}

/// An input and an output that every rank has shown its peers: see [`Collective::buffers`].
#[derive(Clone, Debug)]
pub struct CollectiveBuffers {
    of: Arc<Inner>,
    input: Arc<GpuBuffer>,
    output: Arc<GpuBuffer>,
    in_place: bool,
    /// For each plan whose buffers peers reach.
    shown: Vec<Option<PlanBuffers>>,
}

/// Which plan serves a call.
#[derive(Clone, Copy, Debug)]
enum Way {
    Plan(usize),
    Staged,
}

impl Collective {
    /// Compiles the plans, allocates their scratch and shows it to the peers. Collective: every rank calls it with the same `kind` and
    /// `config`, in the same order as other collective calls.
    ///
    /// # Errors
    /// `InvalidUsage` for a root that does not exist, a collective that reduces without variants, a plan of another collective or
    /// for no message, or settings that differ between ranks;
    /// `Unsupported` where a peer's memory cannot be reached; otherwise as for [`Executor::prepare`].
    pub fn prepare(
        comm: &Communicator,
        kind: Kind,
        config: CollectiveConfig,
        deadline: impl Into<Deadline>,
    ) -> Result<Self> {
        let deadline = deadline.into();
        let _turn = comm.collective_call(PREPARE, deadline)?;
        let geometry = agreed_geometry(comm);
        let chosen = choose(PREPARE, comm, &kind, &config, geometry, deadline)?;
        // What plans are for was agreed on, and so is which of them are passed over.
        let config = config.for_these(&kind, comm);
        // All calls belong on one stream.
        let series = comm.context().new_series();
        let drafts = drafts(&kind, &config, &chosen, (&Hosts::of(comm), geometry), series)?;
        let users = config.plans.len();
        let wanted: Vec<_> = drafts.iter().map(|draft| (&draft.plan, draft.settings.clone())).collect();
        let executors = called_for(PREPARE, &kind, Executor::prepare_all(comm, &wanted, deadline))?;
        let entry = |(draft, executor): (Draft, Executor)| {
            let Draft { name, calls, sliced, .. } = draft;
            // A reduce through scratch takes any slice of the message. In other collectives parts of it belong to different ranks.
            let sums =
                name == OVER_HOSTS && matches!(kind, Kind::Reduce { .. }) && !executor.reaches_buffers();
            Entry { name, executor, calls, sliced: sliced || sums }
        };
        let entries: Vec<Entry> = drafts.into_iter().zip(executors).map(entry).collect();
        // An all-reduce goes through scratch instead.
        let direct = entries[users..]
            .iter()
            .find(|entry| [ZERO_COPY, OVER_HOSTS].contains(&&*entry.name) && !entry.in_place());
        // Between hosts, messages that are longer than there is scratch for go slice by slice, too.
        let direct = direct.filter(|entry| entry.executor.reaches_buffers() || entry.name == OVER_HOSTS);
        let staged = direct.filter(|_| entries.iter().all(|entry| !entry.sliced));
        let staged = staged.map(|entry| entry.executor.clone());
        let staging = match staged {
            Some(executor) => {
                let longest = usize::try_from(executor.max_bytes()).unwrap_or(usize::MAX);
                let memory = Staging::prepare(&executor, chosen.staging.min(longest), deadline);
                let memory = called_for(PREPARE, &kind, memory)?;
                Some((executor, memory))
            }
            None => None,
        };
        let variants = if reduces(&kind) { config.variants } else { Vec::new() };
        let inner = Inner { comm: comm.clone(), kind, variants, plans: entries, users, staging, chosen };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Which collective it is.
    pub fn kind(&self) -> &Kind {
        &self.inner.kind
    }

    /// Shows an input and an output to the peers, for [`launch_on`](Self::launch_on). Calls on them are in place if they are one buffer.
    /// Collective: every rank calls it, all with one buffer or all with two.
    ///
    /// # Errors
    /// `InvalidUsage` for a buffer of another device, or if ranks differ in whether it is one; `Timeout`; a driver error.
    pub fn buffers(
        &self,
        input: &Arc<GpuBuffer>,
        output: &Arc<GpuBuffer>,
        deadline: impl Into<Deadline>,
    ) -> Result<CollectiveBuffers> {
        const OP: &str = "Collective::buffers";
        let (inner, deadline) = (&self.inner, deadline.into());
        let _turn = inner.comm.collective_call(OP, deadline)?;
        let in_place = Arc::ptr_eq(input, output);
        agree_on_place(OP, &inner.comm, in_place, deadline)?;
        let show = |entry: &Entry| {
            let as_planned = in_place && plans::in_place_differs(&inner.kind);
            let wanted = entry.in_place() == as_planned && entry.executor.reaches_buffers();
            wanted
                .then(|| called_for(OP, &inner.kind, entry.executor.prepare_buffers(input, output, deadline)))
                .transpose()
        };
        let shown = inner.plans.iter().map(show).collect::<Result<_>>()?;
        Ok(CollectiveBuffers {
            of: Arc::clone(inner),
            input: Arc::clone(input),
            output: Arc::clone(output),
            in_place,
            shown,
        })
    }

    /// The way of a call that is in place or not, on buffers that are not shown: `packets`, `lines`, `two-shot`, `staged`, between hosts
    /// `hosts` where scratch is all that proxies reach, or the name of a user's plan. As in [`launch`](Self::launch), no reduction means
    /// the sum.
    ///
    /// # Errors
    /// `InvalidUsage` for a count that the collective cannot have.
    pub fn algorithm(
        &self,
        in_place: bool,
        count: usize,
        element: Element,
        reduction: impl Into<Option<Reduction>>,
    ) -> Result<&str> {
        const OP: &str = "Collective::algorithm";
        let call = self.call(OP, count, element)?;
        Ok(self.name(self.way(OP, &call, in_place, false, reduction.into())?))
    }

    /// The way of a call on shown buffers: also `zero-copy`, `push` and `copy-engine`; between hosts `hosts`.
    ///
    /// # Errors
    /// As for [`algorithm`](Self::algorithm).
    pub fn algorithm_on(
        &self,
        buffers: &CollectiveBuffers,
        count: usize,
        element: Element,
        reduction: impl Into<Option<Reduction>>,
    ) -> Result<&str> {
        const OP: &str = "Collective::algorithm_on";
        let call = self.call(OP, count, element)?;
        Ok(self.name(self.way(OP, &call, buffers.in_place, true, reduction.into())?))
    }

    /// Why a call goes the way that [`algorithm`](Self::algorithm) names, or [`algorithm_on`](Self::algorithm_on) if `shown`: a line for
    /// people, which says whether the limits come from a measured table, from the caller or from a rule.
    ///
    /// # Errors
    /// As for [`algorithm`](Self::algorithm).
    pub fn explain(
        &self,
        in_place: bool,
        shown: bool,
        count: usize,
        element: Element,
        reduction: impl Into<Option<Reduction>>,
    ) -> Result<String> {
        const OP: &str = "Collective::explain";
        let call = self.call(OP, count, element)?;
        let (inner, bytes) = (&self.inner, call.bytes());
        let Choice { packet_bytes, line_bytes, packet_blocks, blocks, copy_bytes } = inner.chosen.choice;
        let longest = packet_bytes.max(line_bytes);
        let why = &inner.chosen.why;
        let buffers = if shown { "shown to the peers" } else { "not shown to the peers" };
        let way = self.way(OP, &call, in_place, shown, reduction.into())?;
        if let Way::Plan(index) = way
            && index < inner.users
        {
            let Entry { name, calls, .. } = &inner.plans[index];
            return Ok(format!("the plan {name} was given for {calls}"));
        }
        Ok(match (self.name(way), way) {
            ("packets", _) => {
                format!("{bytes} bytes are at most {packet_bytes}; up to {packet_blocks} blocks ({why})")
            }
            ("lines", _) => format!(
                "{bytes} bytes are more than {packet_bytes} and at most {line_bytes}: LL128 packets, up to {packet_blocks} blocks ({why})"
            ),
            (COPY_ENGINE, _) => format!(
                "{bytes} bytes are at least {copy_bytes}, and the buffers are {buffers}: copy engines move them ({why})"
            ),
            (PUSH, _) => {
                let Push { from, slice, why: rule } = inner.chosen.push;
                format!(
                    "{bytes} bytes are at least {from}, and the buffers are {buffers}: pushed into the peers' scratch in slices of up to {slice} \
                     bytes ({rule}; otherwise {why})"
                )
            }
            (OVER_HOSTS, Way::Plan(index)) => {
                let reaches = inner.plans[index].executor.reaches_buffers();
                let of = if reaches {
                    "the buffers, which are shown to the peers"
                } else {
                    "scratch, whatever the buffers"
                };
                format!(
                    "the ranks are on several hosts: through ports between them, from and to {of}; {blocks} blocks ({why})"
                )
            }
            (ZERO_COPY, _) => {
                format!("more than {longest} bytes, and the buffers are {buffers}; {blocks} blocks ({why})")
            }
            (_, Way::Staged) if Hosts::of(&inner.comm).count() > 1 => format!(
                "the ranks are on several hosts: through memory of the library's own, in slices of up to {} bytes, because the buffers are {buffers}, the call is longer, or it changes places within one buffer ({why})",
                inner.staging.as_ref().map_or(0, |(_, staging)| staging.bytes())
            ),
            (TWO_SHOT, _) | (_, Way::Staged) => {
                let staged =
                    if matches!(way, Way::Staged) { "memory of the library's own" } else { "scratch" };
                format!(
                    "more than {longest} bytes through {staged}: the buffers are {buffers}, or the call is in place ({why})"
                )
            }
            (name, Way::Plan(_)) => name.to_owned(),
        })
    }

    /// Enqueues a call on any buffers: `count` elements of `input` on each rank, which for a reduce-scatter and an all-to-all divide into
    /// one part for each rank. `reduction` is one of the prepared ones, [`Sum`](Reduction::Sum) if there is none; a collective that only moves
    /// data ignores it. A reduce has an output of `count` elements on every rank, which only the root's call writes. Input and output lie apart on all ranks, or are in place on all: they begin at the same address, the input of an all-gather (of the root of
    /// a gather) at this rank's part of the output, the output of a reduce-scatter (of the root of a scatter) at this rank's part of
    /// the input. The stream keeps them alive.
    ///
    /// # Errors
    /// `InvalidUsage` for a count that the collective cannot have, buffers that are too small, misaligned or overlap
    /// otherwise, or a variant that was not prepared; `PeerLost` once a rank is lost or has left; `Aborted` once the communicator is
    /// aborted; a driver error.
    pub fn launch(
        &self,
        stream: &Stream,
        input: &DeviceSlice,
        output: &DeviceSlice,
        count: usize,
        element: Element,
        reduction: impl Into<Option<Reduction>>,
    ) -> Result<()> {
        self.run(stream, [input, output], None, (count, element), reduction.into())
    }

    /// As [`launch`](Self::launch), on buffers that were shown to the peers, from their beginning: if they are one buffer, the input of an
    /// all-gather and the output of a reduce-scatter begin at this rank's part of it. Every rank passes those of one call of
    /// [`buffers`](Self::buffers).
    ///
    /// # Errors
    /// As for [`launch`](Self::launch); `InvalidUsage` for buffers of another `Collective`.
    pub fn launch_on(
        &self,
        stream: &Stream,
        buffers: &CollectiveBuffers,
        count: usize,
        element: Element,
        reduction: impl Into<Option<Reduction>>,
    ) -> Result<()> {
        if !Arc::ptr_eq(&self.inner, &buffers.of) {
            return Err(Error::usage(LAUNCH_ON, "these buffers were shown for another collective"));
        }
        let call = self.call(LAUNCH_ON, count, element)?;
        let at = if buffers.in_place { call.in_place(self.inner.comm.rank()) } else { [0, 0] };
        let [inputs, outputs] = call.needed(self.inner.comm.rank());
        let take = |name: &str, buffer: &Arc<GpuBuffer>, at: usize, len: usize| {
            buffer.slice(at..at + len).map_err(|_| {
                let message =
                    format!("this call needs {} bytes of {name}, which has {}", at + len, buffer.len());
                Error::usage(LAUNCH_ON, message)
            })
        };
        let input = take("input", &buffers.input, at[0], inputs)?;
        let output = take("output", &buffers.output, at[1], outputs)?;
        self.run(stream, [&input, &output], Some(buffers), (count, element), reduction.into())
    }

    fn run(
        &self,
        stream: &Stream,
        slices: [&DeviceSlice; 2],
        shown: Option<&CollectiveBuffers>,
        (count, element): (usize, Element),
        reduction: Option<Reduction>,
    ) -> Result<()> {
        let inner = &*self.inner;
        let op = if shown.is_some() { LAUNCH_ON } else { LAUNCH };
        inner.comm.check_all(op)?;
        self.check_variant(op, element, reduction)?;
        // Plans of the user's may be written for another one than the sum.
        let reduction = self.meant(reduction);
        let call = self.call(op, count, element)?;
        let in_place = call.place(op, inner.comm.context(), inner.comm.rank(), slices)?;
        // An empty call exchanges nothing, and so it must not use up a half of scratch.
        if count == 0 || in_place && inner.comm.size() == 1 {
            return Ok(());
        }
        let launched = match self.way(op, &call, in_place, shown.is_some(), reduction)? {
            Way::Staged => {
                let Some((executor, staging)) = &inner.staging else { return Err(no_way(op)) };
                staging.launch(executor, stream, slices, (call.division(), element), reduction)
            }
            Way::Plan(index) => {
                let shown = shown.and_then(|shown| shown.shown[index].as_ref());
                inner.plans[index].execute(stream, shown, slices, &call, reduction)
            }
        };
        called(op, launched)
    }

    /// The reduction of a call, the sum if it names none; none of collectives that do not reduce.
    fn meant(&self, reduction: Option<Reduction>) -> Option<Reduction> {
        (!self.inner.variants.is_empty()).then(|| reduction.unwrap_or(Reduction::Sum))
    }

    /// Also of one rank, whose plans only move data.
    fn check_variant(&self, op: &'static str, element: Element, reduction: Option<Reduction>) -> Result<()> {
        let (variants, wanted) = (&self.inner.variants, reduction.unwrap_or(Reduction::Sum));
        if variants.is_empty() || variants.contains(&(element, Some(wanted))) {
            return Ok(());
        }
        let unnamed = if reduction.is_none() { ", which a call without a reduction means," } else { "" };
        let message = format!(
            "{} {}{unnamed} was not prepared; name it in CollectiveConfig::with_variants",
            element.name(),
            wanted.name()
        );
        Err(Error::usage(op, message))
    }

    fn call(&self, op: &'static str, count: usize, element: Element) -> Result<Call> {
        Call::new(op, &self.inner.kind, self.inner.comm.size(), count, element)
    }

    /// The same on every rank, since it looks at nothing else.
    fn way(
        &self,
        op: &'static str,
        call: &Call,
        in_place: bool,
        shown: bool,
        reduction: Option<Reduction>,
    ) -> Result<Way> {
        let reduction = self.meant(reduction);
        // One rank has no plans of calls in place, which do nothing.
        let in_place = in_place && self.inner.comm.size() > 1 && plans::in_place_differs(&self.inner.kind);
        let serves = |entry: &Entry| {
            entry.in_place() == in_place
                && entry.calls.bytes.contains(&call.bytes())
                && entry.calls.takes(call.element, reduction)
                && (shown || !entry.executor.reaches_buffers())
                && entry.is_long_enough(call)
                && (entry.sliced || call.lengths()[0] as u64 <= entry.executor.max_bytes())
                && entry.divides(call)
        };
        match self.inner.plans.iter().position(serves) {
            Some(index) => Ok(Way::Plan(index)),
            None if self.inner.staging.is_some() => Ok(Way::Staged),
            None => Err(no_way(op)),
        }
    }

    fn name(&self, way: Way) -> &str {
        match way {
            Way::Plan(index) => &self.inner.plans[index].name,
            Way::Staged => "staged",
        }
    }
}

fn no_way(op: &'static str) -> Error {
    Error::new(ErrorKind::Internal, op, "no plan serves this call")
}
