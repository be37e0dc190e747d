//! What all connections of a communicator share: the data thread and the NICs, each made when the first connection needs it.

use std::net::IpAddr;
use std::sync::Arc;

use super::endpoint::Transport;
use super::verbs::nics::{Nic, Nics};
use crate::env::Env;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::Context;
use crate::group::Group;
use crate::memory::{Regions, RegisteredMemory};
use crate::net::{Frame, Handler, Link, Reactor, ReactorConfig};
use crate::rdma::{Access, Verbs};
use crate::sync::{Mutex, lock};

#[derive(Debug)]
pub(crate) struct Resources {
    pub(crate) context: Context,
    pub(crate) group: Group,
    /// What peers may write by message.
    pub(crate) regions: Arc<Regions>,
    /// The address to listen at, unless an endpoint names one.
    pub(crate) interface: Option<IpAddr>,
    verbs: Option<Verbs>,
    /// Serves the data of connections; started by the first that needs it.
    data: Mutex<Option<Arc<Reactor>>>,
    /// Found when the first is named.
    nics: Mutex<Option<Arc<Nics>>>,
}

impl Resources {
    pub(crate) fn new(
        context: Context,
        group: Group,
        regions: Arc<Regions>,
        interface: Option<IpAddr>,
        verbs: Option<Verbs>,
    ) -> Arc<Self> {
        let (data, nics) = (Mutex::default(), Mutex::default());
        Arc::new(Self { context, group, regions, interface, verbs, data, nics })
    }

    /// The thread that moves the data of connections. Not the one of the control links: it may wait for the driver.
    pub(crate) fn data_reactor(&self) -> Result<Arc<Reactor>> {
        let mut data = lock(&self.data);
        if let Some(reactor) = &*data {
            return Ok(reactor.clone());
        }
        let reactor = Reactor::start("aqueduct-data", ReactorConfig::default(), Box::new(NoLinks))?;
        Ok(data.insert(Arc::new(reactor)).clone())
    }

    /// The NICs of this host.
    pub(crate) fn nics(&self) -> Result<Arc<Nics>> {
        let mut nics = lock(&self.nics);
        if let Some(nics) = &*nics {
            return Ok(nics.clone());
        }
        Ok(nics.insert(Arc::new(Nics::discover(self.verbs.as_ref(), &Env::get()?.ib)?)).clone())
    }

    /// NIC `number` of this host.
    pub(crate) fn nic(&self, number: u8) -> Result<Arc<Nic>> {
        self.nics()?.nic(number, &*self.data_reactor()?)
    }

    /// Registers `memory` with the NICs among its transports.
    pub(crate) fn register(&self, memory: RegisteredMemory) -> Result<RegisteredMemory> {
        let nics = memory.transports().iter().filter_map(|transport| match transport {
            Transport::Ib(number) => Some(self.nic(number)),
            _ => None,
        });
        match nics.collect::<Result<Vec<_>>>()? {
            nics if nics.is_empty() => Ok(memory),
            nics => memory.on_nics(&nics, Access::DATA),
        }
    }
}

/// The thread for data serves no control links.
struct NoLinks;

impl Handler for NoLinks {
    fn frame(&mut self, _: &Link, _: Frame) -> Result<()> {
        Err(Error::new(ErrorKind::Internal, "data", "a frame on the thread for data"))
    }

    fn closed(&mut self, _: &Link, _: &Error) {}
}
