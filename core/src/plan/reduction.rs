//! How elements combine.

/// How sources combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Sum.
    Sum,
    /// Product.
    Prod,
    /// Smallest.
    Min,
    /// Largest.
    Max,
    /// Sum of all ranks divided by their number, rounded once.
    Avg,
}

impl Reduction {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Prod, Self::Min, Self::Max, Self::Avg];

    /// The lower-case name, as plan files have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Min => "min",
            Self::Max => "max",
            Self::Avg => "avg",
        }
    }
}
