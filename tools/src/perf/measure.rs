//! The meaning of a row's size for a plan.

use aqueduct::plan::Plan;

use super::shape::Shape;

/// The meaning of a row's size for a plan: the size is that of the larger of a rank's two buffers.
pub(crate) struct Measure {
    shape: Shape,
    by_input: bool,
}

impl Measure {
    pub(crate) fn of(plan: &Plan) -> Self {
        let ranks = u32::try_from(plan.ranks.len()).unwrap_or(u32::MAX);
        let by_input = plan.ranks.iter().any(|rank| rank.input_chunks > 0);
        Self { shape: Shape::of_plan(plan, ranks), by_input }
    }

    /// Bytes of which a size is a multiple.
    pub(crate) fn grain(&self) -> u64 {
        self.shape.grain()
    }

    /// Bytes of the input, or of the output if there is no input.
    pub(crate) fn input(&self, size: u64) -> u64 {
        let (input, output) = self.shape.buffers(usize::try_from(size).unwrap_or(usize::MAX));
        (if self.by_input { input } else { output }) as u64
    }

    /// Bytes that cross a rank's link for each byte of a size.
    pub(crate) fn bus_factor(&self) -> f64 {
        self.shape.bus_factor()
    }
}
