//! Memory into which reads go.

use std::borrow::Cow;
use std::sync::mpsc::Sender;

use anyhow::Result;
use aqueduct::Deadline;
use aqueduct::message::{Begun, Peer, SharedMemory, Token};

/// The place for one read at a time.
pub(super) trait Place: Sized {
    fn new(length: usize) -> Result<Self>;

    /// Begins to read all of the memory of `token`; `tell` gets the place back with the data. Returns it if too many reads are under way.
    fn begin(
        self,
        peer: &Peer,
        token: &Token,
        deadline: Deadline,
        tell: Sender<aqueduct::Result<Self>>,
    ) -> Result<Option<Self>>;

    fn bytes(&self) -> Result<Cow<'_, [u8]>>;
}

impl Place for Vec<u8> {
    fn new(length: usize) -> Result<Self> {
        Ok(vec![0; length])
    }

    fn begin(
        self,
        peer: &Peer,
        token: &Token,
        deadline: Deadline,
        tell: Sender<aqueduct::Result<Self>>,
    ) -> Result<Option<Self>> {
        match peer.read(token, 0, self, deadline, move |read| drop(tell.send(read)))? {
            Begun::Posted(_) => Ok(None),
            Begun::Retry(refused) => Ok(Some(refused.data)),
        }
    }

    fn bytes(&self) -> Result<Cow<'_, [u8]>> {
        Ok(Cow::Borrowed(self))
    }
}

impl Place for SharedMemory {
    fn new(length: usize) -> Result<Self> {
        Ok(Self::allocate(length)?)
    }

    fn begin(
        self,
        peer: &Peer,
        token: &Token,
        deadline: Deadline,
        tell: Sender<aqueduct::Result<Self>>,
    ) -> Result<Option<Self>> {
        let place = self.clone();
        let done = move |read: aqueduct::Result<()>| drop(tell.send(read.map(|()| place)));
        match peer.read_into(token, 0, &self, deadline, done)? {
            Begun::Posted(_) => Ok(None),
            Begun::Retry(_) => Ok(Some(self)),
        }
    }

    fn bytes(&self) -> Result<Cow<'_, [u8]>> {
        let mut bytes = vec![0; self.len()];
        self.read(0, &mut bytes)?;
        Ok(Cow::Owned(bytes))
    }
}
