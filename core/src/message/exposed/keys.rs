//! Keys by which peers' devices read exposed memory: when memory is worth one, and how it gets one.

use std::sync::Arc;

use super::pauses::{Refused, Whose};
use super::registered::Registered;
use super::{Entry, Exposures, Lending, Refusal};
use crate::error::Result;
use crate::message::lent::Lent;
use crate::message::one_sided::{Rights, Stock, is_worth_registering};
use crate::message::shared::SharedMemory;
use crate::message::tokens::Token;
use crate::rdma::{MemoryRegion, RemoteRegion};
use crate::sync::lock;

impl Exposures {
    /// Counts `length` bytes of the memory of `token` that were sent: so many may be worth a key, which is a registration within progress.
    pub(in crate::message) fn sent(&self, token: &Token, length: u64) {
        if is_worth_registering(token.length, 0) {
            return;
        }
        let mut slots = lock(&self.slots);
        let slot = slots.all.get_mut(token.slot as usize).filter(|slot| slot.age == token.age);
        if let Some(entry) = slot.and_then(|slot| slot.exposed.as_mut()) {
            entry.sent = entry.sent.saturating_add(length);
        }
    }

    /// Registered memory with the bytes of `token`, which gives the right to read `length` bytes at `offset`; asks `make` for it if there
    /// is none. `None` if there can be none, if a device has refused it a moment ago, or if it is not worth while yet.
    pub(in crate::message) fn stock(
        &self,
        token: &Token,
        offset: u64,
        length: u64,
        make: impl FnOnce(&Lent, Option<&SharedMemory>) -> Result<Option<Stock>>,
    ) -> std::result::Result<Option<Stock>, Refusal> {
        let slots = lock(&self.slots);
        let (entry, _) = self.check(&slots, token, offset, length)?;
        let Lending::Bytes(bytes) = &entry.memory else { return Ok(None) };
        let whose = entry.whose(token);
        if entry.stock.is_some()
            || matches!(entry.device, Registered::Yes(_))
            || !entry.is_worth_a_key(length)
            || slots.pauses.holds(whose, Refused::Stock)
        {
            return Ok(entry.stock.clone());
        }
        let (bytes, allocation) = (bytes.clone(), entry.allocation.clone());
        // Without the lock: memory is registered or copied.
        drop(slots);
        let made = make(&bytes, allocation.as_ref());
        let refused = made.as_ref().err();
        if let Some(error) = refused {
            log::info!("no window can show {} exposed bytes to peers' devices: {error}", bytes.len());
        }
        drop(bytes);
        let mut slots = lock(&self.slots);
        if refused.is_some() {
            slots.pauses.begin(whose, Refused::Stock);
        }
        let made = made.unwrap_or_default();
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
    pub(in crate::message) fn add_rights(
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
    /// `register` if it is not. `None` if that was refused now or a moment ago, or is not worth while yet.
    pub(in crate::message) fn key(
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
            Registered::No if !entry.is_worth_a_key(length) => return Ok(None),
            Registered::No => entry.memory.clone(),
        };
        // Memory of a device is not registered with a NIC: its owner stages it.
        let Lending::Bytes(bytes) = bytes else { return Ok(None) };
        let whose = entry.whose(token);
        if slots.pauses.holds(whose, Refused::Key) {
            return Ok(None);
        }
        // Without the lock: it takes its time with large memory.
        drop(slots);
        let made = match register(&bytes) {
            Ok(region) => Registered::Yes(region),
            Err(error) => {
                log::info!("peers' devices cannot read {} exposed bytes: {error}", bytes.len());
                Registered::No
            }
        };
        drop(bytes);
        let mut slots = lock(&self.slots);
        if let Registered::No = made {
            slots.pauses.begin(whose, Refused::Key);
        }
        // It may have been revoked meanwhile: the registration ends here then, and nobody has learned its key.
        self.check(&slots, token, offset, length)?;
        let entry = slots.all.get_mut(token.slot as usize).and_then(|slot| slot.exposed.as_mut());
        let Some(entry) = entry else { return Err(Refusal::Revoked) };
        // Another thread may have been quicker; what was made here goes with the end of this call then.
        let unused = match &entry.device {
            Registered::Yes(_) => made,
            Registered::No => std::mem::replace(&mut entry.device, made),
        };
        let key = match &entry.device {
            Registered::Yes(region) => Some(region.remote()),
            Registered::No => None,
        };
        drop(slots);
        drop(unused);
        Ok(key)
    }
}

impl Entry {
    /// Whose pauses count, of the memory that `token` gives the right to read.
    fn whose(&self, token: &Token) -> Whose {
        match &self.allocation {
            Some(allocation) => Whose::Allocation(allocation.allocation()),
            None => Whose::Exposure((token.slot, token.age)),
        }
    }

    /// Whether it is to be registered for who wants to read `length` bytes.
    fn is_worth_a_key(&self, length: u64) -> bool {
        is_worth_registering(self.memory.len() as u64, self.sent.saturating_add(length))
    }
}
