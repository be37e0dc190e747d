//! What lets peers' devices read exposed memory: a registration, copies in registered memory, and the rights of those who have a window.

use std::sync::Arc;

use crate::message::one_sided::{Exposure, Rights, Stock};
use crate::rdma::MemoryRegion;

/// What lets peers' devices read memory that is not exposed any more. It has a share in the bytes, and so goes before them.
#[derive(Debug)]
pub(in crate::message) struct Registration {
    exposure: Exposure,
    rights: Vec<Arc<dyn Rights>>,
    /// Free for others once the rights are gone.
    _stock: Option<Stock>,
    _region: Option<MemoryRegion>,
}

impl Registration {
    /// What peers have of the memory that `exposure` names.
    pub(super) fn of(
        exposure: Exposure,
        rights: Vec<Arc<dyn Rights>>,
        stock: Option<Stock>,
        registered: Registered,
    ) -> Self {
        let region = match registered {
            Registered::Yes(region) => Some(region),
            Registered::No => None,
        };
        Self { exposure, rights, _stock: stock, _region: region }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.rights.iter().for_each(|rights| rights.revoke(self.exposure));
    }
}

/// Whether peers' devices can read memory.
#[derive(Debug)]
pub(super) enum Registered {
    /// Nobody has asked for that, or it was refused.
    No,
    /// As long as this lives. It has a share in the bytes.
    Yes(MemoryRegion),
}
