//! How writes publish and reads acquire (PTX ISA, "Memory Consistency Model": release and acquire patterns).

use std::sync::Arc;

use super::clock::Clock;
use super::scope::{Place, includes, width};
use crate::code::Scope;

/// What the last strong write of a place has published, with its value.
#[derive(Clone, Debug, Default)]
pub(super) struct Releases {
    pub(super) value: u64,
    pub(super) size: u32,
    pub(super) by: Vec<Release>,
}

/// What one release pattern publishes: a release, or a fence and a strong write behind it.
#[derive(Clone, Debug)]
pub(super) struct Release {
    pub(super) clock: Arc<Clock>,
    /// Who published.
    pub(super) from: Place,
    /// The scope of the fence, or of the release itself.
    pub(super) fence: Scope,
    /// The scope of the write.
    pub(super) write: Scope,
}

impl Release {
    /// Whether a strong read at `to` of `scope` that sees the write is morally strong with it.
    pub(super) fn reaches(&self, scope: Scope, to: Place) -> bool {
        includes(self.write, self.from, to) && includes(scope, to, self.from)
    }

    /// Whether an acquire at `to` of `scope`, or a fence behind the read, synchronises with it.
    pub(super) fn synchronizes(&self, scope: Scope, to: Place) -> bool {
        includes(self.fence, self.from, to) && includes(scope, to, self.from)
    }
}

/// The fences that a thread has executed: for each scope, what the last one publishes with the writes behind it.
#[derive(Clone, Debug, Default)]
pub(super) struct Fences(Vec<(Scope, Arc<Clock>)>);

impl Fences {
    pub(super) fn add(&mut self, scope: Scope, clock: Arc<Clock>) {
        // A later fence publishes more, so it replaces those of its scope and of narrower ones.
        self.0.retain(|(known, _)| width(*known) > width(scope));
        self.0.push((scope, clock));
    }

    pub(super) fn of_write(&self, from: Place, write: Scope) -> impl Iterator<Item = Release> {
        self.0.iter().map(move |(fence, clock)| Release {
            clock: Arc::clone(clock),
            from,
            fence: *fence,
            write,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::clock::WorkId;

    #[test]
    fn a_pattern_needs_fitting_scopes_of_both_writes_and_fences() {
        let here = Place { device: 0, work: WorkId { chain: 0, seq: 1 }, block: 0 };
        let there = Place { device: 1, work: WorkId { chain: 1, seq: 1 }, block: 0 };
        let release = |fence, write| Release { clock: Arc::default(), from: here, fence, write };
        assert!(release(Scope::Sys, Scope::Sys).reaches(Scope::Sys, there));
        assert!(!release(Scope::Sys, Scope::Gpu).reaches(Scope::Sys, there));
        assert!(!release(Scope::Sys, Scope::Sys).reaches(Scope::Gpu, there));
        assert!(!release(Scope::Gpu, Scope::Sys).synchronizes(Scope::Sys, there));
        assert!(!release(Scope::Sys, Scope::Sys).synchronizes(Scope::Gpu, there));
        assert!(release(Scope::Gpu, Scope::Sys).synchronizes(Scope::Gpu, Place { block: 4, ..here }));
    }

    #[test]
    fn a_later_fence_replaces_narrower_ones_and_leaves_wider_ones() {
        let mut fences = Fences::default();
        let scopes = |fences: &Fences| fences.0.iter().map(|(scope, _)| *scope).collect::<Vec<_>>();
        fences.add(Scope::Sys, Arc::default());
        fences.add(Scope::Gpu, Arc::default());
        fences.add(Scope::Cta, Arc::default());
        assert_eq!(scopes(&fences), [Scope::Sys, Scope::Gpu, Scope::Cta]);
        fences.add(Scope::Gpu, Arc::default());
        assert_eq!(scopes(&fences), [Scope::Sys, Scope::Gpu]);
        fences.add(Scope::Sys, Arc::default());
        assert_eq!(scopes(&fences), [Scope::Sys]);
    }
}
