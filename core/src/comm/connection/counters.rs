//! Counts of the operations that a connection has accepted.
#![forbid(unsafe_code)]

use crate::sync::{AtomicU64, Ordering};
use crate::transport::backend::ConnectionCounters;

#[derive(Default)]
pub(super) struct Counters {
    writes: AtomicU64,
    reads: AtomicU64,
    signals: AtomicU64,
    flushes: AtomicU64,
    bytes_written: AtomicU64,
    bytes_read: AtomicU64,
}

impl Counters {
    #[inline]
    pub(super) fn written(&self, bytes: usize) {
        add(&self.writes, 1);
        add(&self.bytes_written, bytes as u64);
    }

    #[inline]
    pub(super) fn read(&self, bytes: usize) {
        add(&self.reads, 1);
        add(&self.bytes_read, bytes as u64);
    }

    #[inline]
    pub(super) fn signalled(&self) {
        add(&self.signals, 1);
    }

    #[inline]
    pub(super) fn flushed(&self) {
        add(&self.flushes, 1);
    }

    /// The counts so far; those that the transport keeps are 0.
    pub(super) fn so_far(&self) -> ConnectionCounters {
        let Self { writes, reads, signals, flushes, bytes_written, bytes_read } = self;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ConnectionCounters {
            writes: load(writes),
            reads: load(reads),
            signals: load(signals),
            flushes: load(flushes),
            bytes_written: load(bytes_written),
            bytes_read: load(bytes_read),
            ..Default::default()
        }
    }
}

#[inline]
fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
