//! The communicator: a group of ranks with one device each.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_ptx::abi::{ABI_VERSION, AbortHandle};

use crate::abort::{Abort, AbortCause};
use crate::bootstrap::Bootstrap;
use crate::comm::abort_memory::{AbortMemory, StreamWaits};
use crate::comm::asked::Asked;
use crate::comm::config::CommunicatorConfig;
use crate::comm::kept::Kept;
use crate::comm::report::AbortReport;
use crate::comm::scratch::ScratchBudget;
use crate::comm::semaphore::Site;
use crate::comm::tokens::Tokens;
use crate::comm::topology::Topology;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::gpu::{Company, Context, Device, KeepAlive, Stream};
use crate::group::control::Member;
use crate::group::peer::{DeviceIdentity, DriverKind, PeerInfo};
use crate::group::subscriber::Subscribers;
use crate::group::wire_up::{self, Description, Introduction};
use crate::group::{Group, frames};
use crate::ledger::Ledger;
use crate::memory::Exchange;
use crate::memory::registry;
use crate::setup::mailbox::SetupMail;
use crate::transport::Resources;

/// How often `close` looks for what this rank gives back.
const REAPED: Duration = Duration::from_millis(20);

/// A group of ranks with one device each: their control links, and the objects that they set up together.
///
/// All ranks create it together. Then each rank asks for connections, memory and semaphores and calls
/// [`setup`](Self::setup). These objects keep the group alive: its links close, in good order, when the last of them is
/// dropped, or by [`close`](Self::close).
///
/// If a rank is lost or aborts, every call on every rank fails with the reason, and every waiting kernel is told to
/// leave. A rank that leaves in good order fails only the calls that need it, with `PeerLost`. Kernels that still
/// wait for it two seconds later leave, and the communicator aborts because their work is not done. Of more than 16 ranks not all
/// have a link to each other: one that first looks for another after that has dropped everything finds nobody, and counts it as lost.
///
/// Cheap to clone; clones share one communicator. Every method can be called from any thread. One `setup` runs at a
/// time, and so does one of the calls that all ranks make together (`split`, `duplicate`, the `prepare` and `buffers` of collectives
/// and executors); another one waits for it. So threads of different ranks must come to them in one order: a rank whose `setup` runs
/// for one thread does nothing for another one's items before it is over.
#[derive(Clone, Debug)]
pub struct Communicator {
    pub(super) asked: Arc<Asked>,
    pub(super) shared: Arc<Shared>,
}

/// State shared by the clones of a communicator. Objects that it creates hold parts of this, never the whole.
#[derive(Debug)]
pub(super) struct Shared {
    config: CommunicatorConfig,
    topology: Arc<Topology>,
    pub(super) mail: Arc<SetupMail>,
    pub(super) exchange: Arc<Exchange>,
    pub(super) resources: Arc<Resources>,
    pub(super) semaphores: Arc<Site>,
    abort: Arc<AbortMemory>,
    scratch: Arc<ScratchBudget>,
    links: Kept,
    turns: Kept,
    company: Company,
    context: Context,
}

impl Communicator {
    /// Creates the communicator of all ranks of `bootstrap`, a reference to any bootstrap, or to an `Arc` or `Box` of
    /// one. Collective: every rank calls it. `bootstrap` is not used afterwards.
    ///
    /// # Errors
    /// `InvalidUsage` if the ranks do not fit together: one rank given twice, different world sizes or versions, GPUs
    /// mixed with software devices. `Timeout` at `deadline`; other kinds with the failure of the step.
    pub fn new(
        bootstrap: &dyn Bootstrap,
        context: &Context,
        config: CommunicatorConfig,
        deadline: impl Into<Deadline>,
    ) -> Result<Self> {
        Self::make(bootstrap, context, config, false, deadline.into())
    }

    /// As [`new`](Self::new). With `succeeds`, this communicator is the next generation of another one, whose ranks it
    /// takes over.
    pub(super) fn make(
        bootstrap: &dyn Bootstrap,
        context: &Context,
        config: CommunicatorConfig,
        succeeds: bool,
        deadline: Deadline,
    ) -> Result<Self> {
        let (rank, size) = (bootstrap.rank(), bootstrap.size());
        wire_up::check(bootstrap, &config.of_group())?;
        // Before other ranks learn of this rank: from then on they allow its links only the peer timeout.
        let abort = Abort::new();
        let abort_memory = AbortMemory::new(context, &abort, rank, size)?;
        let device = Some(identify(context.device())?);
        let description = Description { device, process: registry::process_number()?, abi: ABI_VERSION };
        let (mail, ledger) = (Arc::new(SetupMail::new(rank, size)), Arc::new(Ledger::new(rank)));
        let subscribers =
            Subscribers::default().with(frames::SETUP, mail.clone()).with(frames::RELEASE, ledger.clone());
        let member = Member { abort, waiters: abort_memory.clone(), subscribers, succeeds };
        let met = Introduction::with(bootstrap, description, &config.of_group(), member, deadline)?;
        let group = Group::new(met.open(deadline)?);
        let control = Arc::downgrade(group.control());
        context.reap_also(move || control.upgrade().map(|control| control.drop_released()).is_some());
        let topology = Arc::new(Topology::discover(context.device(), group.me(), group.peers()));
        let exchange = Exchange::new(context.clone(), group.clone(), ledger);
        let regions = exchange.regions.clone();
        let resources = Resources::new(context.clone(), group.clone(), regions, config.of_transports());
        let semaphores = Arc::new(Site {
            exchange: exchange.clone(),
            resources: resources.clone(),
            tokens: Tokens::new(context.clone(), config.max_semaphores),
            abort: abort_memory.clone(),
            topology: topology.clone(),
        });
        log::debug!("rank {rank} of {size}: communicator ready on {}", group.me().device_label());
        let (abort, context) = (abort_memory, context.clone());
        let scratch = ScratchBudget::new(config.scratch_bytes as u64);
        let (links, turns) = (Kept::default(), Kept::default());
        let company = context.new_company();
        let shared = Shared {
            config,
            topology,
            mail,
            exchange,
            resources,
            semaphores,
            abort,
            scratch,
            links,
            turns,
            company,
            context,
        };
        Ok(Self { asked: Arc::default(), shared: Arc::new(shared) })
    }

    /// This rank, `0 .. size`.
    pub fn rank(&self) -> u32 {
        self.group().rank()
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.group().size()
    }

    /// The context of this rank's device.
    pub fn context(&self) -> &Context {
        &self.shared.context
    }

    /// The settings that it was created with.
    pub fn config(&self) -> &CommunicatorConfig {
        &self.shared.config
    }

    /// Host, process and device of every rank, in rank order.
    pub fn peers(&self) -> &[PeerInfo] {
        self.group().peers()
    }

    /// What all plans of the communicator may use as scratch.
    pub(crate) fn scratch(&self) -> &Arc<ScratchBudget> {
        &self.shared.scratch
    }

    /// The proxy and the connections that port channels of its plans share.
    pub(crate) fn links(&self) -> &Kept {
        &self.shared.links
    }

    /// The order of launches that its plans share.
    pub(crate) fn turns(&self) -> &Kept {
        &self.shared.turns
    }

    /// Which launches are its own, where not all kernels fit the device.
    pub(crate) fn company(&self) -> &Company {
        &self.shared.company
    }

    /// Ends `waits` when kernels that wait for any rank are told to leave.
    pub(crate) fn end_with_kernels(&self, waits: &Arc<dyn StreamWaits>) {
        self.shared.abort.end_with_kernels(waits);
    }

    /// Which ranks share this host or device, and how this rank's device reaches theirs.
    pub fn topology(&self) -> &Topology {
        &self.shared.topology
    }

    /// Aborts the communicator on all ranks: every call fails with `reason` from now on, and waiting kernels leave.
    /// Calls after the first cause have no effect. After [`close`](Self::close) it reaches this rank alone, and kernels that still wait
    /// leave at once.
    pub fn abort(&self, reason: impl Into<String>) {
        if !self.group().forked() {
            self.group().abort().abort(AbortCause::requested(self.rank(), reason));
        }
    }

    /// Returns `Ok` while nothing has failed, otherwise the reason of the abort. Frees what dropped connections kept until
    /// their operations were complete.
    ///
    /// # Errors
    /// `PeerLost` with the rank, `Aborted`, or the kind of another first cause.
    pub fn check(&self) -> Result<()> {
        self.shared.resources.outstanding.free_delivered();
        self.group().check("check")
    }

    /// As [`check`](Self::check), for `op`, which needs every rank: also an error if a rank has left in good order.
    pub(crate) fn check_all(&self, op: &'static str) -> Result<()> {
        self.group().check(op)?;
        self.group().control().check_all(op)
    }

    /// The ranks known to be lost, in rank order, without those that left in good order.
    pub fn lost(&self) -> Vec<u32> {
        self.group().control().lost()
    }

    pub(crate) fn group(&self) -> &Group {
        &self.shared.exchange.group
    }

    pub(crate) fn exchange(&self) -> &Arc<Exchange> {
        &self.shared.exchange
    }

    pub(crate) fn resources(&self) -> &Resources {
        &self.shared.resources
    }

    /// Has waits for `stream` return an error if kernels that wait for this group give up. Channels and collectives
    /// do this by themselves; call it after launching a kernel of your own that waits by
    /// [`abort_handle`](Self::abort_handle).
    pub fn report_to(&self, stream: &Stream) {
        stream.depend_on(&self.group().outcome());
    }

    /// The abort word and record for kernels that wait for any rank. Plain addresses: let the stream retain
    /// [`keep_alive`](Self::keep_alive) while a kernel uses them.
    pub fn abort_handle(&self) -> AbortHandle {
        self.shared.abort.handle()
    }

    /// Keeps the memory behind [`abort_handle`](Self::abort_handle) alive.
    pub fn keep_alive(&self) -> KeepAlive {
        self.shared.abort.keep_alive()
    }

    /// Names the operation and the peer that the first kernel of this rank to leave early was waiting for; `None` until
    /// one has left.
    pub fn abort_record(&self) -> Option<AbortReport> {
        self.shared.abort.record().map(AbortReport::from)
    }

    /// Leaves in good order: waits until peers have acknowledged every operation of its connections, dropped ones included, and
    /// have closed what they opened of this rank's memory by legacy handles; then says goodbye. Calls on this communicator and on
    /// connections made by it fail afterwards. Without it, dropping the last object does the same, except that nobody waits.
    ///
    /// Synchronize this rank's streams first: it does not wait for kernels. Those that still wait for peers two seconds later
    /// leave, and [`Stream::synchronize`](crate::gpu::Stream::synchronize) returns an error. That goes for graphs, too, whose
    /// launches are not refused.
    ///
    /// Drop what was made from peers' memory first, too (memories, channels, all-reduces): with legacy handles
    /// (`AQUEDUCT_HANDLE=ipc`) a peer's `close` waits until this rank has closed them.
    ///
    /// # Errors
    /// `Timeout`, naming a peer, if operations are not acknowledged or the peer still has memory of this rank open: nothing has
    /// changed then, and it can be called again. The failure by which accepted operations of a connection were lost, if no call
    /// has returned it before.
    pub fn close(&self, deadline: impl Into<Deadline>) -> Result<()> {
        let deadline = deadline.into();
        self.group().check("close")?;
        // A peer's `close` waits for what this rank has dropped, and no other call of this rank may follow.
        let check = || {
            self.context().reap();
            self.group().check("close")
        };
        self.shared.resources.outstanding.wait(check, deadline)?;
        let holder = loop {
            check()?;
            let slice = deadline.min(Deadline::after(REAPED));
            let holder = self.shared.exchange.ledger.wait_released(self.group().abort(), slice);
            if holder.is_none() || deadline.expired() || self.group().abort().is_aborted() {
                break holder;
            }
        };
        check()?;
        if let Some(peer) = holder {
            let message = format!(
                "rank {peer} still has memory of this rank open by a legacy handle; drop it there first"
            );
            return Err(Error::timeout("close", message).with_peer(peer));
        }
        self.group().leave(deadline)
    }

    /// How many things of this rank are kept because a peer uses them: memory, semaphore slots. For tests.
    #[doc(hidden)]
    pub fn held_by_peers(&self) -> usize {
        self.shared.exchange.ledger.len()
    }
}

fn identify(device: &Device) -> Result<DeviceIdentity> {
    let driver = device.driver();
    Ok(DeviceIdentity {
        // Drivers before CUDA 11.4 report none; then the PCI address identifies the device.
        uuid: device.uuid().unwrap_or_default(),
        pci_bus_id: device.pci_bus_id()?,
        name: device.name()?,
        kind: if driver.is_software() { DriverKind::Software } else { DriverKind::Hardware },
        driver_version: driver.version(),
        multiprocessors: device.sm_count()?,
    })
}
