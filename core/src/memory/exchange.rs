//! The memory that a communicator's ranks have named to each other.

use std::sync::Arc;

use super::imports::Imports;
use super::regions::Regions;
use super::registry::{self, Member};
use crate::gpu::Context;
use crate::group::Group;
use crate::ledger::receipt::Ledger;

/// Everything needed to export and import memory. Received memory keeps it alive, and the group with it.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) context: Context,
    pub(crate) group: Group,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) regions: Arc<Regions>,
    pub(crate) imports: Imports,
    _member: Member,
}

impl Exchange {
    pub(crate) fn new(context: Context, group: Group, ledger: Arc<Ledger>) -> Arc<Self> {
        let (regions, imports) = (Arc::default(), Imports::default());
        let member = registry::join(group.scope(), group.rank());
        Arc::new(Self { context, group, ledger, regions, imports, _member: member })
    }
}
