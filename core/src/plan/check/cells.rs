//! The memory of all ranks: who wrote and read each atom last, and what is in it.

use std::collections::HashMap;

use super::clock::{Epoch, Knowledge};
use super::values::ValueId;

/// An atom of memory.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    write: Epoch,
    /// The last read since, if there was one; further ones that it is not ordered with are in `Cells::more`.
    read: Epoch,
    value: ValueId,
    packet: bool,
    more: bool,
}

/// An access that is in no order with an earlier one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conflict {
    pub(super) earlier: Epoch,
    /// The earlier access wrote.
    pub(super) wrote: bool,
}

/// All cells.
#[derive(Debug)]
pub(super) struct Cells {
    cells: Vec<Cell>,
    more: HashMap<usize, Vec<Epoch>>,
}

impl Cells {
    pub(super) fn new(cells: usize) -> Self {
        Self { cells: vec![Cell::default(); cells], more: HashMap::new() }
    }

    /// Notes a read. `or` says whether the event is known in another way.
    pub(super) fn read(
        &mut self,
        cell: usize,
        epoch: Epoch,
        know: &Knowledge,
        or: impl Fn(Epoch) -> bool,
    ) -> Option<Conflict> {
        let Cell { write, read, .. } = self.cells[cell];
        let conflict = write != epoch && !know.data.knows(write) && !or(write);
        if read != epoch && !know.all().knows(read) {
            // Both reads stay, because a later write must come after both.
            let more = self.more.entry(cell).or_default();
            if more.last() != Some(&read) {
                more.push(read);
            }
            self.cells[cell].more = true;
        }
        self.cells[cell].read = epoch;
        conflict.then_some(Conflict { earlier: write, wrote: true })
    }

    /// Notes a write. `or` says whether an event, a write if `true`, is known in another way.
    pub(super) fn write(
        &mut self,
        cell: usize,
        epoch: Epoch,
        know: &Knowledge,
        or: impl Fn(Epoch, bool) -> bool,
    ) -> Option<Conflict> {
        let Cell { write, read, more, .. } = self.cells[cell];
        let more = if more { self.more.remove(&cell).unwrap_or_default() } else { Vec::new() };
        let racing_read = more
            .into_iter()
            .chain([read])
            .find(|&read| read != epoch && !know.all().knows(read) && !or(read, false));
        let racing_write =
            Some(write).filter(|&write| write != epoch && !know.data.knows(write) && !or(write, true));
        let cell = &mut self.cells[cell];
        (cell.write, cell.read, cell.more) = (epoch, Epoch::default(), false);
        let read = racing_read.map(|earlier| Conflict { earlier, wrote: false });
        racing_write.map(|earlier| Conflict { earlier, wrote: true }).or(read)
    }

    pub(super) fn last_write(&self, cell: usize) -> Epoch {
        self.cells[cell].write
    }

    pub(super) fn value(&self, cell: usize) -> ValueId {
        self.cells[cell].value
    }

    pub(super) fn is_packet(&self, cell: usize) -> bool {
        self.cells[cell].packet
    }

    pub(super) fn set(&mut self, cell: usize, value: ValueId, packet: bool) {
        let cell = &mut self.cells[cell];
        (cell.value, cell.packet) = (value, packet);
    }
}
