//! What everything made by a communicator shares, and what lives until the last of it is dropped.

use std::sync::Arc;

use aqueduct_ptx::abi::{AbortHandle, AbortRecord, NO_PEER};

use super::abort_record::AbortRecordMemory;
use super::config::CommunicatorConfig;
use super::control::Control;
use super::endpoint::Transport;
use super::links::Links;
use super::memory::{Imports, Regions, RegisteredMemory};
use super::nics::{Nic, Nics};
use super::peer::PeerInfo;
use super::standing::Waiters;
use super::tokens::{Side, TokenPool};
use super::topology::Topology;
use crate::abort::{Abort, AbortWord};
use crate::deadline::Deadline;
use crate::env::Env;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{Context, KeepAlive, PinnedBuffer};
use crate::net::{Frame, Handler, Link, Reactor, ReactorConfig};
use crate::rdma::Access;
use crate::sync::{Mutex, lock};

/// The shared part of a communicator. Its service thread does not hold it.
#[derive(Debug)]
pub(super) struct Core {
    rank: u32,
    peers: Arc<[PeerInfo]>,
    topology: Topology,
    config: CommunicatorConfig,
    imports: Imports,
    regions: Arc<Regions>,
    tokens: Mutex<Tokens>,
    /// Serves the data of connections; started by the first that needs it.
    data: Mutex<Option<Arc<Reactor>>>,
    /// Found when the first is named.
    nics: Mutex<Option<Arc<Nics>>>,
    abort: Arc<AbortMemory>,
    links: Links,
    context: Context,
}

impl Core {
    pub(super) fn new(
        context: Context,
        config: CommunicatorConfig,
        peers: Arc<[PeerInfo]>,
        links: Links,
        abort: Arc<AbortMemory>,
    ) -> Self {
        let topology = Topology::discover(context.device(), &peers[abort.rank as usize], &peers);
        let rank = abort.rank;
        let (imports, regions) = (Imports::default(), Arc::default());
        let (tokens, data, nics) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { rank, peers, topology, config, imports, regions, tokens, data, nics, abort, links, context }
    }

    pub(super) fn rank(&self) -> u32 {
        self.rank
    }

    pub(super) fn peers(&self) -> &[PeerInfo] {
        &self.peers
    }

    pub(super) fn peer(&self, rank: u32) -> &PeerInfo {
        &self.peers[rank as usize]
    }

    pub(super) fn topology(&self) -> &Topology {
        &self.topology
    }

    pub(super) fn config(&self) -> &CommunicatorConfig {
        &self.config
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn control(&self) -> &Arc<Control> {
        self.links.control()
    }

    pub(super) fn links(&self) -> &Links {
        &self.links
    }

    pub(super) fn imports(&self) -> &Imports {
        &self.imports
    }

    pub(super) fn regions(&self) -> &Arc<Regions> {
        &self.regions
    }

    /// The thread that moves the data of connections. Not the one of the control links: it may wait for the driver.
    pub(super) fn data_reactor(&self) -> Result<Arc<Reactor>> {
        let mut data = lock(&self.data);
        if let Some(reactor) = &*data {
            return Ok(reactor.clone());
        }
        let reactor = Reactor::start("aqueduct-data", ReactorConfig::default(), Box::new(NoLinks))?;
        Ok(data.insert(Arc::new(reactor)).clone())
    }

    /// The NICs of this host.
    pub(super) fn nics(&self) -> Result<Arc<Nics>> {
        let mut nics = lock(&self.nics);
        if let Some(nics) = &*nics {
            return Ok(nics.clone());
        }
        Ok(nics.insert(Arc::new(Nics::discover(self.config.verbs.as_ref(), &Env::get()?.ib)?)).clone())
    }

    /// NIC `number` of this host.
    pub(super) fn nic(&self, number: u8) -> Result<Arc<Nic>> {
        self.nics()?.nic(number, &*self.data_reactor()?)
    }

    /// `memory`, registered with the NICs among its transports.
    pub(super) fn on_nics(&self, memory: RegisteredMemory) -> Result<RegisteredMemory> {
        let nics = memory.transports().iter().filter_map(|transport| match transport {
            Transport::Ib(number) => Some(self.nic(number)),
            _ => None,
        });
        match nics.collect::<Result<Vec<_>>>()? {
            nics if nics.is_empty() => Ok(memory),
            nics => memory.on_nics(&nics, Access::DATA),
        }
    }

    pub(super) fn abort_memory(&self) -> &AbortMemory {
        &self.abort
    }

    /// `Ok` while calls can be made: not in a forked child, not aborted.
    #[inline]
    pub(super) fn check(&self, op: &'static str) -> Result<()> {
        if self.context.driver().forked() {
            return Err(Error::usage(
                op,
                "a communicator does not survive fork; make a new one in the child, after exec",
            ));
        }
        self.control().check(op)
    }

    pub(super) fn open_link(&self, peer: u32, deadline: Deadline) -> Result<()> {
        self.links.ensure(peer, deadline)
    }

    /// The words of semaphores that are waited for on the device, or on the host; allocated at the first call.
    pub(super) fn tokens(&self, side: Side) -> Result<Arc<TokenPool>> {
        let mut tokens = lock(&self.tokens);
        let pool = match side {
            Side::Device => &mut tokens.device,
            Side::Host => &mut tokens.host,
        };
        if let Some(pool) = pool {
            return Ok(pool.clone());
        }
        Ok(pool.insert(TokenPool::new(&self.context, side, self.config.semaphores)?).clone())
    }
}

#[derive(Debug, Default)]
struct Tokens {
    device: Option<Arc<TokenPool>>,
    host: Option<Arc<TokenPool>>,
}

/// The thread for data serves no links.
struct NoLinks;

impl Handler for NoLinks {
    fn frame(&mut self, _: &Link, _: Frame) -> Result<()> {
        Err(Error::new(ErrorKind::Internal, "data", "a frame on the thread for data"))
    }

    fn closed(&mut self, _: &Link, _: &Error) {}
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.context.driver().forked() {
            return;
        }
        // Nobody is left to be told by; freeing what a peer has open by a legacy handle is undefined.
        let held = self.control().take_held_memory();
        if !held.is_empty() {
            log::warn!(
                "rank {}: {} buffers are still open at peers by legacy handles and stay allocated until this process \
                 ends; drop memory at its receivers first, then call Communicator::close()",
                self.rank,
                held.len()
            );
            std::mem::forget(held);
        }
    }
}

/// The words in pinned host memory that this communicator's kernels poll, and the record that the first to leave fills.
///
/// Kernels that wait for one rank poll that rank's word, all others the group's. An abort raises all of them; the
/// departure of a rank raises its own and the group's.
#[derive(Debug)]
pub(super) struct AbortMemory {
    rank: u32,
    pinned: Arc<PinnedBuffer>,
    /// The group's, then one per rank.
    words: Vec<AbortWord>,
    /// Its record lies behind the words, in another cache line.
    record: Arc<AbortRecordMemory>,
}

impl AbortMemory {
    /// Allocates them and has `abort` raise every word.
    pub(super) fn new(context: &Context, abort: &Abort, rank: u32, size: u32) -> Result<Arc<Self>> {
        const APART: usize = 256;
        let count = size as usize + 1;
        let record_at = (count * size_of::<u32>()).next_multiple_of(APART);
        let pinned = Arc::new(PinnedBuffer::new(context, record_at + AbortRecordMemory::BYTES)?);
        let record = AbortRecordMemory::new(context, &pinned, record_at)?;
        let host = pinned.host_ptr();
        let word = |index| {
            // SAFETY: the buffer begins with `count` words.
            let word = unsafe { host.cast::<u32>().add(index) };
            // SAFETY: aligned, in memory that the `Arc` keeps; the host accesses it through this word only.
            unsafe { AbortWord::from_ptr(word, pinned.clone()) }
        };
        let words: Vec<AbortWord> = (0..count).map(word).collect();
        words.iter().for_each(|word| abort.attach(word.clone()));
        Ok(Arc::new(Self { rank, pinned, words, record }))
    }

    /// For kernels that wait for any rank.
    pub(super) fn handle(&self) -> AbortHandle {
        self.handle_at(0)
    }

    /// For kernels that wait for `peer` only.
    pub(super) fn handle_for(&self, peer: u32) -> AbortHandle {
        self.handle_at(peer as usize + 1)
    }

    fn handle_at(&self, word: usize) -> AbortHandle {
        debug_assert!(word < self.words.len(), "a word of a rank that does not exist");
        AbortHandle {
            word: self.pinned.device_ptr() + (word * size_of::<u32>()) as u64,
            claim: self.record.claim_ptr(),
            rank: self.rank,
            reserved: 0,
        }
    }

    pub(super) fn keep_alive(&self) -> KeepAlive {
        // The record keeps the pinned buffer, and with it the words.
        self.record.clone()
    }

    pub(super) fn record(&self) -> Option<AbortRecord> {
        self.record.read()
    }
}

impl Waiters for AbortMemory {
    fn dismiss(&self, peer: u32) {
        [0, peer as usize + 1].iter().filter_map(|index| self.words.get(*index)).for_each(AbortWord::raise);
    }

    fn abandoned(&self) -> Option<Option<u32>> {
        self.record().map(|record| (record.peer != NO_PEER).then_some(record.peer))
    }
}
