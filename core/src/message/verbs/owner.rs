//! The owner's end of a pair for reads, and the windows through which its peer reads.
//!
//! A window shows one exposure to the peer of this pair and to nobody else. It is bound when the peer has proved its token, and
//! invalidated when the token is revoked: both are requests of this queue pair, and neither registers memory. A window that was invalidated
//! shows the next exposure.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::time::Duration;

use super::nic::Nic;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::message::one_sided::{Exposure, Rights, Stock};
use crate::rdma::{
    Access, CompletionQueue, MemoryWindow, QpAddress, QpOptions, QueuePair, ReadyToReceive, ReadyToSend,
    RemoteRegion,
};
use crate::sync::{Mutex, lock};

/// Windows of one end that are bound at a time. Memory that is exposed beyond it is registered by itself.
const MAX_WINDOWS: usize = 1024;
/// How long a device may take for a request that needs no peer; longer, and the pair is ended.
const PATIENCE: Duration = Duration::from_secs(1);

/// An end until it is closed.
#[derive(Debug)]
pub(super) struct OwnerEnd {
    live: Mutex<Option<Live>>,
}

#[derive(Debug)]
struct Live {
    // Windows go before the queue pair that has bound them.
    bound: HashMap<Exposure, (MemoryWindow, RemoteRegion)>,
    free: Vec<MemoryWindow>,
    queue_pair: Side,
    completions: CompletionQueue,
    requests: u64,
}

/// A queue pair that binds windows must be ready to send; otherwise it only answers.
#[derive(Debug)]
enum Side {
    Answers(QueuePair<ReadyToReceive>),
    Binds(QueuePair<ReadyToSend>),
}

impl OwnerEnd {
    /// An end on `nic`, connected to the reader's at `theirs`, and its address. What can never complete has `completions`.
    pub(super) fn new(
        nic: &Nic,
        completions: &CompletionQueue,
        theirs: &QpAddress,
    ) -> Result<(Self, QpAddress)> {
        let completions =
            if nic.has_windows() { nic.context.completion_queue(2)? } else { completions.clone() };
        let options = QpOptions::default().with_max_send(2).with_max_inline(0);
        let new = nic.domain.queue_pair(&options, &completions, &completions)?;
        let end = new.init(&nic.port, &nic.settings, Access::REMOTE_READ)?;
        let address = end.address();
        let end = end.connect(theirs)?;
        let queue_pair =
            if nic.has_windows() { Side::Binds(end.ready_to_send()?) } else { Side::Answers(end) };
        let (bound, free) = (HashMap::new(), Vec::new());
        let live = Live { bound, free, queue_pair, completions, requests: 0 };
        Ok((Self { live: Mutex::new(Some(live)) }, address))
    }

    /// Lets the peer read `stock` as `exposure`, until that is revoked.
    pub(super) fn show(&self, exposure: Exposure, stock: &Stock) -> Result<RemoteRegion> {
        let mut live = lock(&self.live);
        let Some(end) = &mut *live else {
            return Err(Error::new(ErrorKind::PeerLost, "read", "the pair for reads was closed"));
        };
        let shown = end.show(exposure, stock);
        if end.is_broken(&shown) {
            end.break_off();
        }
        shown
    }

    /// Ends it. The peer reads nothing more, also if others still know of this end.
    pub(super) fn close(&self) {
        let mut live = lock(&self.live);
        if let Some(mut end) = live.take() {
            end.break_off();
            // With the lock: who revokes something meanwhile waits until the windows are gone.
            drop(end);
        }
    }
}

impl Live {
    fn show(&mut self, exposure: Exposure, stock: &Stock) -> Result<RemoteRegion> {
        if let Some((_, region)) = self.bound.get(&exposure) {
            return Ok(*region);
        }
        let Side::Binds(queue_pair) = &self.queue_pair else {
            return Err(Error::new(ErrorKind::Unsupported, "read", "the device has no memory windows"));
        };
        if self.bound.len() >= MAX_WINDOWS {
            let text = format!("{MAX_WINDOWS} pieces of memory are shown to one peer already");
            return Err(Error::new(ErrorKind::Exhausted, "read", text));
        }
        let mut window = match self.free.pop() {
            Some(window) => window,
            None => stock.region().domain().window()?,
        };
        let range = (0, stock.length());
        let id = self.requests;
        self.requests += 1;
        let region = queue_pair.bind(&mut window, stock.region(), range, Access::REMOTE_READ, id)?;
        // Of a request that has failed, or may still be under way, the window is of no use any more.
        self.wait(id)?;
        self.bound.insert(exposure, (window, region));
        Ok(region)
    }

    fn revoke(&mut self, exposure: Exposure) -> Result<()> {
        let Some((mut window, _)) = self.bound.remove(&exposure) else { return Ok(()) };
        if let Side::Binds(queue_pair) = &self.queue_pair {
            let id = self.requests;
            self.requests += 1;
            queue_pair.invalidate(&window, id)?;
            self.wait(id)?;
            window.invalidated();
            self.free.push(window);
        }
        Ok(())
    }

    /// Waits for the request `id`. No other one is outstanding.
    fn wait(&self, id: u64) -> Result<()> {
        let (deadline, mut end) = (Deadline::after(PATIENCE), None);
        loop {
            self.completions.poll(1, |completion| end = Some(completion))?;
            match end {
                Some(end) if end.id == id => {
                    return end.result.map(drop).map_err(|failure| failure.to_error("read"));
                }
                _ => deadline.check("read", "the device to change a window")?,
            }
            std::thread::yield_now();
        }
    }

    /// Whether no request is executed any more after `outcome`. Without a window, or with too many, nothing was requested.
    fn is_broken<T>(&self, outcome: &Result<T>) -> bool {
        let harmless = [ErrorKind::Exhausted, ErrorKind::Unsupported];
        outcome.as_ref().is_err_and(|error| !harmless.contains(&error.kind()))
    }

    /// Ends the queue pair, so that the peer reads nothing more, and gives the windows up.
    fn break_off(&mut self) {
        let ended = match &self.queue_pair {
            Side::Answers(queue_pair) => queue_pair.abort(),
            Side::Binds(queue_pair) => queue_pair.abort(),
        };
        if let Err(error) = ended {
            log::debug!("a queue pair for reads was left to end by itself: {error}");
        }
        self.bound.clear();
        self.free.clear();
    }
}

impl Rights for OwnerEnd {
    fn revoke(&self, exposure: Exposure) {
        if let Some(end) = &mut *lock(&self.live)
            && let Err(error) = end.revoke(exposure)
        {
            // Often the peer has ended the pair before. What it may read now is nothing at all.
            log::debug!("a peer's pair for reads has ended: {error}");
            end.break_off();
        }
    }

    fn is_closed(&self) -> bool {
        lock(&self.live).is_none()
    }
}
