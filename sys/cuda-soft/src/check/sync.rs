//! How writes publish and reads acquire (PTX ISA, "Memory Consistency Model": release and acquire patterns).

use std::sync::Arc;

use super::clock::Clock;
use super::scope::{Place, includes, width};
use super::shared::join;
use crate::code::Scope;

/// Events that one release pattern publishes: a release, or a fence and a strong write behind it.
#[derive(Clone, Debug)]
pub(super) struct Release {
    pub(super) clock: Arc<Clock>,
    /// The publishing thread.
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

    /// Whether only its device matters to readers of a wide scope.
    fn is_wide(&self) -> bool {
        width(self.fence) > 0 && width(self.write) > 0
    }
}

/// Events that several release patterns publish together: those that a write belongs to, and those that the write read of which
/// it is the update.
///
/// Each block of a grid may add to it. So what a reader of device or system scope acquires is one clock for each device,
/// and what remains for each block is looked at by readers of block scope only.
#[derive(Clone, Debug, Default)]
pub(super) struct Published {
    devices: Vec<Release>,
    blocks: Vec<Release>,
}

impl Published {
    pub(super) fn add(&mut self, release: Release) {
        if release.is_wide() {
            merge(&mut self.devices, release.clone(), |old| {
                (old.from.device, old.fence, old.write) == (release.from.device, release.fence, release.write)
            });
        }
        merge(&mut self.blocks, release.clone(), |old| {
            (old.from, old.fence, old.write) == (release.from, release.fence, release.write)
        });
    }

    /// The patterns whose write is morally strong with a read of `scope` at `to`.
    pub(super) fn reaching(&self, scope: Scope, to: Place) -> impl Iterator<Item = &Release> {
        let near = width(scope) == 0;
        let devices = if near { &[] } else { &self.devices[..] };
        let blocks = self.blocks.iter().filter(move |release| near || !release.is_wide());
        devices.iter().chain(blocks).filter(move |release| release.reaches(scope, to))
    }

    /// The patterns that a fence or an acquire of `scope` at `to` synchronises with.
    pub(super) fn synchronizing(&self, scope: Scope, to: Place) -> impl Iterator<Item = &Release> {
        self.reaching(scope, to).filter(move |release| release.synchronizes(scope, to))
    }
}

impl From<Release> for Published {
    fn from(release: Release) -> Self {
        let mut published = Self::default();
        published.add(release);
        published
    }
}

fn merge(list: &mut Vec<Release>, release: Release, same: impl Fn(&Release) -> bool) {
    match list.iter_mut().find(|old| same(old)) {
        Some(old) => join(&mut old.clock, &release.clock),
        None => list.push(release),
    }
}

/// The fences that a thread has executed, or its releases of one location: for each scope, what the last one publishes with
/// the writes behind it.
#[derive(Clone, Debug, Default)]
pub(super) struct Fences(Vec<(Scope, Arc<Clock>)>);

impl Fences {
    pub(super) fn add(&mut self, scope: Scope, clock: Arc<Clock>) {
        // A later fence publishes more, so it replaces those of its scope and of narrower ones.
        self.keep_wider(scope);
        self.0.push((scope, clock));
    }

    /// Keeps those of wider scopes only. Returns whether there are any.
    pub(super) fn keep_wider(&mut self, scope: Scope) -> bool {
        self.0.retain(|(known, _)| width(*known) > width(scope));
        !self.0.is_empty()
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
    use crate::check::stamp::WorkId;

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
    fn readers_of_wide_scope_acquire_one_clock_for_each_device_and_others_that_of_their_block() {
        let work = WorkId { chain: 0, seq: 1 };
        let place = |device, block| Place { device, work, block };
        let mut published = Published::default();
        for (device, block) in [(0, 0), (0, 1), (0, 2), (1, 0)] {
            let mut clock = Clock::default();
            clock.reach(work, block, device as u16, 0, 1);
            let clock = Arc::new(clock);
            published.add(Release {
                clock,
                from: place(device, block),
                fence: Scope::Sys,
                write: Scope::Sys,
            });
        }
        let narrow =
            Release { clock: Arc::default(), from: place(0, 1), fence: Scope::Cta, write: Scope::Gpu };
        published.add(narrow);
        let count = |scope, to| published.synchronizing(scope, to).count();
        assert_eq!([count(Scope::Sys, place(1, 9)), count(Scope::Gpu, place(0, 9))], [2, 1]);
        assert_eq!(count(Scope::Gpu, place(0, 1)), 2, "and what only its own block may acquire");
        assert_eq!([count(Scope::Cta, place(0, 2)), count(Scope::Cta, place(0, 9))], [1, 0]);
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
