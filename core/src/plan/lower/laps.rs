//! Laps of flags: which ranks meet before the flags of packets start over.
//!
//! They tell each other by what brings the packets: counters in each other's memory, or a port channel, whose signal comes behind what its
//! proxy has put. Ranks of different hosts map nothing of each other.

use std::collections::BTreeSet;

use aqueduct_ptx::plan as ptx;
use ptx::Number::Fixed;

use super::control::Control;
use super::ir::{ChannelKind, Form, Op, Place, Plan, Protocol, RankPlan};
use super::operands::{Address, Addresses, Store};
use super::refusal::refused;
use super::steps::{signal, wait};
use crate::error::Result;

/// How this rank begins a lap of flags: with every rank that writes packets here or reads those written from here.
pub(super) fn of_rank(
    plan: &Plan,
    rank: u32,
    control: &Control,
    addresses: &mut Addresses,
) -> Result<Option<ptx::Laps>> {
    let mut meets = BTreeSet::new();
    let mut local = false;
    for (other, from) in plan.ranks.iter().zip(0..) {
        for (to, kind) in packet_targets(from, other) {
            match () {
                () if from == rank && to == rank => local = true,
                () if from == rank => _ = meets.insert((to, kind)),
                () if to == rank => _ = meets.insert((from, kind)),
                () => {}
            }
        }
    }
    if meets.is_empty() && !local {
        return Ok(None);
    }
    let (mut signals, mut waits, mut ports) = (Vec::new(), Vec::new(), Vec::new());
    for (peer, kind) in meets {
        if kind == ChannelKind::Port {
            ports.push(Fixed(addresses.index(first_port(plan, rank, peer)?)));
        } else {
            let theirs = Control::of(plan, &plan.ranks[peer as usize])?.lap(rank);
            signals.push(signal(control.lap(peer), peer, theirs, false, addresses));
            waits.push(wait(control.lap(peer), peer));
        }
    }
    // The flush: what proxies read of this rank's packets they have read before these are zeroed.
    let asks = |&channel| ptx::Step::Port(ptx::Port { channel, put: None, signal: true, flush: true });
    let mut meeting: Vec<_> = ports.iter().map(asks).collect();
    meeting.extend([ptx::Step::Signal(signals), ptx::Step::Wait(waits)]);
    meeting.extend(ports.into_iter().map(|channel| ptx::Step::PortWait { channel }));
    let halves = if plan.settings.double_scratch { 2 } else { 1 };
    // Halves are as far apart as the rank with the most scratch needs.
    let most = plan.ranks.iter().map(|rank| rank.scratch_chunks).max().unwrap_or(0);
    let each = if packet_form(plan) == ptx::PacketForm::Ll128 { 1 } else { 2 };
    let chunks = u64::from(most) * each * halves;
    Ok(Some(ptx::Laps {
        packets: addresses.index(Address::Packets(rank)),
        chunks: u32::try_from(chunks).map_err(|_| refused("more chunks of scratch than a kernel counts"))?,
        barrier: control.lap_barrier(),
        meeting,
    }))
}

/// The first port channel to `peer`. Its other end is the peer's first one back.
fn first_port(plan: &Plan, rank: u32, peer: u32) -> Result<Address> {
    let channel = plan.ranks[rank as usize].port_channels.iter().position(|&other| other == peer);
    let channel = channel.and_then(|index| u32::try_from(index).ok());
    let none = || {
        refused(format!(
            "rank {rank} exchanges packets with rank {peer} by a port, and has no port channel to it"
        ))
    };
    Ok(Address::Port { channel: channel.ok_or_else(none)?, source: Store::Arena, target: Store::Arena })
}

/// How packets of a plan lie in scratch.
pub(super) fn packet_form(plan: &Plan) -> ptx::PacketForm {
    match plan.settings.protocol {
        Protocol::Simple | Protocol::Ll => ptx::PacketForm::Ll16,
        Protocol::Ll128 => ptx::PacketForm::Ll128,
    }
}

/// The ranks into whose scratch a rank writes packets, and what brings them there.
fn packet_targets(rank: u32, rank_plan: &RankPlan) -> BTreeSet<(u32, ChannelKind)> {
    let mut targets = BTreeSet::new();
    for op in rank_plan.all_ops() {
        match op {
            Op::Move(moved) => {
                for target in moved.targets.iter().filter(|target| target.form == Form::Packets) {
                    let mut add = |rank| _ = targets.insert((rank, ChannelKind::Memory));
                    match target.place {
                        Place::Local(_) => add(rank),
                        Place::Remote { rank, .. } => add(rank),
                        Place::Switch(index) => {
                            rank_plan.switches[index as usize].ranks.iter().copied().for_each(add);
                        }
                    }
                }
            }
            Op::Port(put) if put.form == Form::Packets => {
                let peer = rank_plan.port_channels.get(put.channel as usize);
                targets.extend(peer.map(|&peer| (peer, ChannelKind::Port)));
            }
            _ => {}
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Buffer, Move, Operand, samples};

    /// Whether rank 0 meets the other by counters in memory, and by a port.
    fn ways(plan: &Plan) -> (bool, bool) {
        let control = Control::of(plan, &plan.ranks[0]).unwrap();
        let laps = of_rank(plan, 0, &control, &mut Addresses::default()).unwrap().unwrap();
        let any = |is: fn(&ptx::Step) -> bool| laps.meeting.iter().any(is);
        let counters = any(|step| matches!(step, ptx::Step::Signal(list) if !list.is_empty()));
        let port = any(
            |step| matches!(step, ptx::Step::Port(port) if port.signal && port.flush && port.put.is_none()),
        );
        assert_eq!(any(|step| matches!(step, ptx::Step::Wait(list) if !list.is_empty())), counters);
        assert_eq!(any(|step| matches!(step, ptx::Step::PortWait { .. })), port);
        (counters, port)
    }

    #[test]
    fn ranks_meet_by_what_brings_their_packets() {
        assert_eq!(ways(&samples::one_shot(2, true)), (true, false));
        let mut plan = samples::port_packets();
        (0..2).for_each(|rank| plan.ranks[rank].memory_channels = vec![1 - rank as u32]);
        assert_eq!(ways(&plan), (false, true), "nothing goes through the memory channels");
        let ops = &mut plan.ranks[1].blocks[0].ops;
        let put = Move {
            sources: vec![Operand::local(Buffer::Input, 0)],
            targets: vec![Operand::remote(0, Buffer::Scratch, 0).packets()],
            count: 1,
            reduction: None,
            share: None,
        };
        ops.push(Op::Move(Box::new(put)).at(0));
        assert_eq!(ways(&plan), (true, true), "rank 0 only receives what goes that way");
        plan.ranks[0].port_channels.clear();
        let control = Control::of(&plan, &plan.ranks[0]).unwrap();
        let error = of_rank(&plan, 0, &control, &mut Addresses::default()).unwrap_err();
        assert!(error.message().contains("has no port channel to it"), "{error}");
    }

    /// Flags of either half that are left from the lap before would be taken for those of the next one.
    #[test]
    fn a_lap_begins_with_all_of_scratch_cleared() {
        let cleared = |protocol, double_scratch| {
            let mut plan = samples::one_shot(2, true);
            plan.settings.protocol = protocol;
            plan.settings.double_scratch = double_scratch;
            // The halves of all ranks are as far apart as the longest scratch needs.
            plan.ranks[1].scratch_chunks = 5;
            let control = Control::of(&plan, &plan.ranks[0]).unwrap();
            of_rank(&plan, 0, &control, &mut Addresses::default()).unwrap().unwrap().chunks
        };
        assert_eq!(
            [false, true].map(|double| cleared(Protocol::Ll, double)),
            [10, 20],
            "twice the bytes of data"
        );
        assert_eq!([false, true].map(|double| cleared(Protocol::Ll128, double)), [5, 10]);
    }
}
