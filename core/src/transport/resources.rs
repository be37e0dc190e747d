//! Objects that all connections of a communicator share: the data thread and the NICs, each made when the first
//! connection needs it.

use std::net::IpAddr;
use std::sync::Arc;

use super::service::{DataService, Outstanding};
use super::stock::Stock;
use super::verbs::nics::{Nic, Nics};
use super::waits::WaitStreams;
use super::words::Words;
use crate::env::Selection;
use crate::error::Result;
use crate::gpu::Context;
use crate::group::Group;
use crate::memory::Regions;
use crate::rdma::{self, Verbs};
use crate::sync::{Mutex, lock};

/// Settings of this host for all connections.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The address to listen at, unless an endpoint names one.
    pub(crate) local_address: Option<IpAddr>,
    /// Which interfaces to choose from otherwise.
    pub(crate) interfaces: Selection,
    /// Bytes of pinned memory that all Ethernet connections share.
    pub(crate) ethernet_staging: usize,
    /// The verbs to use; libibverbs of this host if `None`.
    pub(crate) verbs: Option<Verbs>,
    /// Names of the NICs to use, separated by commas; all if `None`.
    pub(crate) ib_devices: Option<String>,
    /// Settings of NICs, unless an endpoint has its own.
    pub(crate) ib: rdma::Settings,
}

#[derive(Debug)]
pub(crate) struct Resources {
    pub(crate) context: Context,
    pub(crate) group: Group,
    /// Memory that peers may write by message.
    pub(crate) regions: Arc<Regions>,
    pub(crate) settings: Settings,
    /// Connections that may have operations to deliver.
    pub(crate) outstanding: Arc<Outstanding>,
    /// Streams for connections that wait for events, or are waited for.
    pub(super) wait_streams: Arc<WaitStreams>,
    /// Words of connections that streams and kernels look at.
    pub(super) words: Arc<Words>,
    /// Pinned memory of Ethernet connections; made by the first one.
    stock: Mutex<Option<Arc<Stock>>>,
    /// The data thread; started by the first connection that needs it.
    data: Mutex<Option<Arc<DataService>>>,
    /// Found when the first is named.
    nics: Mutex<Option<Arc<Nics>>>,
}

impl Resources {
    pub(crate) fn new(
        context: Context,
        group: Group,
        regions: Arc<Regions>,
        settings: Settings,
    ) -> Arc<Self> {
        let (stock, data, nics) = (Mutex::default(), Mutex::default(), Mutex::default());
        let outstanding = Arc::default();
        let (wait_streams, words) = (WaitStreams::new(&context), Words::new(&context));
        Arc::new(Self {
            context,
            group,
            regions,
            settings,
            outstanding,
            wait_streams,
            words,
            stock,
            data,
            nics,
        })
    }

    /// The thread that moves the data of connections. Not the one of the control links: it calls the driver, which may block.
    pub(super) fn service(&self) -> Result<Arc<DataService>> {
        let mut data = lock(&self.data);
        if let Some(service) = &*data {
            return Ok(service.clone());
        }
        Ok(data.insert(DataService::start(self.outstanding.clone(), self.group.control().clone())?).clone())
    }

    /// The pinned memory that Ethernet connections share.
    pub(super) fn stock(&self) -> Result<Arc<Stock>> {
        let mut stock = lock(&self.stock);
        if let Some(stock) = &*stock {
            return Ok(stock.clone());
        }
        let made = Stock::new(&self.context, self.settings.ethernet_staging)?;
        Ok(stock.insert(Arc::new(made)).clone())
    }

    /// The NICs of this host.
    pub(crate) fn nics(&self) -> Result<Arc<Nics>> {
        let mut nics = lock(&self.nics);
        if let Some(nics) = &*nics {
            return Ok(nics.clone());
        }
        let found = Nics::discover(self.settings.verbs.as_ref(), self.settings.ib_devices.as_deref())?;
        Ok(nics.insert(Arc::new(found)).clone())
    }

    /// NIC `number` of this host.
    pub(crate) fn nic(&self, number: u8) -> Result<Arc<Nic>> {
        self.nics()?.nic(number, self.service()?.reactor())
    }
}
