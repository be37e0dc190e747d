//! Where a rank's calls begin and end.

use super::super::clock::Epoch;
use super::super::collective::Expected;
use super::super::cursor::Cursor;
use super::super::finding::{Finding, FindingKind, Location};
use super::super::ir::Buffer;
use super::super::values::Leaf;
use super::access::place;
use super::state::{Run, number};

impl Run<'_> {
    /// Begins a rank's next call, or does nothing after the last.
    pub(super) fn begin(&mut self, rank: u32) {
        let index = rank as usize;
        if self.ranks[index].call == self.calls {
            return;
        }
        let state = &mut self.ranks[index];
        state.call += 1;
        let call = state.call;
        let epoch = Epoch { timeline: rank, event: call };
        state.know.set(epoch);
        let (know, first, layout, blocks) = (state.know.clone(), state.first, state.layout, state.blocks);
        // The caller has used both buffers as it likes since the call before.
        let atoms = self.resolution.atoms;
        for cell in first..first + layout.scratch() * atoms {
            let conflict = self.cells.write(place(cell), epoch, &know, |_, _| false);
            if let Some(conflict) = conflict {
                let location = self.message_location(rank, (cell - first) / atoms);
                self.conflict(epoch, true, conflict, location, &know);
            }
            self.cells.set(place(cell), 0, false);
        }
        for chunk in 0..self.plan.ranks[index].input_chunks {
            let cell = first + layout.chunk(Buffer::Input, chunk, call) * atoms;
            for atom in 0..atoms {
                let leaf = Leaf { rank, chunk, atom: u32::try_from(atom).unwrap_or(0), call };
                let value = self.values.leaf(leaf);
                self.cells.set(place(cell + atom), value, false);
            }
        }
        let count = self.plan.ranks[index].blocks.len();
        self.ranks[index].left = count;
        for block in (blocks..blocks + count).rev() {
            let timeline = self.timeline(number(block));
            let state = &mut self.blocks[block];
            state.event += 1;
            state.starts.push(state.event);
            (state.cursor, state.step, state.done) = (Cursor::default(), None, false);
            (state.base, state.control) = (know.clone(), know.clone());
            state.base.set(Epoch { timeline, event: state.event });
            state.control = state.base.clone();
            self.ready.push(number(block));
        }
        if count == 0 {
            self.end(rank);
        }
    }

    /// The buffer and chunk of a place in the memory that a rank's input and output share.
    fn message_location(&self, rank: u32, chunk: u64) -> Location {
        let rank_plan = &self.plan.ranks[rank as usize];
        let layout = self.ranks[rank as usize].layout;
        let within = |buffer| {
            let chunk = chunk.checked_sub(layout.chunk(buffer, 0, 0))?;
            u32::try_from(chunk).ok().filter(|&chunk| chunk < rank_plan.chunks(buffer))
        };
        let output = within(Buffer::Output).map(|chunk| Location { rank, buffer: Buffer::Output, chunk });
        let input = within(Buffer::Input).unwrap_or(0);
        output.unwrap_or(Location { rank, buffer: Buffer::Input, chunk: input })
    }

    /// Ends a rank's call: all its blocks are done.
    pub(super) fn end(&mut self, rank: u32) {
        let index = rank as usize;
        let (blocks, count) = (self.ranks[index].blocks, self.plan.ranks[index].blocks.len());
        let mut know = self.ranks[index].know.clone();
        for block in blocks..blocks + count {
            let timeline = self.timeline(number(block));
            let state = &mut self.blocks[block];
            know.join(&state.control);
            if let Some(pending) = state.pending.take() {
                know.join(&pending);
            }
            know.set(Epoch { timeline, event: state.event });
        }
        self.ranks[index].know = know;
        self.judge(rank);
        self.begin(rank);
    }

    /// Compares a rank's output with what the collective promises.
    fn judge(&mut self, rank: u32) {
        let plan = self.plan;
        let rank_plan = &plan.ranks[rank as usize];
        let ranks = number(plan.ranks.len());
        let (call, atoms) = (self.ranks[rank as usize].call, self.resolution.atoms);
        let chunks = (rank_plan.input_chunks, rank_plan.output_chunks);
        for chunk in 0..rank_plan.output_chunks {
            let expected = plan.collective.kind.expected(ranks, rank, chunk, chunks);
            if expected == Expected::Nothing || self.ranks[rank as usize].told {
                continue;
            }
            let state = &self.ranks[rank as usize];
            let first = state.first + state.layout.chunk(Buffer::Output, chunk, call) * atoms;
            for atom in 0..atoms {
                if self.judge_atom(rank, chunk, place(first + atom), expected, atom) {
                    self.ranks[rank as usize].told = true;
                    break;
                }
            }
        }
    }

    /// Judges an atom of the output. Returns whether something was wrong.
    fn judge_atom(&mut self, rank: u32, chunk: u32, cell: usize, expected: Expected, atom: u64) -> bool {
        let call = self.ranks[rank as usize].call;
        let atom = u32::try_from(atom).unwrap_or(0);
        let location = Location { rank, buffer: Buffer::Output, chunk };
        let writer = self.cells.last_write(cell);
        if !self.ranks[rank as usize].know.data.knows(writer) {
            let message = format!(
                "may write this chunk after rank {rank} has ended the call; let it signal rank {rank}, and rank {rank} wait for it"
            );
            let position = self.position(writer);
            self.add(Finding::new(FindingKind::Race, position, message).about(location), None);
            return true;
        }
        let ranks = number(self.ranks.len());
        let leaf = |rank, chunk| Leaf { rank, chunk, atom, call };
        let hash = match expected {
            Expected::Nothing => return false,
            Expected::One { rank, chunk } => leaf(rank, chunk).hash(),
            Expected::All(chunk) => *self.expected.entry((chunk, atom, call)).or_insert_with(|| {
                (0..ranks).map(|rank| leaf(rank, chunk).hash()).fold(0, u128::wrapping_add)
            }),
        };
        let value = self.cells.value(cell);
        if value != 0 && self.values.hash(value) == hash {
            return false;
        }
        let leaves: Vec<Leaf> = match expected {
            Expected::Nothing => Vec::new(),
            Expected::One { rank, chunk } => vec![leaf(rank, chunk)],
            Expected::All(chunk) => (0..ranks).map(|rank| leaf(rank, chunk)).collect(),
        };
        let name = self.plan.collective.kind.name();
        let message = format!("is no result of {name}: it {}", self.values.explain(value, &leaves));
        let position = self.position(writer);
        self.add(Finding::new(FindingKind::Result, position, message).about(location), None);
        true
    }
}
