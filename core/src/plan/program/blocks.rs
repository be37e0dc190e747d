//! Thread blocks that work for an operation, and when their threads meet.

/// Whether a block's threads meet before and after a control operation ([`Op::Sync`](crate::plan::Op::Sync)).
///
/// Threads of a block are ordered by nothing else: without `After`, moves behind a wait may begin before it has ended, and
/// without `Before`, a signal may leave before the moves ahead of it are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SyncType {
    /// Neither.
    None,
    /// Before the operation.
    Before,
    /// After it.
    After,
    /// Before and after.
    Both,
}

impl SyncType {
    pub(super) fn before(self) -> bool {
        matches!(self, Self::Before | Self::Both)
    }

    pub(super) fn after(self) -> bool {
        matches!(self, Self::After | Self::Both)
    }
}

/// Thread blocks that share the chunks of an operation as evenly as the alignment lets them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadBlockGroup {
    blocks: Vec<u32>,
}

impl ThreadBlockGroup {
    /// A group of these blocks, each named once; the first takes the first part.
    pub fn new(blocks: impl IntoIterator<Item = u32>) -> Self {
        Self { blocks: blocks.into_iter().collect() }
    }

    /// The blocks.
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }
}

/// The blocks that work for an operation: one, given by its number, or a group, given by reference.
#[derive(Clone, Copy, Debug)]
pub enum Blocks<'g> {
    /// A block.
    One(u32),
    /// A group that shares the work.
    Group(&'g ThreadBlockGroup),
}

impl From<u32> for Blocks<'_> {
    fn from(block: u32) -> Self {
        Self::One(block)
    }
}

impl<'g> From<&'g ThreadBlockGroup> for Blocks<'g> {
    fn from(group: &'g ThreadBlockGroup) -> Self {
        Self::Group(group)
    }
}
