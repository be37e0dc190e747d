//! The address space of the software machine: the mapped ranges and the rights of each device to them.
//!
//! Addresses are real host addresses. A thread that executes device code or a copy enters the space for a short time,
//! looks up the spans it needs, and accesses only those. A wild address therefore becomes a fault value, never a
//! signal.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use parking_lot::{RwLock, RwLockReadGuard};

use super::backing::Backing;
use super::multicast::Team;
use super::{EventCount, EventCountRef, Home, MAX_DEVICES};
use crate::check::{Checker, Object};

/// The devices that may access a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Memory of one device: the owner, and the devices whose context enabled peer access to the owner.
    Owned(usize),
    /// Constants of one device: it may read them, and so may its peers. Copies may write them.
    Constant(usize),
    /// Memory that a context opened from another process: the opening device, the owner, and the owner's peers.
    Lent {
        /// The device that owns the memory.
        owner: usize,
        /// The device whose context opened it.
        to: usize,
    },
    /// Host memory: all devices.
    Host {
        /// Whether devices may write it.
        writable: bool,
    },
    /// Memory from virtual memory management: the devices in the two masks.
    Granted {
        /// Devices that may read.
        read: u64,
        /// Devices that may write.
        write: u64,
    },
}

/// All mappings of this process.
#[derive(Debug, Default)]
pub struct Space {
    map: RwLock<Map>,
    /// Is told of memory that is gone.
    checker: OnceLock<Arc<Checker>>,
}

/// The space as one device sees it. While a view lives, nothing is unmapped.
#[derive(Debug)]
pub struct View<'a> {
    map: RwLockReadGuard<'a, Map>,
    device: usize,
}

/// A contiguous range of one mapping that the device may access.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// First address.
    pub base: u64,
    /// One past the last address.
    pub end: u64,
    /// Whether the device may write it.
    pub writable: bool,
    /// The event count to notify after stores to the span; valid while the [`View`] lives.
    pub event_count: *const EventCount,
    /// The identity of the memory object, the same for all its mappings; `None` for memory that the user registered.
    pub object: Option<u64>,
    /// Whose memory it is.
    pub home: Home,
}

impl Space {
    /// An empty space.
    #[must_use]
    pub const fn new() -> Self {
        let map = Map { entries: BTreeMap::new(), peers: [0; MAX_DEVICES], generation: 0 };
        Self { map: RwLock::new(map), checker: OnceLock::new() }
    }

    /// Enters the space as `device`. Hold the view for one quantum of work only, because mapping and unmapping wait for
    /// it. Entering twice on one thread can deadlock.
    pub fn enter(&self, device: usize) -> View<'_> {
        View { map: self.map.read(), device }
    }

    /// Has the race detector told of memory that is gone.
    pub(crate) fn report_to(&self, checker: Arc<Checker>) {
        let _ = self.checker.set(checker);
    }

    /// Adds a mapping. The caller owns the range, and no other mapping overlaps it.
    pub(crate) fn insert(&self, base: u64, len: u64, rights: Rights, backing: Arc<Backing>) {
        let mut map = self.map.write();
        map.generation += 1;
        let before = map.entries.insert(base, Entry { end: base + len, rights, backing });
        debug_assert!(before.is_none(), "two mappings at {base:#x}");
    }

    /// Waits until no view is alive, then removes the mapping at `base`. Dropping the result frees the memory.
    pub(crate) fn remove(&self, base: u64) -> Option<Arc<Backing>> {
        let mut map = self.map.write();
        map.generation += 1;
        let gone = map.entries.remove(&base)?;
        if let Some(checker) = self.checker.get() {
            let len = gone.end - base;
            match gone.object() {
                None => checker.forget(Object::Host, base, len),
                Some(id) if map.entries.values().all(|other| other.object() != Some(id)) => {
                    checker.forget(Object::Driver(id), 0, len);
                }
                Some(_) => {}
            }
        }
        Some(gone.backing)
    }

    /// The rights of the mapping that begins at `base`.
    pub(crate) fn rights(&self, base: u64) -> Option<Rights> {
        self.map.read().entries.get(&base).map(|entry| entry.rights)
    }

    /// Changes the rights of the mapping at `base`.
    pub(crate) fn set_rights(&self, base: u64, rights: Rights) {
        let mut map = self.map.write();
        map.generation += 1;
        if let Some(entry) = map.entries.get_mut(&base) {
            entry.rights = rights;
        }
    }

    /// Allows or forbids `device` to access the memory that `peer` owns.
    pub(crate) fn set_peer(&self, device: usize, peer: usize, enabled: bool) {
        let mut map = self.map.write();
        map.generation += 1;
        if enabled {
            map.peers[device] |= 1 << peer;
        } else {
            map.peers[device] &= !(1 << peer);
        }
    }
}

impl View<'_> {
    /// The device this view belongs to.
    #[must_use]
    pub fn device(&self) -> usize {
        self.device
    }

    /// A number that changes with every mapping and right: a span stays valid while it is the same.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.map.generation
    }

    /// The span around `addr`, or `None` if the device may not read it (or write it, if `write`). Multicast addresses
    /// have none: only `team` finds them.
    #[must_use]
    pub fn find(&self, addr: u64, write: bool) -> Option<Span> {
        let (base, entry) = self.map.at(addr).filter(|(_, entry)| entry.backing.team().is_none())?;
        let (read, writable) = self.map.rights(self.device, entry.rights);
        (if write { writable } else { read }).then(|| entry.span(base, writable))
    }

    /// The team that `addr` stands for, and the offset in the multicast object; `None` for other addresses, or if the
    /// device may not read it (or write it, if `write`).
    pub(crate) fn team(&self, addr: u64, write: bool) -> Option<(&Team, u64)> {
        let (base, entry) = self.map.at(addr)?;
        let (read, writable) = self.map.rights(self.device, entry.rights);
        let team = entry.backing.team().filter(|_| if write { writable } else { read })?;
        Some((team, addr - base))
    }

    /// The event count of the memory at `addr`, to sleep on after the view is dropped.
    #[must_use]
    pub fn event_count(&self, addr: u64) -> Option<EventCountRef> {
        self.map.at(addr).map(|(_, entry)| entry.backing.event_count_ref())
    }

    /// Like [`find`](Self::find), for a copy engine: it also reaches plain memory of devices without peer access,
    /// as hardware does by staging through the host.
    #[must_use]
    pub(crate) fn find_for_copy(&self, addr: u64, write: bool) -> Option<Span> {
        let (base, entry) = self.map.at(addr)?;
        match entry.rights {
            Rights::Owned(_) | Rights::Constant(_) | Rights::Lent { .. } | Rights::Host { .. } => {
                Some(entry.span(base, true))
            }
            Rights::Granted { .. } => self.find(addr, write),
        }
    }
}

#[derive(Debug)]
struct Entry {
    end: u64,
    rights: Rights,
    backing: Arc<Backing>,
}

impl Entry {
    /// The identity of the memory object, the same for all its mappings.
    fn object(&self) -> Option<u64> {
        self.backing.object().map(|object| object.identity()[0])
    }

    fn span(&self, base: u64, writable: bool) -> Span {
        let object = self.object();
        let home = match (&self.rights, self.backing.object()) {
            (Rights::Host { .. }, Some(_)) => Home::Pinned,
            (Rights::Host { .. }, None) => Home::Registered,
            (_, object) => Home::Device(object.map_or(0, |object| object.facts().device)),
        };
        Span { base, end: self.end, writable, event_count: self.backing.event_count(), object, home }
    }
}

#[derive(Debug)]
struct Map {
    entries: BTreeMap<u64, Entry>,
    /// Bit p of `peers[d]` is set if device d may access the memory of device p.
    peers: [u64; MAX_DEVICES],
    generation: u64,
}

impl Default for Map {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), peers: [0; MAX_DEVICES], generation: 0 }
    }
}

impl Map {
    fn at(&self, addr: u64) -> Option<(u64, &Entry)> {
        let (base, entry) = self.entries.range(..=addr).next_back()?;
        (addr < entry.end).then_some((*base, entry))
    }

    /// Returns (readable, writable) for `device`.
    fn rights(&self, device: usize, rights: Rights) -> (bool, bool) {
        match rights {
            Rights::Owned(owner) => {
                let yes = owner == device || self.peers[device] & 1 << owner != 0;
                (yes, yes)
            }
            Rights::Constant(owner) => (self.rights(device, Rights::Owned(owner)).0, false),
            Rights::Lent { owner, to } => {
                let yes = to == device || self.rights(device, Rights::Owned(owner)).0;
                (yes, yes)
            }
            Rights::Host { writable } => (true, writable),
            Rights::Granted { read, write } => ((read | write) & 1 << device != 0, write & 1 << device != 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backing() -> Arc<Backing> {
        Arc::new(Backing::borrowed())
    }

    #[test]
    fn ranges_are_exact() {
        let space = Space::new();
        space.insert(0x1000, 0x100, Rights::Owned(0), backing());
        space.insert(0x1100, 0x100, Rights::Owned(0), backing());
        let view = space.enter(0);
        assert!(view.find(0xfff, false).is_none());
        assert_eq!(view.find(0x1000, true).map(|s| (s.base, s.end)), Some((0x1000, 0x1100)));
        assert_eq!(view.find(0x10ff, true).map(|s| (s.base, s.end)), Some((0x1000, 0x1100)));
        assert_eq!(view.find(0x1100, true).map(|s| (s.base, s.end)), Some((0x1100, 0x1200)));
        assert!(view.find(0x1200, false).is_none());
    }

    #[test]
    fn rights_are_per_device() {
        let space = Space::new();
        space.insert(0x1000, 0x100, Rights::Owned(1), backing());
        space.insert(0x2000, 0x100, Rights::Host { writable: false }, backing());
        space.insert(0x3000, 0x100, Rights::Granted { read: 0b101, write: 0b001 }, backing());
        let may = |device, addr| {
            let view = space.enter(device);
            (view.find(addr, false).is_some(), view.find(addr, true).is_some())
        };
        assert_eq!(may(0, 0x1000), (false, false));
        assert_eq!(may(1, 0x1000), (true, true));
        space.set_peer(0, 1, true);
        assert_eq!(may(0, 0x1000), (true, true));
        space.set_peer(0, 1, false);
        assert_eq!(may(0, 0x1000), (false, false));
        assert_eq!(may(5, 0x2000), (true, false));
        assert_eq!(
            [may(0, 0x3000), may(1, 0x3000), may(2, 0x3000)],
            [(true, true), (false, false), (true, false)]
        );
        space.set_rights(0x3000, Rights::Granted { read: 0, write: 0b010 });
        assert_eq!([may(0, 0x3000), may(1, 0x3000)], [(false, false), (true, true)]);
    }

    #[test]
    fn removal_waits_for_views() {
        let space = Space::new();
        space.insert(0x1000, 0x100, Rights::Owned(0), backing());
        let before = space.enter(0).generation();
        std::thread::scope(|s| {
            let view = space.enter(0);
            let remover = s.spawn(|| space.remove(0x1000).is_some());
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!remover.is_finished());
            drop(view);
            assert!(remover.join().expect("remover"));
        });
        let view = space.enter(0);
        assert!(view.find(0x1000, false).is_none());
        assert_ne!(view.generation(), before);
    }
}
