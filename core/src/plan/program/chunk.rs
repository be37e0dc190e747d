//! Buffers of a rank and chunks of them.

use std::fmt;
use std::ops::{Bound, RangeBounds};

use super::ir::{Buffer as BufferType, Form, Move, Operand, Reduction};
use super::record::{Call, Fault, Recorder};

/// Chunks of a rank's input or output, or a part of its scratch.
#[derive(Clone, Copy, Debug)]
pub struct Buffer<'p> {
    pub(super) recorder: &'p Recorder,
    pub(super) rank: u32,
    pub(super) buffer: BufferType,
    pub(super) first: u32,
    pub(super) count: u32,
}

impl Buffer<'_> {
    /// The rank that the buffer belongs to.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Number of chunks.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Place of the first chunk in the rank's whole scratch; 0 of an input or output. Switches count from there.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// One chunk.
    #[track_caller]
    pub fn chunk(&self, index: u32) -> Chunk {
        self.cut(Call::of("Buffer::chunk"), u64::from(index), u64::from(index) + 1)
    }

    /// Neighbouring chunks: `1..3`, `2..` or `..` for all. A range that is empty or leaves the buffer is an error of the
    /// program.
    #[track_caller]
    pub fn chunks(&self, range: impl RangeBounds<u32>) -> Chunk {
        let start = match range.start_bound() {
            Bound::Included(&start) => u64::from(start),
            Bound::Excluded(&before) => u64::from(before) + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => u64::from(last) + 1,
            Bound::Excluded(&end) => u64::from(end),
            Bound::Unbounded => u64::from(self.count),
        };
        self.cut(Call::of("Buffer::chunks"), start, end)
    }

    fn cut(&self, call: Call, start: u64, end: u64) -> Chunk {
        let Self { recorder, rank, buffer, first, count } = *self;
        if start >= end {
            recorder.fail(call, &format!("{start}..{end} are no chunks; the range must not be empty"));
        } else if end > u64::from(count) {
            let name = name(buffer);
            let fault =
                format!("chunks {start}..{end} do not exist; this {name} buffer of rank {rank} has {count}");
            recorder.fail(call, &fault);
        }
        // After a mistake the numbers mean nothing.
        let small = |number: u64| u32::try_from(number).unwrap_or(0);
        Chunk {
            rank,
            buffer,
            first: first.saturating_add(small(start)),
            count: small(end.saturating_sub(start)),
        }
    }
}

/// Neighbouring chunks of one buffer of one rank. Also an iterator over itself alone, so that it can stand where several
/// sources can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Chunk {
    pub(super) rank: u32,
    pub(super) buffer: BufferType,
    pub(super) first: u32,
    pub(super) count: u32,
}

impl Chunk {
    /// The rank that the chunks belong to.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The buffer that they are of.
    pub fn buffer(&self) -> BufferType {
        self.buffer
    }

    /// The first chunk, in scratch counted over all of the rank's scratch buffers.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// Number of chunks.
    pub fn count(&self) -> u32 {
        self.count
    }
}

impl IntoIterator for Chunk {
    type Item = Self;
    type IntoIter = std::iter::Once<Self>;

    fn into_iter(self) -> Self::IntoIter {
        std::iter::once(self)
    }
}

impl fmt::Display for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, buffer, first, count } = *self;
        let buffer = name(buffer);
        match count {
            1 => write!(f, "{buffer} chunk {first} of rank {rank}"),
            _ => write!(f, "{buffer} chunks {first}..{} of rank {rank}", u64::from(first) + u64::from(count)),
        }
    }
}

fn name(buffer: BufferType) -> &'static str {
    match buffer {
        BufferType::Input => "input",
        BufferType::Output => "output",
        BufferType::Scratch => "scratch",
    }
}

/// A chunk in an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    pub(super) chunk: Chunk,
    /// The rank that it must be of.
    pub(super) rank: u32,
    pub(super) form: Form,
}

impl Side {
    pub(super) fn plain(chunk: Chunk, rank: u32) -> Self {
        Self { chunk, rank, form: Form::Plain }
    }

    pub(super) fn packets(chunk: Chunk, rank: u32) -> Self {
        Self { chunk, rank, form: Form::Packets }
    }

    /// The chunk, if it is of the right rank.
    pub(super) fn owned(&self, role: &str) -> Result<Chunk, Fault> {
        let Self { chunk, rank, .. } = *self;
        if chunk.rank == rank {
            Ok(chunk)
        } else {
            Err(format!("the {role} is {chunk}; use a chunk of rank {rank} here"))
        }
    }
}

/// A move of a block of `rank`. The first side of each is of a rank that the caller names; all have as many chunks.
pub(super) fn moved(
    rank: u32,
    target: Side,
    sources: &[Side],
    reduction: Option<Reduction>,
) -> Result<Move, Fault> {
    let count = target.chunk.count;
    let operand = |side: &Side, role: &str| {
        let chunk = side.owned(role)?;
        if chunk.count != count {
            return Err(format!("the {role}, {chunk}, is not as long as the target, {}", target.chunk));
        }
        let Chunk { buffer, first, .. } = chunk;
        let plain = if chunk.rank == rank {
            Operand::local(buffer, first)
        } else {
            Operand::remote(chunk.rank, buffer, first)
        };
        Ok(Operand { form: side.form, ..plain })
    };
    if reduction.is_some() && sources.len() < 2 {
        return Err("a reduction needs something to reduce with; name at least one more source".into());
    }
    let targets = vec![operand(&target, "target")?];
    let sources = sources.iter().map(|source| operand(source, "source")).collect::<Result<_, _>>()?;
    Ok(Move { sources, targets, count, reduction, share: None })
}
