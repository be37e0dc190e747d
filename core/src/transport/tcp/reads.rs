//! Reads that this end has asked for and whose bytes have not landed: where the answers belong, in the order in which they come.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use crate::error::{Error, ErrorKind, Result};
use crate::memory::Place;
use crate::sync::{AtomicUsize, Mutex, Ordering, lock};

/// Parts of reads that a connection asks for at one time. The peer refuses more: what it has been asked for takes memory there.
pub(super) const WINDOW: usize = 64;

/// Where the answers belong. The sending half adds to it, the receiving half takes.
#[derive(Debug)]
pub(super) struct Reads {
    peer: u32,
    /// Of answers that have not begun to come: the place, and its size in bytes.
    asked: Mutex<VecDeque<(Place, usize)>>,
    /// Parts whose bytes have not landed.
    waiting: AtomicUsize,
}

impl Reads {
    pub(super) fn new(peer: u32) -> Self {
        Self { peer, asked: Mutex::default(), waiting: AtomicUsize::new(0) }
    }

    /// The peer is asked for `len` bytes, which belong to `to`.
    pub(super) fn ask(&self, to: Place, len: usize) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        lock(&self.asked).push_back((to, len));
    }

    /// Parts whose bytes have not landed. A thread that finds none sees the bytes of all.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// An answer of `len` bytes begins: where they belong.
    ///
    /// # Errors
    /// `Remote` unless exactly so many were asked for next.
    pub(super) fn begin(&self, len: usize) -> Result<Place> {
        let refuse = |message| Err(Error::new(ErrorKind::Remote, "recv", message).with_peer(self.peer));
        match lock(&self.asked).pop_front() {
            Some((to, asked)) if asked == len => Ok(to),
            Some((_, asked)) => {
                refuse(format!("rank {} answered a read of {asked} bytes with {len}", self.peer))
            }
            None => refuse(format!("rank {} sent {len} bytes that nobody asked for", self.peer)),
        }
    }

    /// The bytes of one answer have landed.
    pub(super) fn landed(&self) {
        self.waiting.fetch_sub(1, Ordering::Release);
    }

    /// No further answer comes: gives the places out, to be dropped where blocking is allowed.
    pub(super) fn clear(&self) -> impl Iterator<Item = Place> {
        std::mem::take(&mut *lock(&self.asked)).into_iter().map(|(to, _)| to)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn answers_must_come_in_the_order_and_sizes_asked_for() {
        let reads = Reads::new(1);
        assert_eq!(reads.begin(8).unwrap_err().peer(), Some(1), "nobody asked");
        [8, 16].iter().for_each(|len| reads.ask(Place::Elsewhere, *len));
        reads.begin(8).unwrap();
        assert_eq!(reads.waiting(), 2, "it has begun and not landed");
        reads.landed();
        let error = reads.begin(8).unwrap_err();
        assert!(error.message().contains("16 bytes with 8"), "{error}");
        assert_eq!(reads.waiting(), 1);
    }
}
