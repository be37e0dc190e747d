//! The plans of the built-in collectives: for each a way for small messages and one for large ones.
//!
//! Small messages go as packets through scratch, in one step. Large ones go from the peers' inputs to the peers' outputs without
//! a copy in between, which needs buffers that the peers reach.
//!
//! Ranks of several hosts have plans of their own, with port channels between hosts.
//!
//! All blocks share each range, so that a message need not divide into more parts than the collective itself has. Each block
//! has channels of its own: it touches a peer's buffers once the peer's block of the same number has begun, and no block waits
//! for others of its rank.

mod across;
mod all_gather;
mod all_reduce;
mod all_to_all;
mod barrier;
mod broadcast;
mod by_hosts;
mod gather;
mod hosts;
mod links;
mod pair;
mod reduce;
mod reduce_scatter;
mod scatter;
mod send_recv;
mod shape;

#[cfg(test)]
mod predicted;
#[cfg(test)]
mod tests;

use crate::error::Result;
use crate::plan::{Kind, Plan, Protocol};

pub(super) use across::{Averages, Length};
pub(super) use barrier::barrier;
pub(super) use hosts::Hosts;
pub(super) use shape::Shape;

/// The plan for parts of sizes of their own, on buffers that peers and proxies reach: an all-to-all or a reduce-scatter.
pub(super) fn variable(kind: &Kind, shape: Shape, hosts: &Hosts) -> Option<Result<Plan>> {
    let program = match kind {
        Kind::AllToAll => all_to_all::variable(shape, hosts),
        Kind::ReduceScatter => reduce_scatter::variable(shape, hosts),
        _ => return None,
    };
    Some(program.compile())
}

/// Whether calls in place have a plan of their own. Those of a gather and a scatter take the plan of the others: only the root
/// knows where its buffers lie.
pub(super) fn in_place_differs(kind: &Kind) -> bool {
    !matches!(kind, Kind::Gather { .. } | Kind::Scatter { .. })
}

/// The plan for ranks of several hosts, on buffers that peers and proxies reach, and how long a message may be; `None` of calls that change
/// places within one buffer, and of a collective of the user's own.
pub(super) fn over_hosts(
    kind: &Kind,
    shape: Shape,
    hosts: &Hosts,
    averages: Averages,
) -> Option<Result<(Plan, Length)>> {
    across::program(kind, shape, hosts, averages).map(|(program, length)| Ok((program.compile()?, length)))
}

/// The plan for small messages; `None` for a collective of the user's own.
pub(super) fn packets(kind: &Kind, shape: Shape) -> Option<Result<Plan>> {
    let program = match *kind {
        Kind::AllReduce => all_reduce::packets(shape),
        Kind::AllGather => all_gather::packets(shape),
        Kind::ReduceScatter => reduce_scatter::packets(shape),
        Kind::AllToAll => all_to_all::packets(shape),
        Kind::Broadcast { root } => broadcast::packets(shape, root),
        Kind::Reduce { root } => reduce::packets(shape, root),
        Kind::Gather { root } => gather::packets(shape, root),
        Kind::Scatter { root } => scatter::packets(shape, root),
        Kind::SendRecv => send_recv::packets(shape),
        Kind::Custom(_) => return None,
    };
    Some(program.compile())
}

/// The same with LL128 packets, for messages of a middling size.
pub(super) fn lines(kind: &Kind, shape: Shape) -> Option<Result<Plan>> {
    let by_lines = |mut plan: Plan| {
        plan.settings.protocol = Protocol::Ll128;
        plan
    };
    packets(kind, shape).map(|plan| plan.map(by_lines))
}

/// The plan for large messages on any buffers; `None` where a call is copied to and from memory that the peers reach instead.
pub(super) fn through_scratch(kind: &Kind, shape: Shape) -> Option<Result<Plan>> {
    match kind {
        Kind::AllReduce if shape.ranks > 1 => Some(all_reduce::through_scratch(shape).compile()),
        _ => None,
    }
}

/// The plan for larger messages on buffers that the peers reach, which pushes into scratch instead of reading from peers; `None` where
/// nobody has measured a gain: between two ranks, and of other collectives.
pub(super) fn pushed(kind: &Kind, shape: Shape) -> Option<Result<Plan>> {
    match kind {
        Kind::AllReduce if shape.ranks > 2 => Some(all_reduce::pushed(shape).compile()),
        _ => None,
    }
}

/// The plan for large messages on buffers that the peers reach; `None` where there is none: of an all-to-all in place, whose
/// parts change places, and of a collective of the user's own.
pub(super) fn zero_copy(kind: &Kind, shape: Shape) -> Option<Result<Plan>> {
    let program = match *kind {
        Kind::AllReduce => all_reduce::zero_copy(shape),
        Kind::AllGather => all_gather::zero_copy(shape),
        Kind::ReduceScatter => reduce_scatter::zero_copy(shape),
        Kind::AllToAll if !shape.in_place => all_to_all::zero_copy(shape),
        Kind::Broadcast { root } => broadcast::zero_copy(shape, root),
        Kind::Reduce { root } => reduce::zero_copy(shape, root),
        Kind::Gather { root } => gather::zero_copy(shape, root),
        Kind::Scatter { root } => scatter::zero_copy(shape, root),
        Kind::SendRecv if !shape.in_place => send_recv::zero_copy(shape),
        Kind::AllToAll | Kind::SendRecv | Kind::Custom(_) => return None,
    };
    Some(program.compile())
}

/// The plan for the largest messages on buffers that the peers reach, moved by copy engines; `None` where it would gain nothing.
pub(super) fn copied(kind: &Kind, shape: Shape) -> Option<Result<Plan>> {
    if shape.ranks < 2 {
        return None;
    }
    match *kind {
        Kind::AllReduce => all_reduce::copied(shape).map(|program| program.compile()),
        Kind::ReduceScatter => pair::reduce_scatter(shape).map(|program| program.compile()),
        Kind::Broadcast { root } => Some(broadcast::copied(shape, root).compile()),
        Kind::AllGather | Kind::AllToAll | Kind::SendRecv | Kind::Gather { .. } | Kind::Scatter { .. } => {
            zero_copy(kind, shape.by_copy_engines())
        }
        // Every move reduces.
        Kind::Reduce { .. } | Kind::Custom(_) => None,
    }
}
