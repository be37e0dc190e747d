//! `--policy`: which chunks each instance of a plan handles.

use aqueduct::plan::pass;

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
pub(super) enum Policy {
    /// Each instance has a part of every chunk
    #[default]
    Interleaved,
    /// Each instance has neighbouring chunks
    None,
}

impl From<Policy> for pass::Policy {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Interleaved => Self::Interleaved,
            Policy::None => Self::None,
        }
    }
}
