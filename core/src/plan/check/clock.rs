//! Vector clocks.
//!
//! A timeline is a block, a proxy, or a rank's stream. Its events are numbered from 1. A clock says, for each timeline, up to
//! which event everything is known to have happened.

use std::rc::Rc;

/// An event of a timeline; event 0 stands for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Epoch {
    pub(super) timeline: u32,
    pub(super) event: u32,
}

/// Up to which event each timeline is known. Copies share memory until they change.
#[derive(Clone, Debug)]
pub(super) struct Clock(Rc<Vec<u32>>);

impl Clock {
    pub(super) fn new(timelines: usize) -> Self {
        Self(Rc::new(vec![0; timelines]))
    }

    pub(super) fn knows(&self, epoch: Epoch) -> bool {
        epoch.event == 0 || self.0[epoch.timeline as usize] >= epoch.event
    }

    pub(super) fn set(&mut self, epoch: Epoch) {
        let known = &mut Rc::make_mut(&mut self.0)[epoch.timeline as usize];
        *known = epoch.event.max(*known);
    }

    pub(super) fn join(&mut self, other: &Self) {
        if Rc::ptr_eq(&self.0, &other.0) {
            return;
        }
        if Rc::strong_count(&self.0) > 1
            && self.0.iter().zip(other.0.iter()).all(|(mine, theirs)| mine <= theirs)
        {
            self.0 = Rc::clone(&other.0);
            return;
        }
        for (mine, &theirs) in Rc::make_mut(&mut self.0).iter_mut().zip(other.0.iter()) {
            *mine = theirs.max(*mine);
        }
    }
}

/// Clocks of a block. A packet orders what its rank's stream read before the call with what is written after it has come, but not
/// what that stream has written, because nobody acquires it; so `all` counts packets and `data` does not.
#[derive(Clone, Debug)]
pub(super) struct Knowledge {
    pub(super) data: Clock,
    /// `None` if it equals `data`: in plans without packets, always.
    all: Option<Clock>,
}

impl Knowledge {
    pub(super) fn new(timelines: usize, packets: bool) -> Self {
        Self { data: Clock::new(timelines), all: packets.then(|| Clock::new(timelines)) }
    }

    pub(super) fn all(&self) -> &Clock {
        self.all.as_ref().unwrap_or(&self.data)
    }

    pub(super) fn set(&mut self, epoch: Epoch) {
        self.data.set(epoch);
        if let Some(all) = &mut self.all {
            all.set(epoch);
        }
    }

    pub(super) fn join(&mut self, other: &Self) {
        self.data.join(&other.data);
        self.join_packet(other);
    }

    /// Learns what a packet tells.
    pub(super) fn join_packet(&mut self, other: &Self) {
        if let Some(all) = &mut self.all {
            all.join(other.all());
        }
    }
}
