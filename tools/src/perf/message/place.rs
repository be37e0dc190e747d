//! Memory into which reads go.

use std::borrow::Cow;
use std::sync::mpsc::Sender;

use anyhow::Result;
use aqueduct::Deadline;
use aqueduct::message::{Begun, Peer, SharedMemory, Token};

/// The place for one read at a time.
pub(super) enum Place {
    Vector(Vec<u8>),
    Shared(SharedMemory),
}

/// Which kind of memory, as the option has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Destination {
    /// Vectors
    Vector,
    /// The library's shared memory, into which an RDMA device reads without a copy
    Shared,
}

impl Destination {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Vector => "vector",
            Self::Shared => "shared",
        }
    }

    /// A place of `length` bytes.
    pub(super) fn place(self, length: usize) -> Result<Place> {
        Ok(match self {
            Self::Vector => Place::Vector(vec![0; length]),
            Self::Shared => Place::Shared(SharedMemory::allocate(length)?),
        })
    }
}

impl Place {
    /// Begins to read all of the memory of `token`; `tell` gets the place back with the data. Returns it if too many reads are under way.
    pub(super) fn read(
        self,
        peer: &Peer,
        token: &Token,
        deadline: Deadline,
        tell: Sender<aqueduct::Result<Self>>,
    ) -> Result<Option<Self>> {
        match self {
            Self::Vector(bytes) => {
                let done = move |read: aqueduct::Result<_>| drop(tell.send(read.map(Self::Vector)));
                match peer.read(token, 0, bytes, deadline, done)? {
                    Begun::Posted(_) => Ok(None),
                    Begun::Retry(refused) => Ok(Some(Self::Vector(refused.data))),
                }
            }
            Self::Shared(memory) => {
                let place = Self::Shared(memory.clone());
                let done = move |read: aqueduct::Result<()>| drop(tell.send(read.map(|()| place)));
                match peer.read_into(token, 0, &memory, deadline, done)? {
                    Begun::Posted(_) => Ok(None),
                    Begun::Retry(_) => Ok(Some(Self::Shared(memory))),
                }
            }
        }
    }

    /// The bytes that are there.
    pub(super) fn bytes(&self) -> Result<Cow<'_, [u8]>> {
        match self {
            Self::Vector(bytes) => Ok(Cow::Borrowed(bytes)),
            Self::Shared(memory) => {
                let mut bytes = vec![0; memory.len()];
                memory.read(0, &mut bytes)?;
                Ok(Cow::Owned(bytes))
            }
        }
    }
}
