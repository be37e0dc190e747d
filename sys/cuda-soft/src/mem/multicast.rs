//! Multicast objects: a team of devices, and the memory that each of them has bound, known to every process that holds the
//! object.
//!
//! The members and bindings are in a table in the object's own pages. A binding names its memory by its [`Place`]; a
//! process opens and maps that memory when a kernel of its own first needs it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use cuda_driver_sys::CUresult;
use parking_lot::Mutex;

use super::mapping::Mapping;
use super::object::{Facts, Kind, Object, refused};
use super::place::Place;
use super::{EventCount, MAX_DEVICES};
use crate::abi::{INVALID_VALUE, Result};

/// The team of a multicast object, as this process sees it. Dropping it ends the bindings that this process has made.
#[derive(Debug)]
pub(crate) struct Team {
    object: Arc<Object>,
    /// The pages of the table.
    pages: Mapping,
    size: u64,
    devices: u32,
    seen: Mutex<Seen>,
}

/// The table in the pages of the object. Other processes write it, so nothing read from it is trusted.
#[repr(C)]
struct Table {
    /// Bytes that each device can bind. Written once, before the object is shared.
    size: AtomicU64,
    /// Number of devices of the complete team. Written once.
    devices: AtomicU64,
    /// The devices that have been added, as a mask.
    members: AtomicU64,
    /// Changes with every binding, as the sequence of a sequence lock.
    generation: AtomicU64,
    bindings: [Row; BINDINGS],
}

/// A binding in the table.
#[repr(C)]
struct Row {
    /// [`FREE`], [`CLAIMED`] while its words are written, or [`VALID`].
    state: AtomicU64,
    words: [AtomicU64; WORDS],
}

const FREE: u64 = 0;
const CLAIMED: u64 = 1;
const VALID: u64 = 2;
const WORDS: usize = 8;
const BINDINGS: usize = 512;
const PAGES: usize = 64 << 10;
const _: () = assert!(size_of::<Table>() <= PAGES);

/// Memory that a device has bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Binding {
    device: u64,
    /// Where it begins in the multicast object.
    offset: u64,
    size: u64,
    /// Where it begins in the memory.
    memory_offset: u64,
    place: Place,
}

/// The bindings, as far as this process knows them.
#[derive(Debug, Default)]
struct Seen {
    generation: Option<u64>,
    bound: Arc<Bound>,
    /// The memory that this process has bound, whose descriptors other processes open.
    own: Vec<Arc<Object>>,
}

/// The bindings at one time, mapped into this process.
#[derive(Debug, Default)]
pub(crate) struct Bound {
    devices: usize,
    all: Vec<(Binding, Arc<Memory>)>,
}

/// Memory that a device has bound, mapped into this process.
#[derive(Debug)]
struct Memory {
    mapping: Mapping,
    object: Arc<Object>,
}

/// The memory of one device behind a multicast address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    /// The address in this process, and that of the beginning of the memory object.
    pub(crate) address: u64,
    pub(crate) base: u64,
    /// The device that has bound it.
    pub(crate) device: u64,
    /// The identity of the memory object, and the offset there.
    pub(crate) object: (u64, u64),
    /// The event count to notify after a store.
    pub(crate) event_count: &'a EventCount,
}

impl Bound {
    /// The memory of all devices behind `offset .. offset + size`, in the order of devices; `None` unless each device has
    /// bound all of it.
    pub(crate) fn at(&self, offset: u64, size: u64) -> Option<Vec<Target<'_>>> {
        let end = offset.checked_add(size)?;
        let holds = |b: &Binding| b.offset <= offset && end - b.offset <= b.size;
        let mut found = Vec::with_capacity(self.devices);
        for (binding, memory) in self.all.iter().filter(|(binding, _)| holds(binding)) {
            let at = binding.memory_offset + (offset - binding.offset);
            let (base, device) = (memory.mapping.address(), binding.device);
            let (address, object) = (base + at, (memory.object.identity()[0], at));
            // SAFETY: the event count is valid while the object lives, which `self` holds.
            let event_count = unsafe { &*memory.object.event_count() };
            found.push(Target { address, base, device, object, event_count });
        }
        (found.len() == self.devices).then_some(found)
    }
}

impl Binding {
    fn to_words(self) -> [u64; WORDS] {
        let Place { pid, started, fd, identity } = self.place;
        [
            self.device,
            self.offset,
            self.size,
            self.memory_offset,
            u64::from(pid) << 32 | u64::from(fd),
            started,
            identity[0],
            identity[1],
        ]
    }

    fn from_words(words: [u64; WORDS]) -> Self {
        let [device, offset, size, memory_offset, process, started, first, second] = words;
        let place =
            Place { pid: (process >> 32) as u32, started, fd: process as u32, identity: [first, second] };
        Self { device, offset, size, memory_offset, place }
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.device == other.device
            && self.offset < other.offset.saturating_add(other.size)
            && other.offset < self.offset.saturating_add(self.size)
    }
}

impl Team {
    /// Creates a multicast object for `devices` devices with `size` bytes each.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`, `CUDA_ERROR_OPERATING_SYSTEM`.
    pub(crate) fn create(devices: u32, size: u64, handle_types: u32) -> Result<Arc<Self>> {
        let object = Object::create(PAGES, Facts { kind: Kind::Multicast, device: 0, handle_types });
        let mut team = Self::over(object.map_err(refused)?)?;
        team.table().size.store(size, Ordering::Relaxed);
        team.table().devices.store(devices.into(), Ordering::Relaxed);
        (team.size, team.devices) = (size, devices);
        Ok(Arc::new(team))
    }

    /// The team of an object that another process created.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if it is no multicast object.
    pub(crate) fn open(object: Arc<Object>) -> Result<Arc<Self>> {
        if object.facts().kind != Kind::Multicast || object.size() != PAGES {
            return Err(INVALID_VALUE);
        }
        let mut team = Self::over(object)?;
        team.size = team.table().size.load(Ordering::Relaxed);
        let devices = u32::try_from(team.table().devices.load(Ordering::Relaxed)).ok();
        let possible = |n: &u32| (1..=MAX_DEVICES as u32).contains(n);
        team.devices = devices.filter(possible).ok_or(INVALID_VALUE)?;
        Ok(Arc::new(team))
    }

    fn over(object: Arc<Object>) -> Result<Self> {
        let pages = object.map(PAGES, None).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(Self { object, pages, size: 0, devices: 0, seen: Mutex::default() })
    }

    fn table(&self) -> &Table {
        // SAFETY: the pages stay mapped while `self` lives, begin at a page, and hold a `Table`. All its fields are
        // atomics, for which every bit pattern is valid, because other processes write them.
        unsafe { &*std::ptr::with_exposed_provenance::<Table>(self.pages.address() as usize) }
    }

    fn event_count(&self) -> &EventCount {
        // SAFETY: the event count is valid while the object lives, which `self` holds.
        unsafe { &*self.object.event_count() }
    }

    pub(crate) fn object(&self) -> &Arc<Object> {
        &self.object
    }

    /// Bytes of the multicast object.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Whether `device` has been added.
    pub(crate) fn has(&self, device: usize) -> bool {
        self.table().members.load(Ordering::Acquire) & 1 << device != 0
    }

    /// Adds a device to the team.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if the team has the device already or is complete.
    pub(crate) fn add(&self, device: usize) -> Result {
        let join = |members: u64| {
            let free = members & 1 << device == 0 && members.count_ones() < self.devices;
            free.then_some(members | 1 << device)
        };
        let added = self.table().members.fetch_update(Ordering::AcqRel, Ordering::Acquire, join);
        added.map_err(|_| INVALID_VALUE)?;
        self.event_count().notify();
        Ok(())
    }

    /// Waits until all devices have been added, by whatever process.
    pub(crate) fn wait_for_devices(&self) {
        self.wait_with_naps(Duration::from_millis(100));
    }

    fn wait_with_naps(&self, nap: Duration) {
        loop {
            let seen = self.event_count().sequence();
            if self.table().members.load(Ordering::Acquire).count_ones() >= self.devices {
                return;
            }
            self.event_count().wait(seen, nap);
        }
    }

    /// Binds `size` bytes of `memory` of `device`, from `memory_offset`, at `offset`.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if the device has bound a part of the range already, `CUDA_ERROR_OUT_OF_MEMORY` if the
    /// table is full.
    pub(crate) fn bind(
        &self,
        device: usize,
        memory: &Arc<Object>,
        [offset, memory_offset, size]: [u64; 3],
    ) -> Result {
        let place = Place::of(memory)?;
        let binding = Binding { device: device as u64, offset, size, memory_offset, place };
        let mut seen = self.seen.lock();
        let table = self.table();
        let claim = |row: &&Row| {
            row.state.compare_exchange(FREE, CLAIMED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let row = table.bindings.iter().find(claim).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        // SYNC soft.multicast: whoever reads one of the words below also sees that the generation has changed since the
        // row was last valid.
        fence(Ordering::Release);
        for (word, value) in row.words.iter().zip(binding.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        row.state.store(VALID, Ordering::Release);
        table.generation.fetch_add(1, Ordering::AcqRel);
        // Only now, so that of two processes that bind the same place at once at least one sees the other.
        let mut others =
            table.bindings.iter().filter(|other| !std::ptr::eq(*other, row)).filter_map(Row::read);
        if others.any(|other| other.overlaps(&binding)) {
            self.withdraw(row);
            return Err(INVALID_VALUE);
        }
        seen.own.push(Arc::clone(memory));
        Ok(())
    }

    /// Ends the binding of `device` at `offset`.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if there is none of this size.
    pub(crate) fn unbind(&self, device: usize, offset: u64, size: u64) -> Result {
        let same = |b: Binding| (b.device, b.offset, b.size) == (device as u64, offset, size);
        let row = self.table().bindings.iter().find(|row| row.read().is_some_and(same));
        self.withdraw(row.ok_or(INVALID_VALUE)?);
        // Lets go of the memory.
        self.bound();
        Ok(())
    }

    fn withdraw(&self, row: &Row) {
        self.table().generation.fetch_add(1, Ordering::AcqRel);
        row.state.store(FREE, Ordering::Release);
        self.table().generation.fetch_add(1, Ordering::AcqRel);
    }

    /// The bindings now. Memory that cannot be opened, because its process has ended, is left out.
    pub(crate) fn bound(&self) -> Arc<Bound> {
        let mut seen = self.seen.lock();
        let table = self.table();
        loop {
            let generation = table.generation.load(Ordering::Acquire);
            if seen.generation == Some(generation) {
                return Arc::clone(&seen.bound);
            }
            let bindings: Vec<Binding> = table.bindings.iter().filter_map(Row::read).collect();
            fence(Ordering::Acquire); // SYNC soft.multicast
            if table.generation.load(Ordering::Relaxed) != generation {
                continue;
            }
            let mut all: Vec<(Binding, Arc<Memory>)> =
                bindings.into_iter().filter_map(|b| Some((b, self.memory_of(&seen, &b)?))).collect();
            all.sort_by_key(|(binding, _)| binding.device);
            seen.own.retain(|own| all.iter().any(|(b, _)| b.place.identity == own.identity()));
            seen.bound = Arc::new(Bound { devices: self.devices as usize, all });
            seen.generation = Some(generation);
        }
    }

    /// Maps the memory of a binding, or finds it mapped.
    fn memory_of(&self, seen: &Seen, binding: &Binding) -> Option<Arc<Memory>> {
        let identity = binding.place.identity;
        let known = seen.bound.all.iter().find(|(other, _)| other.place.identity == identity);
        if let Some((_, memory)) = known {
            return fits(binding, &memory.object, self.size).then(|| Arc::clone(memory));
        }
        let own = seen.own.iter().find(|own| own.identity() == identity);
        let object = own.map_or_else(|| binding.place.open().ok(), |own| Some(Arc::clone(own)))?;
        if object.facts().kind != Kind::Physical || !fits(binding, &object, self.size) {
            return None;
        }
        let mapping = object.map(object.size(), None).ok()?;
        Some(Arc::new(Memory { mapping, object }))
    }
}

/// Whether a binding lies within its memory and the multicast object.
fn fits(binding: &Binding, memory: &Object, size: u64) -> bool {
    let within = |start: u64, limit: u64| start.checked_add(binding.size).is_some_and(|end| end <= limit);
    within(binding.memory_offset, memory.size() as u64) && within(binding.offset, size)
}

impl Row {
    fn read(&self) -> Option<Binding> {
        (self.state.load(Ordering::Acquire) == VALID)
            .then(|| Binding::from_words(std::array::from_fn(|i| self.words[i].load(Ordering::Relaxed))))
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        let own = std::mem::take(&mut self.seen.get_mut().own);
        let process = std::process::id();
        for row in &self.table().bindings {
            let mine = |b: Binding| {
                b.place.pid == process && own.iter().any(|own| own.identity() == b.place.identity)
            };
            if row.read().is_some_and(mine) {
                self.withdraw(row);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 4 << 20;

    fn memory(device: usize) -> Arc<Object> {
        let facts = Facts { kind: Kind::Physical, device, handle_types: 1 };
        Object::create(SIZE as usize, facts).expect("create")
    }

    /// A team of devices 0 and 1, and the same team as another process would open it.
    fn twice() -> [Arc<Team>; 2] {
        let team = Team::create(2, SIZE, 1).expect("create");
        let fd = team.object().fd().try_clone_to_owned().expect("dup");
        let other = Team::open(Object::open(fd).expect("open")).expect("open");
        assert_eq!((other.size(), other.devices), (SIZE, 2));
        [team, other]
    }

    fn addresses(team: &Team, offset: u64) -> Option<usize> {
        team.bound().at(offset, 16).map(|targets| targets.len())
    }

    #[test]
    fn each_device_is_added_once_and_no_more_than_the_team_has() {
        let [team, other] = twice();
        assert_eq!(team.add(5), Ok(()));
        assert_eq!(other.add(5), Err(INVALID_VALUE));
        std::thread::scope(|s| {
            // It sleeps until it is woken, by a process that has opened the team.
            let waiting = s.spawn(|| team.wait_with_naps(Duration::from_secs(3600)));
            while team.event_count().waiters.load(Ordering::SeqCst) == 0 {
                assert!(!waiting.is_finished(), "one of two devices is there");
                std::thread::yield_now();
            }
            assert_eq!(other.add(7), Ok(()));
            waiting.join().expect("waits for the second device only");
        });
        assert_eq!(team.add(9), Err(INVALID_VALUE));
        assert!(team.has(7) && !team.has(9));
    }

    #[test]
    fn what_one_binds_the_other_reaches() {
        let [team, other] = twice();
        let (first, second) = (memory(0), memory(1));
        team.bind(0, &first, [0, 0, SIZE]).expect("bind");
        assert_eq!(addresses(&other, 0), None, "one of two devices has bound");
        other.bind(1, &second, [2 << 20, 0, 2 << 20]).expect("bind");
        assert_eq!(addresses(&team, 0), None);
        assert_eq!(addresses(&team, 2 << 20), Some(2));
        assert_eq!(addresses(&team, SIZE - 16), Some(2));
        assert_eq!(addresses(&team, SIZE - 8), None, "beyond the end");
        let own = first.map(SIZE as usize, None).expect("map");
        let bound = other.bound();
        let through = bound.at((2 << 20) + 40, 4).expect("both")[0].address;
        // SAFETY: both addresses are in live mappings of the same memory.
        unsafe {
            std::ptr::with_exposed_provenance_mut::<u32>(through as usize).write_volatile(77);
            let own = own.address() + (2 << 20) + 40;
            assert_eq!(std::ptr::with_exposed_provenance::<u32>(own as usize).read_volatile(), 77);
        }
        drop(bound);
        for overlap in [[0, 0, 2 << 20], [2 << 20, 0, 2 << 20]] {
            assert_eq!(other.bind(0, &memory(0), overlap), Err(INVALID_VALUE));
        }
        assert_eq!(team.unbind(1, 0, 2 << 20), Err(INVALID_VALUE), "another place");
        assert_eq!(team.unbind(1, 2 << 20, 2 << 20), Ok(()));
        assert_eq!(addresses(&other, 2 << 20), None);
        assert_eq!(Arc::strong_count(&second), 1, "let go by the team that bound it");
    }

    #[test]
    fn bindings_end_with_the_team_of_their_process() {
        let [team, other] = twice();
        let memories = [memory(0), memory(1)];
        team.bind(0, &memories[0], [0, 0, SIZE]).expect("bind");
        other.bind(1, &memories[1], [0, 0, SIZE]).expect("bind");
        assert_eq!(addresses(&other, 0), Some(2));
        drop(team);
        assert_eq!(addresses(&other, 0), None);
        other.bind(0, &memories[0], [0, 0, SIZE]).expect("the place is free");
    }

    #[test]
    fn a_full_table_and_a_wild_row_are_harmless() {
        let [team, other] = twice();
        let half = memory(0);
        for row in 0..BINDINGS as u64 {
            team.bind(0, &half, [row << 21, 0, 1 << 21]).expect("a free row");
        }
        let full = team.bind(1, &half, [0, 0, 1 << 21]);
        assert_eq!(full, Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        // Only the first two are within the object, as a process that goes by the table must find out itself.
        assert_eq!(other.bound().all.len(), 2);
        for word in &other.table().bindings[0].words {
            word.store(u64::MAX, Ordering::Relaxed);
        }
        other.table().generation.fetch_add(1, Ordering::Relaxed);
        assert_eq!(other.bound().all.len(), 1);
    }
}
