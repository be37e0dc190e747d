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
    /// Sum of all ranks divided by their number. Rounded once where one operation has the data of all ranks, as in built-in collectives of one
    /// host; where hosts, or steps of a plan, sum up first, each of their sums is rounded, too.
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
