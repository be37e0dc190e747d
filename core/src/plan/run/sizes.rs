//! Sizes of a call: how far chunks are apart, and what of them exists.

use aqueduct_ptx::abi::PlanArgs;
use aqueduct_ptx::plan::UNIT_DATA;

use super::ir::Plan;
use crate::error::{Error, ErrorKind, Result};

/// Bytes of a vector, the unit in which kernels handle chunks.
pub(super) const VECTOR: u64 = 16;
/// Chunks of scratch begin at multiples of this.
const LINE: u64 = 128;
/// A kernel numbers fewer vectors in one range.
const MOST_VECTORS: u64 = 1 << 30;

/// The chunks of a plan, on all ranks together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::plan) struct Chunks {
    /// Chunks of a message: of the input, or of the output where no rank has an input.
    message: u64,
    /// The message is the input.
    pub(super) by_input: bool,
    /// A message need not divide into its chunks.
    freely: bool,
    /// Chunks begin at multiples of this many bytes where a message need not divide.
    alignment: u64,
    /// The most chunks of any range.
    most: u64,
}

impl Chunks {
    pub(in crate::plan) fn of(plan: &Plan) -> Self {
        let most = |count: &dyn Fn(&super::ir::RankPlan) -> u32| {
            u64::from(plan.ranks.iter().map(count).max().unwrap_or(0))
        };
        let (input, output) = (most(&|rank| rank.input_chunks), most(&|rank| rank.output_chunks));
        Self {
            message: if input > 0 { input } else { output.max(1) },
            by_input: input > 0,
            freely: plan.collective.kind.divides_freely(),
            alignment: u64::from(plan.settings.alignment).next_multiple_of(VECTOR).max(VECTOR),
            most: input.max(output).max(most(&|rank| rank.scratch_chunks)).max(1),
        }
    }

    /// The distance of chunks of a message of that many bytes.
    ///
    /// # Errors
    /// `InvalidUsage` for a message that does not divide into its chunks, but must, or that is too long.
    pub(in crate::plan) fn distance(self, bytes: u64, element: u64) -> Result<u64> {
        let refuse = |message: String| Err(Error::usage("Executor::execute", message));
        let chunk = if self.freely {
            bytes.div_ceil(self.message).checked_next_multiple_of(self.alignment).unwrap_or(u64::MAX)
        } else if bytes.is_multiple_of(self.message * element) {
            bytes / self.message
        } else {
            return refuse(format!(
                "{bytes} bytes do not divide into {} chunks of whole elements; this plan's collective needs a multiple of {} bytes",
                self.message,
                self.message * element
            ));
        };
        match chunk.div_ceil(VECTOR).checked_mul(self.most) {
            Some(vectors) if vectors < MOST_VECTORS => Ok(chunk),
            _ => refuse(format!(
                "{bytes} bytes are too many for one call: a kernel numbers {MOST_VECTORS} vectors of {VECTOR} bytes"
            )),
        }
    }

    /// Bytes of a buffer of `chunks` chunks in a call of that size.
    pub(in crate::plan) fn buffer(self, chunks: u32, bytes: u64, chunk: u64) -> u64 {
        // Where a message need not divide, all buffers have the same chunks.
        if self.freely && chunks > 0 { bytes } else { u64::from(chunks) * chunk }
    }

    /// The distance of chunks of scratch for messages of up to `bytes`; more than there is memory if it exceeds 64 bits.
    pub(super) fn scratch(self, bytes: u64) -> u64 {
        let chunk = bytes.div_ceil(self.message);
        let whole = chunk.checked_next_multiple_of(self.alignment.max(LINE));
        whole.and_then(|whole| whole.checked_next_multiple_of(LINE)).unwrap_or(u64::MAX / LINE * LINE)
    }

    /// The largest message for which chunks of scratch are apart by `distance`, a multiple of 128.
    pub(super) fn largest(self, distance: u64) -> u64 {
        let chunk = if self.freely { distance - distance % self.alignment } else { distance };
        chunk.saturating_mul(self.message)
    }
}

/// Units of LL128 packets from chunk to chunk, of chunks that are apart by `distance`.
pub(super) fn lines(distance: u64) -> u64 {
    distance.div_ceil(UNIT_DATA.into())
}

/// Fills in what depends on the distance of chunks.
pub(super) fn fill(args: &mut PlanArgs, chunk: u64) {
    args.chunk = chunk;
    // It fits: there are fewer than 2^30 vectors. A call of nothing has none, and divides none.
    args.vectors = u32::try_from(chunk.div_ceil(VECTOR)).unwrap_or(u32::MAX);
    (args.magic, args.shift) = divisor(args.vectors.max(1));
}

/// Factor and shift that divide by `value`, not zero: see [`PlanArgs`].
pub(super) fn divisor(value: u32) -> (u32, u32) {
    let shift = 31 + u64::from(value).next_power_of_two().ilog2();
    // It fits: the power of two is less than twice the value.
    (u32::try_from((1_u64 << shift).div_ceil(u64::from(value))).unwrap_or(u32::MAX), shift)
}

/// A plan error about a plan's sizes.
pub(super) fn refused(message: String) -> Error {
    Error::new(ErrorKind::Plan, "Executor::prepare", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plan of one chunk without a limit asks for more than there is, not for nothing.
    #[test]
    fn sizes_that_exceed_64_bits_are_too_large() {
        let mut plan = crate::plan::samples::two_shot(2);
        plan.ranks.iter_mut().for_each(|rank| (rank.input_chunks, rank.output_chunks) = (1, 1));
        let chunks = Chunks::of(&plan);
        for bytes in [u64::MAX, u64::MAX - 126, u64::MAX - 15] {
            assert!(chunks.scratch(bytes) > u64::MAX / 2, "{bytes}");
            assert!(chunks.distance(bytes, 1).unwrap_err().to_string().contains("too many"), "{bytes}");
        }
        assert_eq!(chunks.scratch(129), 256);
    }

    #[test]
    fn the_quotient_is_exact() {
        for vectors in (1..200).chain([255, 256, 257, 1 << 20, (1 << 20) + 1, (1 << 30) - 1]) {
            let mut args = PlanArgs::default();
            fill(&mut args, vectors * VECTOR);
            assert_eq!(u64::from(args.vectors), vectors);
            let top = MOST_VECTORS - 1;
            let near = [
                0,
                1,
                vectors - 1,
                vectors,
                vectors + 1,
                2 * vectors - 1,
                2 * vectors,
                3 * vectors,
                top / vectors * vectors - 1,
                top / vectors * vectors,
                top,
            ];
            for v in near.into_iter().filter(|&v| v <= top) {
                assert_eq!((v * u64::from(args.magic)) >> args.shift, v / vectors, "{v} / {vectors}");
            }
        }
    }
}
