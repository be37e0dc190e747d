//! The contract between reads and the devices that make them: one side reads the memory of the other, whose program and library
//! do nothing for it.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::lent::Lent;
use super::placing::Place;
use super::shared::SharedMemory;
use crate::error::Result;
use crate::rdma::{MemoryRegion, QpAddress, RemoteRange, RemoteRegion};

/// The longest piece that a device reads at a time, into memory of the link.
pub(super) const PIECE: usize = 64 << 10;
/// The longest part with a place in memory of the program, which is one piece.
#[cfg(all(test, not(loom)))]
pub(super) const PLACED: usize = super::device::STAGED;

/// So many bytes of memory are registered freely. Registering takes its time and locks all of it: of more memory, so large a part must be used.
const FREELY: u64 = 1 << 30;
const PART: u64 = 8;

/// Whether memory of `all` bytes is worth a registration for the `used` ones.
pub(super) fn is_worth_registering(all: u64, used: u64) -> bool {
    all <= FREELY || used >= all / PART
}

/// A piece to be read.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) from: RemoteRange,
    /// Its place in memory of the program; in that of the link if there is none.
    pub(super) place: Option<Place>,
}

/// A piece that has come.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) brought: Brought,
    /// The number of the pair that brought it.
    pub(super) pair: u64,
}

/// The bytes of a piece.
#[derive(Debug)]
pub(super) enum Brought {
    Bytes(Lent),
    /// So many are in their place.
    Placed(usize),
}

impl Brought {
    /// Those that are in memory of the link.
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes.stable().unwrap_or_default(),
            Self::Placed(_) => &[],
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Placed(length) => *length,
        }
    }
}

/// The number of an exposure: slot and age of its tokens.
pub(super) type Exposure = (u32, u32);

/// A registered region that has the bytes of an exposure.
#[derive(Clone)]
pub(super) struct Stock {
    region: MemoryRegion,
    /// How many they are, from its beginning on.
    length: u64,
    /// Keeps the region from being used for something else.
    _held: Option<Arc<dyn Any + Send + Sync>>,
}

impl Stock {
    /// The first `length` bytes of `region`, as long as `held` lives.
    pub(super) fn new(region: MemoryRegion, length: u64, held: Option<Arc<dyn Any + Send + Sync>>) -> Self {
        Self { region, length, _held: held }
    }

    pub(super) fn region(&self) -> &MemoryRegion {
        &self.region
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }
}

impl fmt::Debug for Stock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stock({} bytes of {:?})", self.length, self.region)
    }
}

/// The rights of one peer's device, which the owner takes away one by one.
pub(super) trait Rights: fmt::Debug + Send + Sync {
    /// Takes those of `exposure` away before it returns. May take its time: callers hold no lock.
    fn revoke(&self, exposure: Exposure);

    /// Whether the peer has no rights any more.
    fn is_closed(&self) -> bool;
}

/// The devices of one link. The reader has a pair of queues for reads, made when the first key is wanted; its owner's end of it can do
/// nothing but answer. What fails there ends the pair, and never the link.
///
/// The reader's calls come from one thread at a time, unless they say something else.
pub(super) trait OneSided: Send + Sync {
    /// Whether it is worth while to ask for keys.
    fn is_able(&self) -> bool;

    /// Makes the reader's end of a pair, if there is none. Returns its address as long as the owner's end is not known.
    ///
    /// # Errors
    /// `Exhausted` if too many links read so; those of the device. The owner sends the data then.
    fn prepare(&self) -> Result<Option<QpAddress>>;

    /// Connects the reader's end to the owner's.
    ///
    /// # Errors
    /// Those of the device: the pair is gone then. `Remote` if there is no end that waits for this; one that is connected stays
    /// as it is.
    fn connect(&self, theirs: &QpAddress) -> Result<()>;

    /// Whether the reader's end is connected.
    fn is_connected(&self) -> bool;

    /// Lets this side's own requests write to `memory`; the registration is kept for later ones. `None` if the device cannot, or could not a
    /// moment ago. May take its time: callers hold no lock. From any thread.
    fn target(&self, memory: &SharedMemory) -> Option<MemoryRegion>;

    /// Begins to read what `next` gives while there is room: each at most [`PIECE`] bytes long, or as long as it is if it has a place.
    ///
    /// # Errors
    /// Those of the device. The pair is gone then, with all that was begun.
    fn begin(&self, next: &mut dyn FnMut() -> Result<Option<Wanted>>) -> Result<()>;

    /// The oldest piece that was begun and not released, if it has come.
    ///
    /// # Errors
    /// If the owner's device has refused one, or did not answer. The pair is gone then, with all that was begun.
    fn take(&self) -> Result<Option<Piece>>;

    /// Makes room for another piece, in the pair that brought the one that the caller took and has dropped.
    fn release(&self, pair: u64);

    /// Gives the reader's end up if it is not connected: its owner does not want it.
    fn give_up(&self);

    /// Ends the reader's end, with all that was begun: nothing is written any more.
    fn abandon(&self);

    /// Makes the owner's end of a pair, in place of an earlier one, for the reader's end at `theirs`; returns its address.
    ///
    /// # Errors
    /// Those of the device.
    fn admit(&self, theirs: &QpAddress) -> Result<QpAddress>;

    /// Lets the readers that know its key read `bytes`, until the result is dropped.
    ///
    /// # Errors
    /// Those of the device, for instance if too little memory may be locked.
    fn register(&self, bytes: &Lent) -> Result<MemoryRegion>;

    /// Registered memory that has `bytes` without a registration for their own sake: that of all of `shared`, which is kept from one
    /// exposure to the next, or that of a copy. `None` if there is neither, or if the device cannot give rights to parts of it.
    ///
    /// # Errors
    /// Those of a registration.
    fn stock(&self, bytes: &Lent, shared: Option<&SharedMemory>) -> Result<Option<Stock>>;

    /// Lets the peer read `stock` as `exposure`, until the rights are revoked. `None` if the device has no room for that.
    ///
    /// # Errors
    /// Those of the device. The owner's end of the pair has ended then.
    fn show(&self, exposure: Exposure, stock: &Stock) -> Result<Option<(RemoteRegion, Arc<dyn Rights>)>>;

    /// The number of the reader's end, if it is connected.
    #[cfg(all(test, not(loom)))]
    fn number(&self) -> Option<u32>;
}
