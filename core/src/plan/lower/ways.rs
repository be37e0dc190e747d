//! Choices between kernels that do the same.

use super::teams::Team;

/// Ways in which kernels differ that do the same.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::plan) struct Ways<'t> {
    /// The kernel notes the time of every operation, so many times in each block.
    pub(in crate::plan) records: Option<u32>,
    /// Switches are accessed by the multicast addresses of these teams, which are the plan's; if it is empty, member by member.
    pub(in crate::plan) teams: &'t [Team],
}
