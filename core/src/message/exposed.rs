//! The table of the memory that peers may read.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use super::device::{DeviceMemory, Resource};
use super::lent::Lent;
use super::memory::Memory;
use super::one_sided::{Exposure, Rights, Stock};
use super::shared::{SharedMemory, Shown};
use super::tokens::Token;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::net::random_bytes;
use crate::rdma::{MemoryRegion, RemoteRegion};
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// The most pieces of memory that one messenger exposes at a time.
const MAX_SLOTS: usize = 1 << 20;

/// Memory of so many bytes is registered for whoever asks for its key. Registering takes its time, within progress, and locks all of it: for
/// more memory that is done when peers have read one [`PART`]th of it, or ask for that.
const FREELY: u64 = 1 << 30;
const PART: u64 = 8;
/// How long after a registration has failed the next one is tried.
const RETRY: Duration = Duration::from_secs(1);

/// All memory that a messenger exposes.
pub(super) struct Exposures {
    generation: u64,
    /// What memory of devices needs, kept for the next piece of it.
    resources: Mutex<Vec<Resource>>,
    /// Whether memory was retired, so that idle rounds take no lock. Written with the slots locked.
    has_retired: AtomicBool,
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    all: Vec<Slot>,
    free: Vec<u32>,
    /// Memory that is not exposed any more and of which pieces may be on their way, or whose end was found with locks held. It is
    /// freed in [`Exposures::reap`], so that the drop of its owner, which is the user's code, never runs within progress.
    retired: Vec<Entry>,
}

#[derive(Default)]
struct Slot {
    age: u32,
    exposed: Option<Entry>,
}

#[derive(Debug)]
struct Entry {
    /// The memory. Only this entry and pieces on their way have a share in it.
    memory: Lending,
    secret: [u8; 16],
    /// How those see it who map it. Its end revokes that.
    shown: Option<Arc<Shown>>,
    /// The allocation, if it is one of this library.
    allocation: Option<SharedMemory>,
    device: Registered,
    /// Registered memory with the same bytes, of which peers' devices see a window.
    stock: Option<Stock>,
    /// The peers that have one.
    rights: Vec<Arc<dyn Rights>>,
    /// Bytes that were sent to peers, counted if they decide on a key.
    sent: u64,
}

/// Memory, or a part of it, and a share in what keeps it.
#[derive(Clone, Debug)]
pub(super) enum Lending {
    /// Bytes that the processor can read.
    Bytes(Lent),
    /// All of the memory of a device, whatever the part. The outer share is the entry's own and of pieces on their way: the program
    /// may keep others of the inner one.
    Device(Arc<Arc<dyn DeviceMemory>>),
}

impl Lending {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Device(memory) => memory.len(),
        }
    }

    /// The part of `length` bytes at `offset`; `None` if it is not within.
    fn slice(&self, offset: usize, length: usize) -> Option<Self> {
        match self {
            Self::Bytes(bytes) => bytes.slice(offset, length).map(Self::Bytes),
            Self::Device(memory) => {
                offset.checked_add(length).filter(|end| *end <= memory.len()).map(|_| self.clone())
            }
        }
    }

    fn is_sole_share(&self) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.is_sole_share(),
            Self::Device(memory) => Arc::strong_count(memory) == 1,
        }
    }

    fn is_device(&self) -> bool {
        matches!(self, Self::Device(_))
    }
}

/// What lets peers' devices read memory that is not exposed any more. It has a share in the bytes, and so goes before them.
#[derive(Debug)]
pub(super) struct Registration {
    exposure: Exposure,
    rights: Vec<Arc<dyn Rights>>,
    /// Free for others once the rights are gone.
    _stock: Option<Stock>,
    _region: Option<MemoryRegion>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.rights.iter().for_each(|rights| rights.revoke(self.exposure));
    }
}

/// Whether peers' devices can read memory.
#[derive(Debug)]
enum Registered {
    /// Nobody has asked for that.
    Untried,
    /// As long as this lives. It has a share in the bytes.
    Yes(MemoryRegion),
    /// It was not possible, and is not tried before this.
    Failed(Deadline),
}

/// A right to map memory, which a peer has proved. The owner may revoke it at any time; a mapping made later is of no use then.
pub(super) type Mappable = Arc<Shown>;

/// Why a read is not served. The number crosses the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Refusal {
    /// The token was never given away.
    Forged = 1,
    /// The memory is not exposed any more.
    Revoked = 2,
    /// The range is not within the memory.
    Range = 3,
    /// The reader has cancelled it.
    Cancelled = 4,
    /// The owner's device has failed.
    Failed = 5,
}

impl Refusal {
    pub(super) fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Forged,
            2 => Self::Revoked,
            3 => Self::Range,
            4 => Self::Cancelled,
            5 => Self::Failed,
            _ => return None,
        })
    }
}

impl Exposures {
    pub(super) fn new(generation: u64) -> Self {
        let has_retired = AtomicBool::new(false);
        Self { generation, resources: Mutex::default(), has_retired, slots: Mutex::default() }
    }

    /// Exposes `memory` until the result is dropped.
    pub(super) fn expose(self: &Arc<Self>, memory: Memory) -> Result<Exposed> {
        self.reap();
        let secret: [u8; 16] = random_bytes()?;
        if let Some(device) = &memory.device {
            self.keep(device.prepare()?);
        }
        let shown = match &memory.device {
            // It has no data: only the word by which those who map the memory learn that it was revoked.
            Some(device) if device.is_mappable() => SharedMemory::allocate(0).ok(),
            _ => memory.shared.clone(),
        };
        let shown = shown.as_ref().and_then(SharedMemory::show).map(Arc::new);
        let (length, allocation) = (memory.len() as u64, memory.shared.clone());
        let memory = match memory.device {
            Some(device) => Lending::Device(Arc::new(device)),
            None => Lending::Bytes(memory.bytes.with_own_share()),
        };
        let mut slots = lock(&self.slots);
        let slot = match slots.free.pop() {
            Some(slot) => slot,
            None if slots.all.len() < MAX_SLOTS => {
                slots.all.push(Slot::default());
                slots.all.len() as u32 - 1
            }
            None => {
                let text =
                    format!("{MAX_SLOTS} pieces of memory are exposed already; drop those that nobody reads");
                return Err(Error::new(crate::ErrorKind::Exhausted, "expose", text));
            }
        };
        let place = &mut slots.all[slot as usize];
        let (shared, device) = (shown.is_some(), memory.is_device());
        place.exposed = Some(Entry {
            memory,
            secret,
            shown,
            allocation,
            device: Registered::Untried,
            stock: None,
            rights: Vec::new(),
            sent: 0,
        });
        let token =
            Token { generation: self.generation, slot, age: place.age, length, shared, device, secret };
        Ok(Exposed { token, table: self.clone() })
    }

    /// Keeps a resource for as long as the messenger lives.
    pub(super) fn keep(&self, resource: Resource) {
        let mut resources = lock(&self.resources);
        if !resources.iter().any(|known| Arc::ptr_eq(known, &resource)) {
            resources.push(resource);
        }
    }

    /// The memory that `token` gives the right to read, `length` bytes at `offset`.
    pub(super) fn lend(
        &self,
        token: &Token,
        offset: u64,
        length: u64,
    ) -> std::result::Result<Lending, Refusal> {
        self.check(&lock(&self.slots), token, offset, length).map(|(_, lending)| lending)
    }

    /// The right to map the memory of which `token` gives the right to read `length` bytes at `offset`; `None` if the memory cannot be
    /// mapped.
    pub(super) fn map(
        &self,
        token: &Token,
        offset: u64,
        length: u64,
    ) -> std::result::Result<Option<Mappable>, Refusal> {
        self.check(&lock(&self.slots), token, offset, length).map(|(entry, _)| entry.shown.clone())
    }

    /// Counts `length` bytes of the memory of `token` that were sent: so many may be worth a key.
    pub(super) fn sent(&self, token: &Token, length: u64) {
        if token.length <= FREELY {
            return;
        }
        let mut slots = lock(&self.slots);
        let slot = slots.all.get_mut(token.slot as usize).filter(|slot| slot.age == token.age);
        if let Some(entry) = slot.and_then(|slot| slot.exposed.as_mut()) {
            entry.sent = entry.sent.saturating_add(length);
        }
    }

    /// Registered memory with the bytes of `token`, which gives the right to read `length` bytes at `offset`; asks `make` for it if there
    /// is none. `None` if there can be none, or if it is not worth while yet.
    pub(super) fn stock(
        &self,
        token: &Token,
        offset: u64,
        length: u64,
        make: impl FnOnce(&Lent, Option<&SharedMemory>) -> Option<Stock>,
    ) -> std::result::Result<Option<Stock>, Refusal> {
        let slots = lock(&self.slots);
        let (entry, _) = self.check(&slots, token, offset, length)?;
        let Lending::Bytes(bytes) = &entry.memory else { return Ok(None) };
        if entry.stock.is_some()
            || matches!(entry.device, Registered::Yes(_))
            || !entry.is_worth_a_key(length)
        {
            return Ok(entry.stock.clone());
        }
        let (bytes, allocation) = (bytes.clone(), entry.allocation.clone());
        // Without the lock: memory is registered or copied.
        drop(slots);
        let made = make(&bytes, allocation.as_ref());
        drop(bytes);
        let mut slots = lock(&self.slots);
        self.check(&slots, token, offset, length)?;
        let entry = slots.all.get_mut(token.slot as usize).and_then(|slot| slot.exposed.as_mut());
        let Some(entry) = entry else { return Err(Refusal::Revoked) };
        // Another thread may have been quicker.
        let unused = if entry.stock.is_none() { std::mem::replace(&mut entry.stock, made) } else { made };
        let stock = entry.stock.clone();
        drop(slots);
        drop(unused);
        Ok(stock)
    }

    /// Notes that a peer has `rights` to the memory of `token`, which are revoked with it. If this fails, the caller revokes them.
    pub(super) fn add_rights(
        &self,
        token: &Token,
        rights: &Arc<dyn Rights>,
    ) -> std::result::Result<(), Refusal> {
        let mut slots = lock(&self.slots);
        self.check(&slots, token, 0, 0)?;
        let entry = slots.all.get_mut(token.slot as usize).and_then(|slot| slot.exposed.as_mut());
        let Some(entry) = entry else { return Err(Refusal::Revoked) };
        entry.rights.retain(|known| !Arc::ptr_eq(known, rights) && !known.is_closed());
        entry.rights.push(rights.clone());
        Ok(())
    }

    /// The key by which devices read the memory of which `token` gives the right to read `length` bytes at `offset`; registers it with
    /// `register` if it is not. `None` if that is not possible now, or not worth while yet.
    pub(super) fn key(
        &self,
        token: &Token,
        offset: u64,
        length: u64,
        register: impl FnOnce(&Lent) -> Result<MemoryRegion>,
    ) -> std::result::Result<Option<RemoteRegion>, Refusal> {
        let slots = lock(&self.slots);
        let (entry, _) = self.check(&slots, token, offset, length)?;
        let bytes = match &entry.device {
            Registered::Yes(region) => return Ok(Some(region.remote())),
            Registered::Failed(until) if !until.expired() => return Ok(None),
            _ if !entry.is_worth_a_key(length) => return Ok(None),
            _ => entry.memory.clone(),
        };
        // Memory of a device is not registered with a NIC: its owner stages it.
        let Lending::Bytes(bytes) = bytes else { return Ok(None) };
        // Without the lock: it takes its time with large memory.
        drop(slots);
        let made = match register(&bytes) {
            Ok(region) => Registered::Yes(region),
            Err(error) => {
                log::info!("peers' devices cannot read {} exposed bytes: {error}", bytes.len());
                Registered::Failed(Deadline::after(RETRY))
            }
        };
        drop(bytes);
        let mut slots = lock(&self.slots);
        // It may have been revoked meanwhile: the registration ends here then, and nobody has learned its key.
        self.check(&slots, token, offset, length)?;
        let entry = slots.all.get_mut(token.slot as usize).and_then(|slot| slot.exposed.as_mut());
        let Some(entry) = entry else { return Err(Refusal::Revoked) };
        // Another thread may have been quicker; what was made here goes with the end of this call then.
        let unused = match &entry.device {
            Registered::Yes(_) => made,
            _ => std::mem::replace(&mut entry.device, made),
        };
        let key = match &entry.device {
            Registered::Yes(region) => Some(region.remote()),
            _ => None,
        };
        drop(slots);
        drop(unused);
        Ok(key)
    }

    fn check<'a>(
        &self,
        slots: &'a Slots,
        token: &Token,
        offset: u64,
        length: u64,
    ) -> std::result::Result<(&'a Entry, Lending), Refusal> {
        let slot = slots.all.get(token.slot as usize).ok_or(Refusal::Forged)?;
        if token.generation != self.generation || token.age > slot.age {
            return Err(Refusal::Forged);
        }
        let entry = slot.exposed.as_ref().filter(|_| token.age == slot.age).ok_or(Refusal::Revoked)?;
        // The same time whatever differs: nobody may find a secret byte by byte.
        let difference = entry.secret.iter().zip(&token.secret).fold(0, |all, (a, b)| all | (a ^ b));
        let kind = (entry.shown.is_some(), entry.memory.is_device());
        if std::hint::black_box(difference) != 0 || (token.shared, token.device) != kind {
            return Err(Refusal::Forged);
        }
        let range = usize::try_from(offset).ok().zip(usize::try_from(length).ok());
        let lending = range.and_then(|(offset, length)| entry.memory.slice(offset, length));
        lending.map(|lending| (entry, lending)).ok_or(Refusal::Range)
    }

    /// Ends the exposure. The memory is freed in [`reap`](Self::reap). Devices read it until the result is dropped, which takes its
    /// time.
    fn retire(&self, token: &Token) -> Option<Registration> {
        let mut slots = lock(&self.slots);
        let slot = slots.all.get_mut(token.slot as usize).filter(|slot| slot.age == token.age)?;
        let mut entry = slot.exposed.take();
        // Here, because an answer that hands the memory over may hold a share for a while yet.
        entry.iter().filter_map(|entry| entry.shown.as_ref()).for_each(|shown| shown.revoke());
        // A slot whose age would wrap is not used again: its tokens stay refused for good.
        if let Some(age) = slot.age.checked_add(1) {
            slot.age = age;
            slots.free.push(token.slot);
        }
        let registration = entry.as_mut().map(|entry| Registration {
            exposure: (token.slot, token.age),
            rights: std::mem::take(&mut entry.rights),
            _stock: entry.stock.take(),
            _region: match std::mem::replace(&mut entry.device, Registered::Untried) {
                Registered::Yes(region) => Some(region),
                _ => None,
            },
        });
        slots.retired.extend(entry);
        self.has_retired.store(!slots.retired.is_empty(), Ordering::Relaxed);
        registration
    }

    /// Whether [`reap`](Self::reap) may have something to free.
    #[inline]
    pub(super) fn has_retired(&self) -> bool {
        self.has_retired.load(Ordering::Relaxed)
    }

    /// Frees memory that was retired and of which no piece is on its way. Runs code of the user's, so the caller holds no lock.
    pub(super) fn reap(&self) {
        if !self.has_retired() {
            return;
        }
        let mut slots = lock(&self.slots);
        // Nothing takes a new share of what is retired.
        let free: Vec<Entry> = slots.retired.extract_if(.., |entry| entry.memory.is_sole_share()).collect();
        self.has_retired.store(!slots.retired.is_empty(), Ordering::Relaxed);
        drop(slots);
        drop(free);
    }
}

impl Entry {
    /// Whether it is to be registered for who wants to read `length` bytes.
    fn is_worth_a_key(&self, length: u64) -> bool {
        let all = self.memory.len() as u64;
        all <= FREELY || self.sent.saturating_add(length) >= all / PART
    }
}

/// Does not show the secrets.
impl std::fmt::Debug for Exposures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exposures").field("generation", &self.generation).finish_non_exhaustive()
    }
}

/// Memory that peers may read as long as this value lives. Dropping it revokes the token: reads that come later are refused, those
/// under way as well from their next piece on, also those of peers that have mapped the memory, or whose devices read it. The memory itself lives until
/// the last piece has left and then something is dispatched, exposed or revoked, and until nobody maps it any more. Its owner is
/// never dropped within progress.
#[derive(Debug)]
pub struct Exposed {
    token: Token,
    table: Arc<Exposures>,
}

impl Exposed {
    /// The token to give to those who may read.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Ends it; the same as dropping it.
    pub fn revoke(self) {}

    /// Ends it now and leaves the memory to the drop: for callers that hold locks. They drop the result without, before this value.
    #[must_use]
    pub(super) fn retire(&self) -> Option<Registration> {
        self.table.retire(&self.token)
    }
}

impl Drop for Exposed {
    fn drop(&mut self) {
        // Before the caller goes on: from here on no device reads it.
        drop(self.table.retire(&self.token));
        self.table.reap();
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
