//! Element types of the simulator.

use super::ir::Reduction;

/// A type that the simulator moves and reduces.
pub trait Element: Copy + PartialEq + std::fmt::Debug {
    /// Contents of memory that nobody has written.
    const GARBAGE: Self;

    /// Combines two elements. Integers wrap; [`Reduction::Avg`] adds.
    fn combine(self, other: Self, reduction: Reduction) -> Self;

    /// The sum of all ranks divided by their number. Integers round towards zero.
    fn divided(self, ranks: u32) -> Self;
}

macro_rules! integer {
    ($type:ty) => {
        impl Element for $type {
            const GARBAGE: Self = 0x5a5a_5a5a;

            fn combine(self, other: Self, reduction: Reduction) -> Self {
                match reduction {
                    Reduction::Sum | Reduction::Avg => self.wrapping_add(other),
                    Reduction::Prod => self.wrapping_mul(other),
                    Reduction::Min => self.min(other),
                    Reduction::Max => self.max(other),
                }
            }

            fn divided(self, ranks: u32) -> Self {
                <$type>::try_from(ranks).map_or(0, |ranks| self / ranks.max(1))
            }
        }
    };
}

integer!(i32);
integer!(u64);

impl Element for f32 {
    const GARBAGE: Self = Self::NAN;

    fn combine(self, other: Self, reduction: Reduction) -> Self {
        match reduction {
            Reduction::Sum | Reduction::Avg => self + other,
            Reduction::Prod => self * other,
            Reduction::Min => self.min(other),
            Reduction::Max => self.max(other),
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "a number of ranks is below 2^24")]
    fn divided(self, ranks: u32) -> Self {
        self / ranks as Self
    }
}
