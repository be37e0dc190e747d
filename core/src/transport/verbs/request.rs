//! Operations of a connection: as their callers name them, and as they wait.

use std::sync::Arc;

use super::super::backend::Span;
use super::super::waits::Awaited;
use super::nics::Nic;
use crate::error::{Error, Result};
use crate::memory::{HostSlice, Remote};
use crate::rdma::{MemoryRegion, RemoteRange};

/// Host memory of up to this size goes into the request itself.
pub(super) const INLINE: usize = 64;

/// An operation as its caller names it: borrowed, because most become requests at once.
pub(super) enum Request<'a> {
    Transfer(Transfer<'a>),
    Update { to: RemoteRange, old: u64, value: u64, remote: &'a Arc<Remote> },
}

/// Bytes to be moved.
pub(super) struct Transfer<'a> {
    pub(super) read: bool,
    pub(super) local: &'a MemoryRegion,
    pub(super) offset: u64,
    /// Set for small amounts of host memory, which are sent inline: where they begin.
    pub(super) host: Option<(&'a HostSlice, usize)>,
    pub(super) at: RemoteRange,
    pub(super) remote: &'a Arc<Remote>,
}

/// An operation that waits, with what it keeps alive.
pub(super) enum Operation {
    Transfer {
        read: bool,
        local: MemoryRegion,
        offset: u64,
        host: Option<HostSlice>,
        at: RemoteRange,
        /// Bytes of it that are requests already.
        done: u64,
        remote: Arc<Remote>,
    },
    Update {
        to: RemoteRange,
        old: u64,
        value: u64,
        remote: Arc<Remote>,
    },
    After(Awaited),
    Mark(u64),
}

impl<'a> Request<'a> {
    /// Moves what `ours` and `theirs` name; `nic` is ours.
    #[inline]
    pub(super) fn transfer(
        op: &'static str,
        read: bool,
        nic: &Nic,
        ours: Span<'a>,
        theirs: Span<'a>,
        at: RemoteRange,
    ) -> Result<Self> {
        let number = nic.number();
        let (local, base) = ours.memory.on_nic(number).ok_or_else(|| unregistered(op, number))?;
        // The NIC would refuse it, and end the queue pair.
        if *local.domain() != nic.domain {
            return Err(foreign(op));
        }
        let (remote, _) = theirs.remote(op)?;
        let small = !read && ours.len <= INLINE;
        let host = ours.memory.place().host().filter(|_| small).map(|host| (host, ours.offset));
        let offset = base + ours.offset as u64;
        Ok(Self::Transfer(Transfer { read, local, offset, host, at, remote }))
    }

    /// The same, to wait: `done` bytes of it are requests already.
    pub(super) fn keep(&self, done: u64) -> Operation {
        match *self {
            Self::Transfer(Transfer { read, local, offset, host, at, remote }) => Operation::Transfer {
                read,
                local: local.clone(),
                offset,
                host: host.map(|(host, offset)| host.part(offset, at.len() as usize)),
                at,
                done,
                remote: remote.clone(),
            },
            Self::Update { to, old, value, remote } => {
                Operation::Update { to, old, value, remote: remote.clone() }
            }
        }
    }
}

#[cold]
fn foreign(op: &'static str) -> Error {
    let message = "the memory was registered with another communicator, whose queue pairs alone may use it; register it with the one that \
                   made the connection";
    Error::usage(op, message)
}

#[cold]
fn unregistered(op: &'static str, nic: u8) -> Error {
    Error::usage(op, format!("the memory is not registered with Ib{nic}; name it when registering"))
}
