//! Collectives: how chunks of input and output correspond.

/// The result that a plan promises.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Collective {
    /// Which collective.
    pub kind: Kind,
    /// Input and output are the same memory (or one is a part of the other), and the result may be written through either.
    pub in_place: bool,
}

/// Which collective a plan is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Every rank gets the reduction of all inputs.
    AllReduce,
    /// Every rank gets all inputs.
    AllGather,
    /// Rank r gets part r of the reduction.
    ReduceScatter,
    /// Rank r gets part r of every input.
    AllToAll,
    /// Every rank gets the root's input.
    Broadcast {
        /// The root.
        root: u32,
    },
    /// The root gets the reduction.
    Reduce {
        /// The root.
        root: u32,
    },
    /// The root gets all inputs. The others have no output.
    Gather {
        /// The root.
        root: u32,
    },
    /// Rank r gets part r of the root's input. The others have no input.
    Scatter {
        /// The root.
        root: u32,
    },
    /// Every rank gets the input of the rank before it.
    SendRecv,
    /// Of that name; only its author knows the result.
    Custom(String),
}

/// The inputs that an output chunk is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// This chunk of every rank, reduced.
    All(u32),
    /// This chunk of one rank.
    One { rank: u32, chunk: u32 },
    /// Nothing is promised.
    Nothing,
}

impl Kind {
    /// The name in plan files.
    pub fn name(&self) -> &str {
        match self {
            Self::AllReduce => "allreduce",
            Self::AllGather => "allgather",
            Self::ReduceScatter => "reducescatter",
            Self::AllToAll => "alltoall",
            Self::Broadcast { .. } => "broadcast",
            Self::Reduce { .. } => "reduce",
            Self::Gather { .. } => "gather",
            Self::Scatter { .. } => "scatter",
            Self::SendRecv => "sendrecv",
            Self::Custom(name) => name,
        }
    }

    /// The collective of that name. A root is rank 0, because plan files do not name one.
    pub fn of_name(name: &str) -> Self {
        match name {
            "allreduce" => Self::AllReduce,
            "allgather" => Self::AllGather,
            "reducescatter" => Self::ReduceScatter,
            "alltoall" => Self::AllToAll,
            "broadcast" => Self::Broadcast { root: 0 },
            "reduce" => Self::Reduce { root: 0 },
            "gather" => Self::Gather { root: 0 },
            "scatter" => Self::Scatter { root: 0 },
            "sendrecv" => Self::SendRecv,
            other => Self::Custom(other.to_owned()),
        }
    }

    /// Why these chunk counts do not fit the collective, if so.
    pub(super) fn misfit(&self, ranks: u32, input: u32, output: u32) -> Option<String> {
        let n = u64::from(ranks);
        let (i, o) = (u64::from(input), u64::from(output));
        let (fits, rule) = match self {
            Self::AllReduce | Self::Broadcast { .. } | Self::Reduce { .. } | Self::SendRecv => {
                (i == o, "as many input chunks as output chunks")
            }
            Self::AllGather | Self::Gather { .. } => {
                (o == n * i, "output chunks for the input chunks of all ranks")
            }
            Self::ReduceScatter | Self::Scatter { .. } => {
                (i == n * o, "input chunks for the output chunks of all ranks")
            }
            Self::AllToAll => (
                i == o && i % n.max(1) == 0,
                "as many input chunks as output chunks, a multiple of the ranks",
            ),
            Self::Custom(_) => return None,
        };
        let message = || {
            format!(
                "{} of {ranks} ranks needs {rule}; here are {input} input and {output} output chunks",
                self.name()
            )
        };
        (!fits || input == 0).then(message)
    }

    /// The rank that differs from the others, if one does.
    pub fn root(&self) -> Option<u32> {
        match *self {
            Self::Broadcast { root }
            | Self::Reduce { root }
            | Self::Gather { root }
            | Self::Scatter { root } => Some(root),
            _ => None,
        }
    }

    /// Whether the input of each rank may end within a chunk: only where chunks of the same index meet.
    pub(super) fn divides_freely(&self) -> bool {
        matches!(self, Self::AllReduce | Self::Broadcast { .. } | Self::Reduce { .. } | Self::SendRecv)
    }

    /// The parts that chunk `chunk` of `rank`'s output is made of, if every rank has so many chunks of input and output.
    pub(super) fn expected(
        &self,
        ranks: u32,
        rank: u32,
        chunk: u32,
        (input, output): (u32, u32),
    ) -> Expected {
        let per_rank = |chunks: u32| (chunks / ranks.max(1)).max(1);
        match *self {
            Self::AllReduce => Expected::All(chunk),
            Self::AllGather => {
                let part = input.max(1);
                Expected::One { rank: chunk / part, chunk: chunk % part }
            }
            Self::ReduceScatter => Expected::All(rank * output + chunk),
            Self::AllToAll => {
                let part = per_rank(output);
                Expected::One { rank: chunk / part, chunk: rank * part + chunk % part }
            }
            Self::Broadcast { root } => Expected::One { rank: root, chunk },
            Self::Reduce { root } if rank == root => Expected::All(chunk),
            Self::Gather { root } if rank == root => {
                let part = input.max(1);
                Expected::One { rank: chunk / part, chunk: chunk % part }
            }
            Self::Scatter { root } => Expected::One { rank: root, chunk: rank * output + chunk },
            Self::SendRecv => Expected::One { rank: (rank + ranks - 1) % ranks, chunk },
            Self::Reduce { .. } | Self::Gather { .. } | Self::Custom(_) => Expected::Nothing,
        }
    }
}
