//! The queue pairs of a link for reads: this side's end of the one by which it reads, and its end of the one by which its peer
//! does.
//!
//! Both are made when the first key is wanted. A read that the owner's device refuses, because the memory is not exposed any
//! more, moves both ends of its pair to the error state; that is why messages have another one. The reader then makes a new pair,
//! with a new key.
//!
//! The owner's end sends nothing but requests for windows ([`OwnerEnd`]), and gives the right to read, nothing else: of memory that is
//! registered for that or shown by a window, to those who name its address and key. Both come with the key. The address is made up, with 40 random bits, so that a peer that
//! guesses keys finds nothing, and loses its pair at each attempt.

use std::sync::Arc;
use std::time::Duration;

use super::naming::made_up;
use super::nic::Nic;
use super::owner::OwnerEnd;
use super::reader::{Reader, Unconnected};
use super::reports::Link;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::message::lent::Lent;
use crate::message::one_sided::{Exposure, OneSided, Piece, Rights, Stock, Wanted};
use crate::message::reading::broken;
use crate::message::shared::SharedMemory;
use crate::net::random_bytes;
use crate::rdma::{
    Access, CompletionChannel, CompletionQueue, KeepAlive, MemoryRegion, QpAddress, RemoteRegion,
};
use crate::sync::{Mutex, lock};

/// Pairs that fail one after the other before a piece has come on any, after which no more are made.
pub(super) const MAX_FAILURES: u32 = 3;
/// The pause after the second refusal of an end in a row. Each further one doubles it, up to the last.
const PAUSE: Duration = Duration::from_millis(50);
const MAX_DOUBLINGS: u32 = 10;

/// The pairs of one link.
#[derive(Debug)]
pub(super) struct Pairs {
    reader: Mutex<State>,
    owner: Mutex<Owned>,
    /// On which nothing of the owner's end ever completes.
    completions: CompletionQueue,
    channel: CompletionChannel,
    /// The link, for what the device reports of them.
    link: Link,
    /// Whether both sides' devices can do it.
    possible: bool,
    nic: Arc<Nic>,
}

/// The reader's end.
#[derive(Debug)]
struct State {
    end: End,
    /// How many pairs were connected; the number of the latest.
    made: u64,
    /// Pairs that have failed before a piece had come on them, since the last one on which one has.
    failures: u32,
    /// Ends that were refused since the last one that was connected.
    refusals: u32,
    /// No end is made before this.
    pause: Option<Deadline>,
    closed: bool,
}

/// The owner's end.
#[derive(Debug, Default)]
struct Owned {
    end: Option<Arc<OwnerEnd>>,
    closed: bool,
}

#[derive(Debug)]
enum End {
    None,
    Unconnected(Box<Unconnected>),
    Connected(Box<Reader>),
}

impl Pairs {
    /// None yet, on a link whose requests complete on `completions`, which wakes `channel`. The peer `gives_keys` or does not.
    pub(super) fn new(
        nic: Arc<Nic>,
        completions: &CompletionQueue,
        channel: &CompletionChannel,
        link: &Link,
        gives_keys: bool,
    ) -> Self {
        let most = nic.settings.max_read_atomic.min(nic.context.attributes().max_read_atomic_out);
        Self {
            reader: Mutex::new(State::new()),
            owner: Mutex::default(),
            completions: completions.clone(),
            channel: channel.clone(),
            link: link.clone(),
            possible: gives_keys && most > 0,
            nic,
        }
    }

    /// Has the next piece that comes wake the channel. True if one has come, or if the pair has failed.
    pub(super) fn arm(&self) -> bool {
        match &mut lock(&self.reader).end {
            End::Connected(reader) => reader.arm(),
            _ => false,
        }
    }

    /// Ends those that the device has reported to have failed: their requests may never complete.
    pub(super) fn check(&self) {
        if let End::Connected(reader) = &mut lock(&self.reader).end {
            reader.check();
        }
        let failed = |end: &mut Arc<OwnerEnd>| end.failure().is_some();
        let owned = lock(&self.owner).end.take_if(failed);
        if let Some(owned) = owned {
            owned.close();
        }
    }

    /// Ends both.
    pub(super) fn close(&self) {
        let mut reader = lock(&self.reader);
        reader.closed = true;
        let end = std::mem::replace(&mut reader.end, End::None);
        drop(reader);
        let mut owner = lock(&self.owner);
        owner.closed = true;
        let owned = owner.end.take();
        drop(owner);
        drop(end);
        if let Some(owned) = owned {
            owned.close();
        }
    }

    /// Registers `bytes` under a made-up address. Registrations that are kept for later make room.
    fn register_for(&self, bytes: &Lent, access: Access, keep: KeepAlive) -> Result<MemoryRegion> {
        self.nic.regions.making_room(|| self.register_once(bytes, access, keep.clone()))
    }

    fn register_once(&self, bytes: &Lent, access: Access, keep: KeepAlive) -> Result<MemoryRegion> {
        let address = bytes.address().cast_mut();
        let named = made_up(address.addr() as u64, u64::from_le_bytes(random_bytes()?));
        // SAFETY: `keep` keeps the bytes where they are (all callers), readable and, with the right to write, writable. For the peer the device
        // only reads them, which tolerates everything that `Lent` allows others to do. It writes what this side reads there, to
        // shared memory, of which nobody has references.
        unsafe { self.nic.domain.register_as(address, bytes.len(), named, access, keep) }
    }
}

/// Also for a link that was never closed: exposures know the owner's end.
impl Drop for Pairs {
    fn drop(&mut self) {
        self.close();
    }
}

impl State {
    fn new() -> Self {
        Self { end: End::None, made: 0, failures: 0, refusals: 0, pause: None, closed: false }
    }

    /// Notes that making or connecting an end has failed. A shortage may pass, so the next end is only put off, and the first time not
    /// even that.
    fn refused(&mut self, error: &Error) {
        // Places become free as other links end, and asking for one costs nothing.
        if error.kind() == ErrorKind::Exhausted {
            return;
        }
        if let Some(doublings) = self.refusals.checked_sub(1) {
            self.pause = Some(Deadline::after(PAUSE * 2_u32.pow(doublings.min(MAX_DOUBLINGS))));
        }
        self.refusals = self.refusals.saturating_add(1);
    }

    /// Ends the pair if `outcome` is an error.
    fn checked<T>(&mut self, outcome: Result<T>) -> Result<T> {
        let is_proven = matches!(&self.end, End::Connected(reader) if reader.is_proven());
        if is_proven {
            self.failures = 0;
        }
        if outcome.is_err() {
            self.failures += u32::from(!is_proven);
            self.end = End::None;
        }
        outcome
    }

    fn connected<T>(&mut self, act: impl FnOnce(&mut Reader) -> Result<T>) -> Result<T> {
        let End::Connected(reader) = &mut self.end else {
            return Err(Error::new(ErrorKind::PeerLost, "read", "the pair for reads was closed"));
        };
        let outcome = act(reader);
        self.checked(outcome)
    }
}

impl OneSided for Pairs {
    fn is_able(&self) -> bool {
        if !self.possible {
            return false;
        }
        let state = lock(&self.reader);
        state.failures < MAX_FAILURES && state.pause.is_none_or(|pause| pause.expired())
    }

    fn prepare(&self) -> Result<Option<QpAddress>> {
        let mut state = lock(&self.reader);
        if state.closed {
            return Err(link_ended());
        }
        if let End::None = state.end {
            let made = Unconnected::new(&self.nic, &self.channel, &self.link);
            let made = made.inspect_err(|error| state.refused(error))?;
            state.end = End::Unconnected(Box::new(made));
        }
        match &state.end {
            End::Unconnected(end) => Ok(Some(end.address())),
            _ => Ok(None),
        }
    }

    fn connect(&self, theirs: &QpAddress) -> Result<()> {
        let mut state = lock(&self.reader);
        if state.closed {
            return Err(link_ended());
        }
        let end = match std::mem::replace(&mut state.end, End::None) {
            End::Unconnected(end) => end,
            other => {
                // Reads may be on their way on it.
                state.end = other;
                return Err(broken("an end of a pair for reads that nobody asked for".into()));
            }
        };
        let connected = end.connect(theirs);
        let reader = connected.inspect_err(|error| state.refused(error))?;
        (state.refusals, state.pause) = (0, None);
        state.end = End::Connected(Box::new(reader));
        state.made += 1;
        Ok(())
    }

    fn is_connected(&self) -> bool {
        matches!(lock(&self.reader).end, End::Connected(_))
    }

    fn target(&self, memory: &SharedMemory) -> Option<MemoryRegion> {
        let (nic, access) = (&self.nic, self.nic.access());
        nic.regions.try_get(memory, || self.register_once(&memory.lent(), access, memory.mapping()))
    }

    fn begin(&self, next: &mut dyn FnMut() -> Result<Option<Wanted>>) -> Result<()> {
        lock(&self.reader).connected(|reader| reader.begin(next))
    }

    fn take(&self) -> Result<Option<Piece>> {
        let mut state = lock(&self.reader);
        let pair = state.made;
        Ok(state.connected(Reader::take)?.map(|brought| Piece { brought, pair }))
    }

    fn release(&self, pair: u64) {
        let mut state = lock(&self.reader);
        let made = state.made;
        if let End::Connected(reader) = &mut state.end
            && made == pair
        {
            reader.release();
        }
    }

    fn abandon(&self) {
        let end = std::mem::replace(&mut lock(&self.reader).end, End::None);
        drop(end);
    }

    fn give_up(&self) {
        let mut state = lock(&self.reader);
        if let End::Unconnected(_) = state.end {
            state.end = End::None;
        }
    }

    fn admit(&self, theirs: &QpAddress) -> Result<QpAddress> {
        let (end, address) = OwnerEnd::new(&self.nic, &self.completions, &self.link, theirs)?;
        let mut owner = lock(&self.owner);
        if owner.closed {
            return Err(link_ended());
        }
        let earlier = owner.end.replace(Arc::new(end));
        drop(owner);
        if let Some(earlier) = earlier {
            earlier.close();
        }
        Ok(address)
    }

    fn register(&self, bytes: &Lent) -> Result<MemoryRegion> {
        self.register_for(bytes, Access::REMOTE_READ, Arc::new(bytes.clone()))
    }

    fn stock(&self, bytes: &Lent, shared: Option<&SharedMemory>) -> Result<Option<Stock>> {
        let (nic, length, access) = (&self.nic, bytes.len() as u64, self.nic.access());
        if !access.contains(Access::BIND) || length == 0 {
            return Ok(None);
        }
        if let Some(shared) = shared {
            // One registration for all exposures: each is of all of it.
            debug_assert_eq!((bytes.address(), bytes.len()), (shared.as_ptr().cast_const(), shared.len()));
            let register = || self.register_for(bytes, access, shared.mapping());
            return Ok(Some(Stock::new(nic.regions.get(shared, register)?, length, None)));
        }
        let Some(bytes) = bytes.stable() else { return Ok(None) };
        let held = nic.copies.copy(&nic.domain, &nic.regions, bytes)?;
        Ok(held.map(|held| Stock::new(held.region().clone(), length, Some(Arc::new(held)))))
    }

    fn show(&self, exposure: Exposure, stock: &Stock) -> Result<Option<(RemoteRegion, Arc<dyn Rights>)>> {
        let end = lock(&self.owner).end.clone().ok_or_else(link_ended)?;
        Ok(end.show(exposure, stock)?.map(|region| (region, end as Arc<dyn Rights>)))
    }

    #[cfg(all(test, not(loom)))]
    fn number(&self) -> Option<u32> {
        match &lock(&self.reader).end {
            End::Connected(reader) => Some(reader.number()),
            _ => None,
        }
    }
}

fn link_ended() -> Error {
    Error::new(ErrorKind::PeerLost, "read", "the link has ended")
}
