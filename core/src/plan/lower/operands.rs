//! Operands of moves, and the addresses that they begin at.

use std::collections::HashMap;

use aqueduct_ptx::plan as ptx;
use ptx::Number::Fixed;

use super::ir::{Buffer, Form, Operand, Place, RankPlan, Share, Switch};

/// A block's part of a range.
pub(super) fn shared(Share { member, of }: Share) -> ptx::Share {
    ptx::Share { member: Fixed(member), of: Fixed(of) }
}

/// Something whose address a kernel is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::plan) enum Address {
    /// A rank's input.
    Input(u32),
    /// A rank's output.
    Output(u32),
    /// A rank's plain scratch.
    Scratch(u32),
    /// A rank's scratch for packets.
    Packets(u32),
    /// A rank's control area.
    Control(u32),
    /// The handle of a port channel that moves data between these memories.
    Port {
        /// Index into the rank's port channels.
        channel: u32,
        /// This rank's memory.
        source: Store,
        /// The peer's.
        target: Store,
    },
    /// Not an address but a word of the caller's numbers: see [`PlanRows`](aqueduct_ptx::abi::PlanRows).
    RowWord(u32),
    /// The records of a traced kernel.
    Trace,
    /// Not an address but an offset: where a rank's buffer begins in the memory that holds it.
    Offset(u32, ptx::Base),
    /// The memory of all members of a [`Team`](super::Team), by its number.
    Multicast(u32, ptx::Base),
}

/// Memory that a proxy knows by one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::plan) enum Store {
    /// A rank's memory for the plan: scratch and packets.
    Arena,
    /// The user's input.
    Input,
    /// The user's output.
    Output,
}

impl Store {
    pub(super) fn of(buffer: Buffer) -> Self {
        match buffer {
            Buffer::Input => Self::Input,
            Buffer::Output => Self::Output,
            Buffer::Scratch => Self::Arena,
        }
    }
}

/// The addresses of a kernel, each once.
#[derive(Debug, Default)]
pub(in crate::plan) struct Addresses {
    list: Vec<Address>,
    places: HashMap<Address, u32>,
}

impl Addresses {
    /// The index of an address.
    pub(super) fn index(&mut self, address: Address) -> u32 {
        let list = &mut self.list;
        *self.places.entry(address).or_insert_with(|| {
            list.push(address);
            u32::try_from(list.len() - 1).unwrap_or(u32::MAX)
        })
    }

    /// The address of an index.
    pub(super) fn get(&self, index: u32) -> Option<Address> {
        self.list.get(index as usize).copied()
    }

    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.list.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn into_list(self) -> Vec<Address> {
        self.list
    }
}

/// The operands that one operand of `rank`'s plan stands for: itself, or that of each member of a switch in the order of
/// ranks. Peers are reached by loads and stores; the result is the one that a switch gives.
pub(super) fn expanded(
    rank: u32,
    rank_plan: &RankPlan,
    operand: &Operand,
    addresses: &mut Addresses,
) -> Vec<ptx::Operand> {
    let mut at = |whose: u32, buffer: Buffer| one(whose, buffer, operand, addresses);
    match operand.place {
        Place::Local(buffer) => vec![at(rank, buffer)],
        Place::Remote { rank: peer, buffer } => vec![at(peer, buffer)],
        Place::Switch(index) => {
            let switch = &rank_plan.switches[index as usize];
            let mut members = switch.ranks.clone();
            members.sort_unstable();
            members.into_iter().map(|member| at(member, switch.buffer)).collect()
        }
    }
}

/// The operand at the multicast address of a switch's members, the team `number`.
pub(super) fn by_multicast(
    number: u32,
    switch: &Switch,
    operand: &Operand,
    addresses: &mut Addresses,
) -> ptx::Operand {
    let base = base(switch.buffer, operand.form);
    let address = addresses.index(Address::Multicast(number, base));
    ptx::Operand { multicast: true, ..at(base, address, operand.first) }
}

fn one(whose: u32, buffer: Buffer, operand: &Operand, addresses: &mut Addresses) -> ptx::Operand {
    let base = base(buffer, operand.form);
    let address = match base {
        ptx::Base::Input => Address::Input(whose),
        ptx::Base::Output => Address::Output(whose),
        ptx::Base::Scratch => Address::Scratch(whose),
        ptx::Base::Packets => Address::Packets(whose),
    };
    at(base, addresses.index(address), operand.first)
}

/// One side of a port put: chunks at an offset in the memory that holds them.
pub(super) fn in_store(
    whose: u32,
    (buffer, first): (Buffer, u32),
    form: Form,
    addresses: &mut Addresses,
) -> ptx::Operand {
    let base = base(buffer, form);
    at(base, addresses.index(Address::Offset(whose, base)), first)
}

fn base(buffer: Buffer, form: Form) -> ptx::Base {
    match (buffer, form) {
        (Buffer::Input, _) => ptx::Base::Input,
        (Buffer::Output, _) => ptx::Base::Output,
        (Buffer::Scratch, Form::Plain) => ptx::Base::Scratch,
        (Buffer::Scratch, Form::Packets) => ptx::Base::Packets,
    }
}

fn at(base: ptx::Base, address: u32, first: u32) -> ptx::Operand {
    let rank = Fixed(aqueduct_ptx::abi::NO_PEER);
    ptx::Operand { base, address: Fixed(address), first: Fixed(first), rank, multicast: false }
}
