//! Scopes: whether two threads are close enough for their strong operations to be ordered.

use super::stamp::WorkId;
use crate::code::Scope;

/// Where a thread runs. Stream work has no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) device: usize,
    pub(super) work: WorkId,
    pub(super) block: u32,
}

/// Whether the scope of an operation at `from` includes the thread at `to`. A block is a cluster of its own here.
pub(super) fn includes(scope: Scope, from: Place, to: Place) -> bool {
    match scope {
        Scope::Cta | Scope::Cluster => from.work == to.work && from.block == to.block,
        Scope::Gpu => from.device == to.device,
        Scope::Sys => true,
    }
}

/// The wider of two scopes has the larger number.
pub(super) fn width(scope: Scope) -> u8 {
    match scope {
        Scope::Cta | Scope::Cluster => 0,
        Scope::Gpu => 1,
        Scope::Sys => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_includes_its_own_block_device_or_all() {
        let work = WorkId { chain: 1, seq: 1 };
        let here = Place { device: 0, work, block: 0 };
        let others = [
            Place { block: 1, ..here },
            Place { work: WorkId { chain: 2, seq: 1 }, ..here },
            Place { device: 1, work: WorkId { chain: 3, seq: 1 }, block: 0 },
        ];
        let seen = |scope| others.map(|to| includes(scope, here, to));
        assert_eq!(seen(Scope::Cta), [false, false, false]);
        assert_eq!(seen(Scope::Gpu), [true, true, false]);
        assert_eq!(seen(Scope::Sys), [true, true, true]);
        assert!(includes(Scope::Cta, here, here));
    }
}
