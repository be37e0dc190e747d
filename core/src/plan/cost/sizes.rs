//! How many bytes an operation moves.

use super::execute::Chunks;
use super::geometry::part;
use super::ir::{Buffer, Loop, Plan, Share};
use crate::error::Result;

/// Bytes at whose multiples a share is cut.
const VECTOR: u64 = 16;

/// Sizes of a call, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    chunks: Chunks,
    bytes: u64,
    /// Distance of chunks.
    pub(super) chunk: u64,
}

/// An iteration of a loop.
pub(super) type Turn<'p> = Option<(&'p Loop, u64)>;

impl Sizes {
    pub(super) fn of(plan: &Plan, bytes: u64) -> Result<Self> {
        let chunks = Chunks::of(plan);
        Ok(Self { chunks, bytes, chunk: chunks.distance(bytes, 1)? })
    }

    /// Vectors of a chunk, as a launch counts them.
    pub(super) fn vectors(&self) -> u64 {
        self.chunk.div_ceil(VECTOR).max(1)
    }

    pub(super) fn iterations(&self, repeated: &Loop) -> u64 {
        super::geometry::iterations(repeated, self.chunk, repeated.unit.max(1))
    }

    /// The bytes of `count` chunks that a block handles, from the beginning of the first.
    pub(super) fn range(&self, count: u32, turn: Turn<'_>, share: Option<Share>) -> (u64, u64) {
        let turn =
            turn.map(|(repeated, iteration)| super::geometry::Turn { iteration, unit: repeated.unit.max(1) });
        part(u64::from(count) * self.chunk, VECTOR, turn, share)
    }

    /// The bytes from the beginning of a chunk that exist, of a rank's buffer of so many chunks.
    pub(super) fn exist(&self, buffer: Buffer, chunks: u32, first: u32) -> u64 {
        match buffer {
            Buffer::Scratch => u64::MAX,
            _ => self
                .chunks
                .buffer(chunks, self.bytes, self.chunk)
                .saturating_sub(u64::from(first) * self.chunk),
        }
    }
}
