//! The table of the memory that peers may read.
#![forbid(unsafe_code)]

mod keys;
mod lending;
mod pauses;
mod registered;

use std::sync::Arc;

pub(super) use self::lending::Lending;
use self::pauses::Pauses;
use self::registered::Registered;
pub(super) use self::registered::Registration;
use super::guarding::drop_guarded;
use super::memory::Memory;
use super::one_sided::{Rights, Stock};
use super::resources::Resources;
use super::shared::{SharedMemory, Shown};
use super::tokens::Token;
use crate::error::{Error, Result};
use crate::net::random_bytes;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// The most pieces of memory that one messenger exposes at a time.
const MAX_SLOTS: usize = 1 << 20;

/// All memory that a messenger exposes.
pub(super) struct Exposures {
    generation: u64,
    /// What memory of devices needs, kept for the next piece of it.
    pub(super) resources: Resources,
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
    /// Memory with which a device has refused to do something.
    pauses: Pauses,
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
        Self { generation, resources: Resources::default(), has_retired, slots: Mutex::default() }
    }

    /// Exposes `memory` until the result is dropped.
    pub(super) fn expose(self: &Arc<Self>, memory: Memory) -> Result<Exposed> {
        self.reap();
        let secret: [u8; 16] = random_bytes()?;
        if let Some(device) = &memory.device {
            self.resources.keep(device.prepare()?);
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
            device: Registered::No,
            stock: None,
            rights: Vec::new(),
            sent: 0,
        });
        let token =
            Token { generation: self.generation, slot, age: place.age, length, shared, device, secret };
        Ok(Exposed { token, table: self.clone() })
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
        let registration = entry.as_mut().map(|entry| entry.end_registration(token));
        slots.retired.extend(entry);
        self.has_retired.store(!slots.retired.is_empty(), Ordering::Relaxed);
        registration
    }

    /// Whether memory was retired.
    #[inline]
    pub(super) fn has_retired(&self) -> bool {
        self.has_retired.load(Ordering::Relaxed)
    }

    /// Whether [`reap`](Self::reap) may have something to free.
    #[inline]
    pub(super) fn may_reap(&self) -> bool {
        self.has_retired() || self.resources.are_due()
    }

    /// Frees memory that was retired and of which no piece is on its way, and what devices have used. Runs code of the user's, so the
    /// caller holds no lock.
    pub(super) fn reap(&self) {
        self.resources.reap();
        if !self.has_retired() {
            return;
        }
        let mut slots = lock(&self.slots);
        // Nothing takes a new share of what is retired.
        let free: Vec<Entry> = slots.retired.extract_if(.., |entry| entry.memory.is_sole_share()).collect();
        self.has_retired.store(!slots.retired.is_empty(), Ordering::Relaxed);
        drop(slots);
        free.into_iter().for_each(drop_guarded);
    }
}

impl Entry {
    /// Takes what lets peers' devices read the memory of `token`.
    fn end_registration(&mut self, token: &Token) -> Registration {
        let registered = std::mem::replace(&mut self.device, Registered::No);
        let rights = std::mem::take(&mut self.rights);
        Registration::of((token.slot, token.age), rights, self.stock.take(), registered)
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
