//! The address space of the software machine: which ranges exist and which device may do what there.
//!
//! Addresses are real host addresses. Whoever executes device code or a copy enters the space for a short time,
//! finds the spans it needs, and touches only those: a wild address is a fault value, never a signal.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard};

use super::object::Backing;
use super::{Bell, Doorbell, MAX_DEVICES};

/// Who may access a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Memory of one device: the owner, and devices whose context enabled peer access to it.
    Owned(usize),
    /// Memory of another process's device, opened by a context of this one: both devices, and the owner's peers.
    Lent {
        /// The device it belongs to.
        owner: usize,
        /// The device whose context opened it.
        to: usize,
    },
    /// Host memory: every device.
    Host {
        /// Whether devices may write it.
        writable: bool,
    },
    /// Virtual memory management: the devices of the two masks.
    Granted {
        /// Devices that may read.
        read: u64,
        /// Devices that may write.
        write: u64,
    },
}

/// All mappings of the process.
#[derive(Debug, Default)]
pub struct Space {
    map: RwLock<Map>,
}

/// The space as one device sees it, for as long as this lives; meanwhile nothing is unmapped.
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
    /// Rung after stores to the span; valid while the [`View`] lives.
    pub bell: *const Doorbell,
}

impl Space {
    /// An empty space.
    #[must_use]
    pub const fn new() -> Self {
        Self { map: RwLock::new(Map { entries: BTreeMap::new(), peers: [0; MAX_DEVICES], generation: 0 }) }
    }

    /// Enters as `device`. Hold the view for one quantum of work only: mapping and unmapping wait for it, and
    /// entering twice on one thread can deadlock.
    pub fn enter(&self, device: usize) -> View<'_> {
        View { map: self.map.read(), device }
    }

    /// Adds a mapping; the caller has made sure that its range is its own.
    pub(crate) fn insert(&self, base: u64, len: u64, rights: Rights, backing: Arc<Backing>) {
        let mut map = self.map.write();
        map.generation += 1;
        let before = map.entries.insert(base, Entry { end: base + len, rights, backing });
        debug_assert!(before.is_none(), "two mappings at {base:#x}");
    }

    /// Removes the mapping at `base` once no view is alive; the memory goes when the result is dropped.
    pub(crate) fn remove(&self, base: u64) -> Option<Arc<Backing>> {
        let mut map = self.map.write();
        map.generation += 1;
        map.entries.remove(&base).map(|entry| entry.backing)
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

    /// Lets `device` access memory owned by `peer`, or no longer.
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

    /// Changes whenever a mapping or a right changes: spans found under one value hold under an equal one.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.map.generation
    }

    /// The span around `addr`, or `None` where the device may not read it (not write it, if `write`).
    #[must_use]
    pub fn find(&self, addr: u64, write: bool) -> Option<Span> {
        let (base, entry) = self.map.at(addr)?;
        let (read, writable) = self.map.rights(self.device, entry.rights);
        (if write { writable } else { read }).then(|| entry.span(base, writable))
    }

    /// The doorbell at `addr`, to sleep on after the view has gone.
    #[must_use]
    pub fn keep(&self, addr: u64) -> Option<Bell> {
        self.map.at(addr).map(|(_, entry)| entry.backing.keep_bell())
    }

    /// As [`find`](Self::find) for a copy engine, which also reaches the plain memory of every other device
    /// (through the host where peers cannot).
    #[must_use]
    pub(crate) fn find_for_copy(&self, addr: u64, write: bool) -> Option<Span> {
        let (base, entry) = self.map.at(addr)?;
        match entry.rights {
            Rights::Owned(_) | Rights::Lent { .. } | Rights::Host { .. } => Some(entry.span(base, true)),
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
    fn span(&self, base: u64, writable: bool) -> Span {
        Span { base, end: self.end, writable, bell: self.backing.bell() }
    }
}

#[derive(Debug)]
struct Map {
    entries: BTreeMap<u64, Entry>,
    /// Bit p of `peers[d]`: device d may access what device p owns.
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

    /// (readable, writable) by `device`.
    fn rights(&self, device: usize, rights: Rights) -> (bool, bool) {
        match rights {
            Rights::Owned(owner) => {
                let yes = owner == device || self.peers[device] & 1 << owner != 0;
                (yes, yes)
            }
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
