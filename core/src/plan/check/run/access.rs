//! Accesses to memory: moves of blocks and puts of proxies.

use super::super::clock::{Epoch, Knowledge};
use super::super::finding::{Finding, FindingKind, Location};
use super::super::geometry::{Turn, part};
use super::super::ir::{Buffer, Channel, ChannelKind, Form, Move, Operand, Place, PortPut};
use super::super::packets::Packet;
use super::super::position::Position;
use super::state::Run;

/// A run of cells that an operand names.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    rank: u32,
    buffer: Buffer,
    first: u32,
    /// Cell of the first atom.
    cell: u64,
    form: Form,
}

impl Run<'_> {
    fn cut(&self, rank: u32, buffer: Buffer, first: u32, form: Form, call: u32) -> Cut {
        let owner = &self.ranks[rank as usize];
        let cell = owner.first + owner.layout.chunk(buffer, first, call) * self.resolution.atoms;
        Cut { rank, buffer, first, cell, form }
    }

    fn cuts(&self, rank: u32, operands: &[Operand], call: u32) -> Vec<Cut> {
        let mut cuts = Vec::with_capacity(operands.len());
        for operand in operands {
            let (first, form) = (operand.first, operand.form);
            match operand.place {
                Place::Local(buffer) => cuts.push(self.cut(rank, buffer, first, form, call)),
                Place::Remote { rank, buffer } => cuts.push(self.cut(rank, buffer, first, form, call)),
                Place::Switch(index) => {
                    let switch = &self.plan.ranks[rank as usize].switches[index as usize];
                    cuts.extend(
                        switch.ranks.iter().map(|&rank| self.cut(rank, switch.buffer, first, form, call)),
                    );
                }
            }
        }
        cuts
    }

    pub(super) fn location(&self, cut: &Cut, atom: u64) -> Location {
        let chunk = cut.first + u32::try_from(atom / self.resolution.atoms).unwrap_or(0);
        Location { rank: cut.rank, buffer: cut.buffer, chunk }
    }

    /// Runs a move, atom by atom, as far as its packets have come. Returns whether it is done.
    pub(super) fn moved(&mut self, index: u32, moved: &Move, turn: Option<Turn>) -> bool {
        let timeline = self.timeline(index);
        let state = &self.blocks[index as usize];
        let (rank, progress) = (state.rank, state.progress);
        let epoch = Epoch { timeline, event: state.event };
        let base = state.base.clone();
        let call = self.ranks[rank as usize].call;
        let (sources, targets) =
            (self.cuts(rank, &moved.sources, call), self.cuts(rank, &moved.targets, call));
        let (start, end) = part(u64::from(moved.count) * self.resolution.atoms, 1, turn, moved.share);
        let mut terms = Vec::with_capacity(sources.len());
        for atom in start.saturating_add(progress)..end {
            if let Some(missing) = self.missing(&sources, atom, call) {
                self.packet_waiters.entry(missing).or_default().push(index);
                self.blocks[index as usize].progress = atom - start;
                return false;
            }
            let (know, nodes) = self.learned(&base, &sources, atom, call);
            let know = know.as_ref().unwrap_or(&base);
            terms.clear();
            for source in &sources {
                terms.push(self.read(epoch, source, atom, call, know, &nodes));
            }
            let value = match moved.reduction {
                Some(reduction) => self.values.reduced(&terms, reduction),
                None => terms[0],
            };
            for target in &targets {
                self.write((rank, epoch), target, atom, call, know, &nodes, value);
            }
            if moved.reduction.is_some() && self.results.is_some() {
                self.result(index, value);
            }
        }
        self.learn_all(index, &sources, start..end, call);
        true
    }

    /// Notes a result of the reducing move that a block is at.
    fn result(&mut self, index: u32, value: u32) {
        let state = &self.blocks[index as usize];
        if let (Some(results), Some(step)) = (&mut self.results, state.step) {
            let inner = step.turn.map(|(_, inner, _)| inner);
            results.push((Position::of(self.plan, state.rank, state.block, step.index, inner), value));
        }
    }

    /// The cell of the first packet that has not come.
    fn missing(&self, sources: &[Cut], atom: u64, call: u32) -> Option<usize> {
        let packets = sources.iter().filter(|source| source.form == Form::Packets);
        packets.map(|source| place(source.cell + atom)).find(|&cell| self.packets.get(cell, call).is_none())
    }

    /// The clock that an element's packets carry, and the operations that wrote them. `None` if it holds nothing new. A packet is
    /// stored and loaded without a fence: it orders what was read before its writer's call, but not what was written.
    fn learned(
        &self,
        base: &Knowledge,
        sources: &[Cut],
        atom: u64,
        call: u32,
    ) -> (Option<Knowledge>, Vec<u32>) {
        let (mut know, mut nodes) = (None, Vec::new());
        for source in sources.iter().filter(|source| source.form == Form::Packets) {
            if let Some(packet) = self.packets.get(place(source.cell + atom), call) {
                know.get_or_insert_with(|| base.clone()).join_packet(&packet.know);
                nodes.push(packet.node);
            }
        }
        (know, nodes)
    }

    /// At its next sync, a block knows what all packets of a move told.
    fn learn_all(&mut self, index: u32, sources: &[Cut], atoms: std::ops::Range<u64>, call: u32) {
        for source in sources.iter().filter(|source| source.form == Form::Packets) {
            for atom in atoms.clone() {
                if let Some(packet) = self.packets.get(place(source.cell + atom), call) {
                    let state = &mut self.blocks[index as usize];
                    state.pending.get_or_insert_with(|| state.base.clone()).join_packet(&packet.know);
                }
            }
        }
    }

    fn read(
        &mut self,
        epoch: Epoch,
        cut: &Cut,
        atom: u64,
        call: u32,
        know: &Knowledge,
        nodes: &[u32],
    ) -> u32 {
        let cell = place(cut.cell + atom);
        let packets = &self.packets;
        let own = |other| cut.form == Form::Packets && packets.through(nodes, other);
        let conflict = self.cells.read(cell, epoch, know, own);
        if let Some(conflict) = conflict {
            self.conflict(epoch, false, conflict, self.location(cut, atom), know);
        }
        let (value, plain) = (self.cells.value(cell), cut.form == Form::Plain);
        let wrong = if plain && self.cells.is_packet(cell) && cut.buffer == Buffer::Scratch {
            Some((FindingKind::Operands, "reads packets as plain data; unpack them, or write plain data"))
        } else if value == 0 {
            Some((FindingKind::Result, "reads memory that no operation has written"))
        } else if self.values.call(value) != call && self.values.call(value) != 0 && conflict.is_none() {
            Some((FindingKind::Reuse, "reads data that the call before left; write it in this call first"))
        } else {
            None
        };
        if let Some((kind, message)) = wrong {
            let position = self.position(epoch);
            self.add(Finding::new(kind, position, message).about(self.location(cut, atom)), None);
        }
        value
    }

    #[allow(clippy::too_many_arguments, reason = "an access has this many sides")]
    fn write(
        &mut self,
        (rank, epoch): (u32, Epoch),
        cut: &Cut,
        atom: u64,
        call: u32,
        know: &Knowledge,
        nodes: &[u32],
        value: u32,
    ) {
        let cell = place(cut.cell + atom);
        let packets = &self.packets;
        let through =
            |other, wrote: bool| (!wrote || cut.form == Form::Packets) && packets.through(nodes, other);
        let conflict = self.cells.write(cell, epoch, know, through);
        if let Some(conflict) = conflict {
            self.conflict(epoch, true, conflict, self.location(cut, atom), know);
        }
        let packet = cut.form == Form::Packets;
        if packet {
            if self.packets.get(cell, call).is_some() {
                let message = "writes packets where packets of the same call lie; their flags are equal, so give them other scratch";
                let position = self.position(epoch);
                self.add(
                    Finding::new(FindingKind::Reuse, position, message).about(self.location(cut, atom)),
                    None,
                );
            }
            let node = self.packets.node(epoch, nodes);
            let know = self.ranks[rank as usize].know.clone();
            self.packets.put(cell, Packet { call, know, node });
            if let Some(waiters) = self.packet_waiters.remove(&cell) {
                self.ready.extend(waiters);
            }
        }
        self.cells.set(cell, value, packet);
    }

    /// Runs a put of a proxy. Returns whether it is done.
    pub(super) fn port(&mut self, index: u32, put: &PortPut, turn: Option<Turn>) -> bool {
        let rank = self.blocks[index as usize].rank;
        let call = self.ranks[rank as usize].call;
        let peer = self.plan.ranks[rank as usize].port_channels[put.channel as usize];
        let source = self.cut(rank, put.source.0, put.source.1, put.form, call);
        let target = self.cut(peer, put.target.0, put.target.1, put.form, call);
        let (start, end) = part(u64::from(put.count) * self.resolution.atoms, 1, turn, None);
        let missing = (start..end).find_map(|atom| self.missing(&[source], atom, call));
        if let Some(missing) = missing {
            // Without `forward` nothing waits for the packets; then there must be an order that a race would show.
            self.packet_waiters.entry(missing).or_default().push(index);
            return false;
        }
        let number = self.ask(index, put.channel);
        let epoch = Epoch { timeline: self.proxy_timeline(number), event: self.proxies[number].event };
        let base = self.proxies[number].know.clone();
        for atom in start..end {
            let (learned, nodes) =
                if put.forward { self.learned(&base, &[source], atom, call) } else { (None, Vec::new()) };
            let know = learned.as_ref().unwrap_or(&base);
            let value = self.read(epoch, &source, atom, call, know, &nodes);
            self.write((rank, epoch), &target, atom, call, know, &nodes, value);
        }
        if put.forward {
            self.learn_all(index, &[source], start..end, call);
        }
        if put.signal {
            let channel = Channel { kind: ChannelKind::Port, index: put.channel };
            self.signal(rank, channel, base);
        }
        if put.flush {
            self.flush(index, put.channel);
        }
        true
    }
}

pub(super) fn place(cell: u64) -> usize {
    // The number of cells was checked to fit.
    usize::try_from(cell).unwrap_or(usize::MAX)
}
