//! A socket that has received something already.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use crate::net::RawStream;
use crate::net::parts::read_parts;
use crate::sync::{Mutex, lock};

/// Gives some of its bytes at a time. Nobody sends more.
#[derive(Debug)]
pub(crate) struct Recorded {
    bytes: Vec<u8>,
    step: usize,
    at: Mutex<usize>,
}

impl Recorded {
    /// `bytes`, of which `step` arrive at a time.
    pub(crate) fn new(bytes: &[u8], step: usize) -> Self {
        Self { bytes: bytes.to_vec(), step, at: Mutex::new(0) }
    }

    /// Whether all has been read.
    pub(crate) fn is_empty(&self) -> bool {
        *lock(&self.at) == self.bytes.len()
    }
}

impl RawStream for Recorded {
    fn read(&self, into: &mut [u8], _: &mut Vec<OwnedFd>) -> io::Result<usize> {
        let mut at = lock(&self.at);
        let rest = &self.bytes[*at..];
        if rest.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = rest.len().min(self.step).min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        *at += count;
        Ok(count)
    }

    unsafe fn read_parts(&self, parts: &mut [libc::iovec]) -> io::Result<usize> {
        // SAFETY: the caller vouches for the parts.
        unsafe { read_parts(self, parts) }
    }

    fn write(&self, from: &[u8], _: &[BorrowedFd<'_>]) -> io::Result<usize> {
        Ok(from.len())
    }

    fn shutdown(&self, _: bool) -> io::Result<()> {
        Ok(())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        unreachable!("nobody waits for it")
    }
}
