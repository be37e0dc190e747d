//! The owner's end of a pair for reads, and the windows through which its peer reads.
//!
//! A window shows one exposure to the peer of this pair and to nobody else. It is bound when the peer has proved its token, and
//! invalidated when the token is revoked: both are requests of this queue pair, and neither registers memory. A window that was invalidated
//! shows another exposure later.
//!
//! Callers are progress and dispatch, so nobody waits long: a device that does not carry a request out in [`PATIENCE`] loses the pair, and
//! after some of those no more windows are used with it ([`Nic::has_windows`]).
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::nic::Nic;
use super::reports::{Link, Watch};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::message::one_sided::{Exposure, Rights, Stock};
use crate::rdma::{
    Access, CompletionQueue, MemoryWindow, QpAddress, QpOptions, QueuePair, ReadyToReceive, ReadyToSend,
    RemoteRegion,
};
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// Windows of one end that are bound at a time. Memory that is exposed beyond it is registered by itself.
const MAX_WINDOWS: usize = 1024;
/// Windows that take turns. A key has 8 bits that change with each binding, so that of one window comes again after 256: by then, no read with the
/// earlier one may be left in the reader's queue, nor the key among those that it keeps (64).
const TURNS: usize = 32;
/// How long a device may take for a request that needs no peer; longer, and the pair is ended.
const PATIENCE: Duration = Duration::from_millis(100);
/// It is asked so many times at least, within [`OVERLOADED`]: on a machine with too much to do, time passes while neither it nor this
/// thread runs.
const ASKED: u32 = 1000;
/// How long it may take if it was asked fewer times: progress and whoever revokes wait no longer than this.
const OVERLOADED: Duration = Duration::from_millis(500);

/// An end until it is closed.
#[derive(Debug)]
pub(super) struct OwnerEnd {
    live: Mutex<Option<Live>>,
    /// Set once the peer reads nothing more, so that nobody waits for the lock to learn it.
    closed: AtomicBool,
    watch: Watch,
    nic: Arc<Nic>,
}

#[derive(Debug)]
struct Live {
    // Windows go before the queue pair that has bound them.
    bound: HashMap<Exposure, (MemoryWindow, RemoteRegion)>,
    /// Those that were used last at the back.
    free: VecDeque<MemoryWindow>,
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
    /// An end of `link` on `nic`, connected to the reader's at `theirs`, and its address. What can never complete has `completions`.
    pub(super) fn new(
        nic: &Arc<Nic>,
        completions: &CompletionQueue,
        link: &Link,
        theirs: &QpAddress,
    ) -> Result<(Self, QpAddress)> {
        let has_windows = nic.has_windows();
        let completions = if has_windows { nic.context.completion_queue(2)? } else { completions.clone() };
        let options = QpOptions::default().with_max_send(2).with_max_inline(0);
        let new = nic.domain.queue_pair(&options, &completions, &completions)?;
        let watch = link.watch(new.number(), has_windows.then_some(&completions));
        let end = new.init(&nic.port, &nic.settings, Access::REMOTE_READ)?;
        let address = end.address();
        let end = end.connect(theirs)?;
        let queue_pair = if has_windows { Side::Binds(end.ready_to_send()?) } else { Side::Answers(end) };
        let (bound, free) = (HashMap::new(), VecDeque::new());
        let live = Mutex::new(Some(Live { bound, free, queue_pair, completions, requests: 0 }));
        Ok((Self { live, closed: AtomicBool::new(false), watch, nic: nic.clone() }, address))
    }

    /// Lets the peer read `stock` as `exposure`, until that is revoked. `None` if there is no window for it.
    ///
    /// # Errors
    /// Those of the device. The pair has ended then.
    pub(super) fn show(&self, exposure: Exposure, stock: &Stock) -> Result<Option<RemoteRegion>> {
        let mut live = lock(&self.live);
        let Some(end) = &mut *live else {
            return Err(Error::new(ErrorKind::PeerLost, "read", "the pair for reads was closed"));
        };
        let shown = end.show(exposure, stock);
        if let Err(error) = &shown {
            self.fail(&mut live, error);
        }
        shown
    }

    /// The error of its queue pair that the device has reported.
    pub(super) fn failure(&self) -> Option<Error> {
        self.watch.failure()
    }

    /// Ends it. The peer reads nothing more, also if others still know of this end.
    pub(super) fn close(&self) {
        self.end(&mut lock(&self.live));
    }

    /// Ends it because a request has failed: it may still be carried out, so nothing is certain of its window.
    fn fail(&self, live: &mut Option<Live>, error: &Error) {
        if error.kind() == ErrorKind::Timeout {
            self.nic.window_was_late();
        }
        self.end(live);
    }

    /// With the lock, until all is gone: who revokes something meanwhile waits for that.
    fn end(&self, live: &mut Option<Live>) {
        if let Some(end) = live.take() {
            end.abort();
        }
        self.closed.store(true, Ordering::Release);
    }
}

impl Live {
    fn show(&mut self, exposure: Exposure, stock: &Stock) -> Result<Option<RemoteRegion>> {
        if let Some((_, region)) = self.bound.get(&exposure) {
            return Ok(Some(*region));
        }
        if matches!(self.queue_pair, Side::Answers(_)) || self.bound.len() >= MAX_WINDOWS {
            return Ok(None);
        }
        let Some(mut window) = self.window(stock) else { return Ok(None) };
        let Side::Binds(queue_pair) = &self.queue_pair else { return Ok(None) };
        let range = (0, stock.length());
        let id = self.requests;
        self.requests += 1;
        let region = queue_pair.bind(&mut window, stock.region(), range, Access::REMOTE_READ, id)?;
        self.wait(id)?;
        self.bound.insert(exposure, (window, region));
        Ok(Some(region))
    }

    /// The free window that was not used for longest; another one if too few take turns.
    fn window(&mut self, stock: &Stock) -> Option<MemoryWindow> {
        if self.free.len() < TURNS {
            match stock.region().domain().window() {
                Ok(window) => return Some(window),
                Err(error) => log::debug!("no further window for memory that a peer reads: {error}"),
            }
        }
        self.free.pop_front()
    }

    fn revoke(&mut self, exposure: Exposure) -> Result<()> {
        let Some((mut window, _)) = self.bound.remove(&exposure) else { return Ok(()) };
        if let Side::Binds(queue_pair) = &self.queue_pair {
            let id = self.requests;
            self.requests += 1;
            queue_pair.invalidate(&window, id)?;
            self.wait(id)?;
            window.invalidated();
            self.free.push_back(window);
        }
        Ok(())
    }

    /// Waits for the request `id`. No other one is outstanding.
    ///
    /// # Errors
    /// `Timeout` if the device takes too long; what the request ended with.
    fn wait(&self, id: u64) -> Result<()> {
        let (deadline, last) = (Deadline::after(PATIENCE), Deadline::after(OVERLOADED));
        let (mut end, mut asked) = (None, 0);
        loop {
            self.completions.poll(1, |completion| end = Some(completion))?;
            asked += 1;
            match end {
                Some(end) if end.id == id => {
                    return end.result.map(drop).map_err(|failure| failure.to_error("read"));
                }
                _ if asked < ASKED && !last.expired() => {}
                _ => deadline.check("read", "the device to change a window")?,
            }
            std::thread::yield_now();
        }
    }

    /// Ends the queue pair, so that the peer reads nothing more whatever becomes of the windows.
    fn abort(&self) {
        let ended = match &self.queue_pair {
            Side::Answers(queue_pair) => queue_pair.abort(),
            Side::Binds(queue_pair) => queue_pair.abort(),
        };
        if let Err(error) = ended {
            log::debug!("a queue pair for reads was left to end by itself: {error}");
        }
    }
}

impl Rights for OwnerEnd {
    fn revoke(&self, exposure: Exposure) {
        let mut live = lock(&self.live);
        if let Some(end) = &mut *live
            && let Err(error) = end.revoke(exposure)
        {
            // Often the peer has ended the pair before. What it may read now is nothing at all.
            log::debug!("a peer's pair for reads has ended: {error}");
            self.fail(&mut live, &error);
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;

    use super::super::tests::nic;
    use super::*;

    /// A reader may have a key of memory that is not exposed any more, and the next memory is at the same address.
    #[test]
    fn no_key_comes_again_soon() {
        let nic = nic("null0");
        let channel = nic.context.completion_channel().unwrap();
        let completions = nic.context.completion_queue(1).unwrap();
        let theirs = super::super::reader::Unconnected::new(&nic, &channel, &nic.reports.link()).unwrap();
        let (end, _) = OwnerEnd::new(&nic, &completions, &nic.reports.link(), &theirs.address()).unwrap();
        let held = Arc::new(nic.copies.copy(&nic.domain, &nic.regions, &[7; 1000]).unwrap().unwrap());
        let stock = Stock::new(held.region().clone(), 1000, Some(held));
        let mut keys = HashSet::new();
        for age in 0..TURNS as u32 * 255 {
            let shown = end.show((0, age), &stock).unwrap().expect("there are windows");
            assert!(keys.insert(shown.key()), "exposure {age}");
            end.revoke((0, age));
        }
    }

    /// Peers end pairs as often as they like, and the device has done nothing wrong.
    #[test]
    fn a_pair_that_has_ended_is_no_late_window() {
        let nic = nic("null0");
        let channel = nic.context.completion_channel().unwrap();
        let completions = nic.context.completion_queue(1).unwrap();
        let held = Arc::new(nic.copies.copy(&nic.domain, &nic.regions, &[7; 1000]).unwrap().unwrap());
        let stock = Stock::new(held.region().clone(), 1000, Some(held));
        for _ in 0..10 {
            let theirs = super::super::reader::Unconnected::new(&nic, &channel, &nic.reports.link()).unwrap();
            let (end, _) = OwnerEnd::new(&nic, &completions, &nic.reports.link(), &theirs.address()).unwrap();
            lock(&end.live).as_ref().unwrap().abort();
            let error = end.show((0, 0), &stock).unwrap_err();
            assert!(error.kind() != ErrorKind::Timeout && end.is_closed(), "{error}");
        }
        assert!(nic.has_windows());
    }
}
