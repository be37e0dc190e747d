//! Semaphores that the host signals, through a connection.

use std::fmt;
use std::sync::Arc;

use aqueduct_ptx::abi::{AbortHandle, SemaphoreHandle};

use super::ends::{Ends, SemaphoreCounters};
use super::item::Flavour;
use crate::comm::connection::Connection;
use crate::comm::tokens::{INBOUND, Side};
use crate::deadline::{Backoff, Deadline};
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{Context, KeepAlive, Stream};
use crate::outcome::Outcome;
use crate::sync::{Mutex, Ordering, lock};

/// A semaphore that the host of one rank signals and the device of the other waits for, both ways.
///
/// A signal follows the writes of its connection: a kernel that has waited for it sees their data. Cheap to clone.
#[derive(Clone)]
pub struct Host2DeviceSemaphore {
    ends: Arc<Counted>,
}

/// A semaphore that the hosts of two ranks signal and wait for. A signal follows the writes of its connection. Cheap to
/// clone.
#[derive(Clone)]
pub struct Host2HostSemaphore {
    ends: Arc<Counted>,
    expected: Arc<Mutex<u64>>,
}

/// One end whose outgoing signals the host counts.
struct Counted {
    ends: Ends,
    outbound: Mutex<u64>,
    /// Kept, because streams forget an outcome whose owner is gone.
    outcome: Arc<dyn Outcome>,
}

impl Counted {
    fn new(ends: Ends) -> Arc<Self> {
        let outcome = ends.outcome();
        Arc::new(Self { ends, outbound: Mutex::new(0), outcome })
    }

    /// The lock makes the signals leave in the order of their values. Nobody holds it while waiting for room.
    fn signal(&self) -> Result<()> {
        let Ends { connection, theirs, .. } = &self.ends;
        let mut wait = None;
        loop {
            {
                let mut outbound = lock(&self.outbound);
                let next = *outbound + 1;
                if connection.try_update_and_sync(theirs, INBOUND, &mut outbound, next)? {
                    return Ok(());
                }
            }
            wait.get_or_insert_with(|| connection.backpressure("update_and_sync")).pause()?;
        }
    }
}

impl Host2DeviceSemaphore {
    /// The rank at the other end.
    pub fn peer(&self) -> u32 {
        self.connection().peer()
    }

    /// The connection that it signals through.
    pub fn connection(&self) -> &Connection {
        &self.ends.ends.connection
    }

    /// The context of this rank's device.
    pub fn context(&self) -> &Context {
        &self.ends.ends.site.exchange.context
    }

    /// Tells waits for streams whether kernels gave up waiting for this semaphore.
    pub(crate) fn outcome(&self) -> Arc<dyn Outcome> {
        self.ends.outcome.clone()
    }

    /// Has waits for `stream` return an error if kernels that wait for this semaphore give up: its connection has
    /// failed, or the communicator. Call it after launching a kernel of your own that waits by
    /// [`device_handle`](Self::device_handle); [`InboundSignals`](crate::channel::InboundSignals) does this by
    /// itself.
    pub fn report_to(&self, stream: &Stream) {
        stream.depend_on(&self.ends.outcome);
    }

    /// Signals the peer's device, after the data of all earlier writes of the connection.
    ///
    /// # Errors
    /// As for [`Connection::update_and_sync`].
    pub fn signal(&self) -> Result<()> {
        self.ends.signal()
    }

    /// The handle for kernels that wait; `remote_inbound` is 0, because devices do not signal it. Plain addresses:
    /// keep the semaphore, or its [`keep_alive`](Self::keep_alive), until no kernel uses them.
    pub fn device_handle(&self) -> SemaphoreHandle {
        self.ends.ends.waiting_handle()
    }

    /// The abort word and record for kernels that wait for the peer, as [`device_handle`](Self::device_handle) has it.
    /// [`keep_alive`](Self::keep_alive) keeps them.
    pub fn abort_handle(&self) -> AbortHandle {
        self.ends.ends.abort_handle()
    }

    /// The owner that a stream must retain while a kernel uses the handle.
    pub fn keep_alive(&self) -> KeepAlive {
        self.ends.clone()
    }

    /// Reads the counters of this end: for diagnosis, not for synchronisation.
    ///
    /// # Errors
    /// `Timeout`, or a driver error.
    pub fn counters(&self, deadline: impl Into<Deadline>) -> Result<SemaphoreCounters> {
        let outbound = *lock(&self.ends.outbound);
        Ok(SemaphoreCounters { outbound, ..self.ends.ends.device_counters(deadline.into())? })
    }
}

impl Host2HostSemaphore {
    /// The rank at the other end.
    pub fn peer(&self) -> u32 {
        self.connection().peer()
    }

    /// The connection that it signals through.
    pub fn connection(&self) -> &Connection {
        &self.ends.ends.connection
    }

    /// Signals the peer, after the data of all earlier writes of the connection.
    ///
    /// # Errors
    /// As for [`Connection::update_and_sync`].
    pub fn signal(&self) -> Result<()> {
        self.ends.signal()
    }

    /// Takes a signal if there is one. Returns whether it did.
    ///
    /// # Errors
    /// The reason if the connection or the communicator has failed and no signal is left.
    pub fn poll(&self) -> Result<bool> {
        let mut expected = lock(&self.expected);
        if self.inbound()? > *expected {
            *expected += 1;
            return Ok(true);
        }
        drop(expected);
        self.connection().check("poll")?;
        Ok(false)
    }

    /// Waits for a signal and takes it. Then the data of all writes that the peer issued before it is visible.
    ///
    /// # Errors
    /// `Timeout`, after which no signal has been taken; the reason if the connection or the communicator fails.
    pub fn wait(&self, deadline: impl Into<Deadline>) -> Result<()> {
        let deadline = deadline.into();
        let mut backoff = Backoff::new();
        let mut arrivals = self.connection().arrivals();
        while !self.poll()? {
            if deadline.expired() {
                let counters = self.counters()?;
                let message = format!(
                    "rank {} has signalled {} times and this waits for signal {}",
                    self.peer(),
                    counters.inbound,
                    counters.expected_inbound + 1
                );
                return Err(Error::timeout("wait", message).with_peer(self.peer()));
            }
            self.connection().await_arrival(arrivals, &mut backoff, deadline);
            arrivals = self.connection().arrivals();
        }
        Ok(())
    }

    /// The counters of this end.
    ///
    /// # Errors
    /// None in practice.
    pub fn counters(&self) -> Result<SemaphoreCounters> {
        let (expected_inbound, outbound) = (*lock(&self.expected), *lock(&self.ends.outbound));
        Ok(SemaphoreCounters { inbound: self.inbound()?, expected_inbound, outbound })
    }

    fn inbound(&self) -> Result<u64> {
        let missing = || {
            Error::new(ErrorKind::Internal, "wait", "the words of a host semaphore are not in host memory")
        };
        let words = self.ends.ends.mine.host().ok_or_else(missing)?;
        // SYNC connection.signal: what the peer wrote before the signal is visible after this.
        Ok(words.word64(INBOUND)?.load(Ordering::Acquire))
    }
}

impl Flavour for Host2DeviceSemaphore {
    const NUMBER: u8 = 2;
    const NAME: &'static str = "Host2Device";
    const SIDE: Side = Side::Device;
    const NEEDS_MAPPING: bool = false;

    fn over(ends: Ends) -> Self {
        Self { ends: Counted::new(ends) }
    }
}

impl Flavour for Host2HostSemaphore {
    const NUMBER: u8 = 3;
    const NAME: &'static str = "Host2Host";
    const SIDE: Side = Side::Host;
    const NEEDS_MAPPING: bool = false;

    fn over(ends: Ends) -> Self {
        Self { ends: Counted::new(ends), expected: Arc::default() }
    }
}

impl fmt::Debug for Host2DeviceSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ends.ends.describe("Host2DeviceSemaphore", f)
    }
}

impl fmt::Debug for Host2HostSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ends.ends.describe("Host2HostSemaphore", f)
    }
}
