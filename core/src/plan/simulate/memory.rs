//! Memory of all ranks, element by element.

use aqueduct_ptx::plan::UNIT_DATA;

use super::config::refused;
use super::element::Element;
use super::geometry::Layout;
use super::ir::{Buffer, Form, Plan, Protocol};
use crate::error::Result;

/// Most elements of a rank's memory.
const MOST: u64 = 1 << 28;

/// Sizes in elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Distance of chunks, in every buffer.
    pub(super) chunk: u64,
    /// Elements at whose multiples a chunk may be cut.
    pub(super) granule: u64,
    /// Elements of a chunk that blocks never divide: those that a warp handles as LL128 packets, otherwise one.
    pub(super) unit: u64,
    /// Bytes of an element.
    pub(super) element: u64,
    /// Input of every rank; ends within a chunk if it does not divide.
    input: Option<u64>,
}

impl Sizes {
    pub(super) fn of(plan: &Plan, elements: usize, element: usize) -> Result<Self> {
        let (elements, element) = (elements as u64, element as u64);
        let granule = (u64::from(plan.settings.alignment) / element).max(1);
        let unit = match plan.settings.protocol {
            Protocol::Simple | Protocol::Ll => 1,
            Protocol::Ll128 => (u64::from(UNIT_DATA) / element).max(1),
        };
        let chunks = u64::from(plan.ranks.iter().map(|rank| rank.input_chunks).max().unwrap_or(0));
        if chunks == 0 {
            return Ok(Self { chunk: elements, granule, unit, element, input: None });
        }
        if !plan.collective.kind.divides_freely() {
            if elements % chunks == 0 {
                return Ok(Self { chunk: elements / chunks, granule, unit, element, input: None });
            }
            return Err(refused(format!(
                "{elements} elements do not divide into {chunks} chunks; {} needs a multiple",
                plan.collective.kind.name()
            )));
        }
        let chunk = elements.div_ceil(chunks).next_multiple_of(granule);
        Ok(Self { chunk, granule, unit, element, input: Some(elements) })
    }

    /// A bound of a block's part, moved up to where a unit begins in its chunk, or to the chunk's end.
    pub(super) fn rounded(&self, at: u64) -> u64 {
        let base = at / self.chunk.max(1) * self.chunk;
        base + (at - base).next_multiple_of(self.unit).min(self.chunk)
    }

    /// Elements of `chunks` chunks of input or output.
    fn message(&self, chunks: u32) -> u64 {
        self.input.unwrap_or(u64::from(chunks) * self.chunk)
    }
}

/// An element, and the number of ranks whose data it has summed up: 0 for garbage, 1 for a rank's own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Partial<T> {
    pub(super) value: T,
    pub(super) ranks: u32,
}

impl<T: Element> Partial<T> {
    const GARBAGE: Self = Self { value: T::GARBAGE, ranks: 0 };
}

/// A rank's memory.
#[derive(Debug)]
pub(super) struct Memory<T> {
    layout: Layout,
    sizes: Sizes,
    input: u64,
    output: u64,
    values: Vec<Partial<T>>,
    /// The call that wrote an element as a packet; 0 where it is plain.
    flags: Vec<u32>,
}

impl<T: Element> Memory<T> {
    pub(super) fn new(plan: &Plan, rank: u32, sizes: Sizes) -> Result<Self> {
        let layout = Layout::of(plan, rank);
        let rank_plan = &plan.ranks[rank as usize];
        let elements = layout.chunks.checked_mul(sizes.chunk).filter(|&elements| elements <= MOST);
        let size = elements.and_then(|elements| usize::try_from(elements).ok());
        let size = size.ok_or_else(|| {
            refused(format!(
                "rank {rank} would have more than {MOST} elements of memory; simulate a smaller message"
            ))
        })?;
        Ok(Self {
            layout,
            sizes,
            input: sizes.message(rank_plan.input_chunks),
            output: sizes.message(rank_plan.output_chunks),
            values: vec![Partial::GARBAGE; size],
            flags: vec![0; size],
        })
    }

    /// The place of an element of a buffer, `None` past the end of input or output.
    fn place(&self, buffer: Buffer, first: u32, element: u64, call: u32) -> Option<usize> {
        let offset = u64::from(first) * self.sizes.chunk + element;
        let end = match buffer {
            Buffer::Input => self.input,
            Buffer::Output => self.output,
            Buffer::Scratch => u64::MAX,
        };
        let place = || self.layout.chunk(buffer, 0, call) * self.sizes.chunk + offset;
        (offset < end).then(place).and_then(|place| usize::try_from(place).ok())
    }

    /// Reads an element; past the end of input or output, anything. `None` if its packet has not come.
    pub(super) fn read(
        &self,
        buffer: Buffer,
        first: u32,
        form: Form,
        element: u64,
        call: u32,
    ) -> Option<Partial<T>> {
        match self.place(buffer, first, element, call) {
            None => Some(Partial::GARBAGE),
            Some(place) if form == Form::Packets && self.flags[place] != call => None,
            Some(place) => Some(self.values[place]),
        }
    }

    /// Writes an element; past the end of input or output, nothing.
    pub(super) fn write(
        &mut self,
        buffer: Buffer,
        first: u32,
        form: Form,
        element: u64,
        call: u32,
        value: Partial<T>,
    ) {
        if let Some(place) = self.place(buffer, first, element, call) {
            self.values[place] = value;
            self.flags[place] = if form == Form::Packets { call } else { 0 };
        }
    }

    /// The caller's buffers of a new call: the old contents are gone.
    pub(super) fn begin(&mut self, input: &[T]) {
        let message = usize::try_from(self.layout.scratch() * self.sizes.chunk).unwrap_or(usize::MAX);
        self.values[..message].fill(Partial::GARBAGE);
        if self.input > 0 {
            for (element, &value) in input.iter().enumerate() {
                let own = Partial { value, ranks: 1 };
                self.write(Buffer::Input, 0, Form::Plain, element as u64, 0, own);
            }
        }
    }

    pub(super) fn output(&self) -> Vec<T> {
        let read = |element| self.read(Buffer::Output, 0, Form::Plain, element, 0);
        (0..self.output).filter_map(read).map(|partial| partial.value).collect()
    }
}
