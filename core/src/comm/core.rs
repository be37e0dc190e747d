//! What everything made by a communicator shares, and what lives until the last of it is dropped.

use std::sync::Arc;

use aqueduct_ptx::abi::{ABORT_RECORD_COMPLETE, AbortHandle, AbortRecord};

use super::config::CommunicatorConfig;
use super::control::Control;
use super::links::Links;
use super::memory::Imports;
use super::peer::PeerInfo;
use super::tokens::TokenPool;
use super::topology::Topology;
use crate::abort::{Abort, AbortRecordCell, AbortWord};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::gpu::{Context, KeepAlive, PinnedBuffer};
use crate::sync::{Mutex, lock};

/// The shared part of a communicator. Its service thread does not hold it.
#[derive(Debug)]
pub(super) struct Core {
    rank: u32,
    peers: Arc<[PeerInfo]>,
    topology: Topology,
    config: CommunicatorConfig,
    imports: Imports,
    tokens: Mutex<Option<Arc<TokenPool>>>,
    abort: AbortMemory,
    links: Links,
    context: Context,
}

impl Core {
    pub(super) fn new(
        context: Context,
        config: CommunicatorConfig,
        peers: Arc<[PeerInfo]>,
        links: Links,
        abort: AbortMemory,
    ) -> Self {
        let topology = Topology::discover(context.device(), &peers[abort.rank as usize], &peers);
        let (imports, tokens) = (Imports::default(), Mutex::default());
        Self { rank: abort.rank, peers, topology, config, imports, tokens, abort, links, context }
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

    pub(super) fn abort_memory(&self) -> &AbortMemory {
        &self.abort
    }

    /// `Ok` while calls can be made: not in a forked child, not aborted.
    pub(super) fn check(&self, op: &'static str) -> Result<()> {
        if self.context.driver().forked() {
            return Err(Error::usage(
                op,
                "a communicator does not survive fork; make a new one in the child, after exec",
            ));
        }
        self.control().abort().check(op)
    }

    pub(super) fn open_link(&self, peer: u32, deadline: Deadline) -> Result<()> {
        self.links.ensure(peer, deadline)
    }

    /// The words of semaphores, allocated at the first call.
    pub(super) fn tokens(&self) -> Result<Arc<TokenPool>> {
        let mut tokens = lock(&self.tokens);
        if let Some(pool) = &*tokens {
            return Ok(pool.clone());
        }
        let pool = TokenPool::new(&self.context, self.config.semaphores)?;
        *tokens = Some(pool.clone());
        Ok(pool)
    }
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

/// The abort word and record that this communicator's kernels poll and fill, in pinned host memory.
#[derive(Debug)]
pub(super) struct AbortMemory {
    rank: u32,
    pinned: Arc<PinnedBuffer>,
    record: AbortRecordCell<AbortRecord>,
}

/// Where the record is; the word is at 0, in another cache line.
const RECORD: usize = 256;

impl AbortMemory {
    /// Allocates both and has `abort` raise the word.
    pub(super) fn new(context: &Context, abort: &Abort, rank: u32) -> Result<Self> {
        const { assert!(RECORD.is_multiple_of(align_of::<AbortRecord>())) };
        let pinned = Arc::new(PinnedBuffer::new(context, RECORD + size_of::<AbortRecord>())?);
        let host = pinned.host_ptr();
        let word = host.cast::<u32>();
        // SAFETY: inside the buffer, which is longer.
        let record = unsafe { host.add(RECORD) }.cast::<AbortRecord>();
        // SAFETY: page-aligned memory that the `Arc` keeps; the host accesses it through this word only.
        abort.attach(unsafe { AbortWord::from_ptr(word, pinned.clone()) });
        // SAFETY: aligned (asserted above), inside the buffer that the `Arc` keeps, beginning with the state word, all
        // integers; written by kernels only.
        let record = unsafe { AbortRecordCell::from_ptr(record, pinned.clone()) };
        Ok(Self { rank, pinned, record })
    }

    pub(super) fn handle(&self) -> AbortHandle {
        AbortHandle {
            word: self.pinned.device_ptr(),
            record: self.pinned.device_ptr() + RECORD as u64,
            rank: self.rank,
            reserved: 0,
        }
    }

    pub(super) fn keep_alive(&self) -> KeepAlive {
        self.pinned.clone()
    }

    pub(super) fn record(&self) -> Option<AbortRecord> {
        self.record.read(ABORT_RECORD_COMPLETE)
    }
}
