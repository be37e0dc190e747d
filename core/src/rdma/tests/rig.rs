//! Two connected ends in one process, on the stand-in or on a NIC.

use std::sync::Arc;
use std::time::Duration;

use super::standin;
use crate::deadline::{Backoff, Deadline};
use crate::rdma::*;
use crate::wire::{Reader, Writer};

/// Memory that only the NIC and raw pointers touch.
pub(super) struct Memory {
    words: Arc<Words>,
}

struct Words(Vec<std::cell::UnsafeCell<u64>>);
// SAFETY: the words are only read and written through raw pointers, by one thread and the NIC.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Memory {
    /// `bytes`, a multiple of 8, of `fill`.
    pub(super) fn new(bytes: usize, fill: u8) -> Self {
        let word = u64::from_ne_bytes([fill; 8]);
        let words = (0..bytes / 8).map(|_| std::cell::UnsafeCell::new(word)).collect();
        Self { words: Arc::new(Words(words)) }
    }

    pub(super) fn register(&self, pd: &ProtectionDomain, access: Access) -> MemoryRegion {
        self.try_register(pd, access).unwrap()
    }

    pub(super) fn try_register(&self, pd: &ProtectionDomain, access: Access) -> crate::Result<MemoryRegion> {
        // SAFETY: the region holds the memory, which is only touched through raw pointers.
        unsafe { pd.register(self.start(), self.words.0.len() * 8, access, self.words.clone()) }
    }

    /// Registers it under addresses from `named` on.
    pub(super) fn register_as(
        &self,
        pd: &ProtectionDomain,
        named: u64,
        access: Access,
    ) -> crate::Result<MemoryRegion> {
        // SAFETY: as above.
        unsafe { pd.register_as(self.start(), self.words.0.len() * 8, named, access, self.words.clone()) }
    }

    pub(super) fn byte(&self, index: usize) -> u8 {
        assert!(index < self.words.0.len() * 8);
        // SAFETY: inside, and no reference to it exists.
        unsafe { self.start().add(index).read_volatile() }
    }

    pub(super) fn word(&self, index: usize) -> u64 {
        // SAFETY: as above.
        unsafe { self.words.0[index].get().read_volatile() }
    }

    /// How many regions hold it.
    pub(super) fn holders(&self) -> usize {
        Arc::strong_count(&self.words) - 1
    }

    /// The lowest bits of its address, which every name of it has.
    pub(super) fn place_in_page(&self) -> u64 {
        self.start().addr() as u64 & 0xfff
    }

    fn start(&self) -> *mut u8 {
        self.words.0[0].get().cast()
    }
}

pub(super) fn verbs() -> Verbs {
    Verbs::from_table(standin::table(), "stand-in")
}

pub(super) fn open(device: &str) -> Context {
    verbs().device(device).unwrap().open().unwrap()
}

/// One end: everything but the peer.
pub(super) struct End {
    pub(super) pd: ProtectionDomain,
    pub(super) cq: CompletionQueue,
    pub(super) qp: QueuePair<ReadyToSend>,
}

/// Settings under which a lost peer is noticed within a second or two.
pub(super) fn quick() -> Settings {
    Settings { timeout: 14, retry_count: 3, rnr_retry: 3, ..Settings::default() }
}

pub(super) fn pair(a: &Context, b: &Context, options: &QpOptions) -> (End, End) {
    let create = |context: &Context| {
        let pd = context.protection_domain().unwrap();
        let cq = context.completion_queue(256).unwrap();
        let port = context.active_port(&Settings::default()).unwrap();
        let qp = pd.queue_pair(options, &cq, &cq).unwrap().init(&port, &quick(), Access::FLAGS).unwrap();
        (pd, cq, qp)
    };
    let ((pd_a, cq_a, qp_a), (pd_b, cq_b, qp_b)) = (create(a), create(b));
    // Through the wire form, as between processes.
    let sent = |address: QpAddress| {
        let mut w = Writer::new();
        address.encode(&mut w);
        QpAddress::decode(&mut Reader::new(w.as_bytes())).unwrap()
    };
    let (address_a, address_b) = (sent(qp_a.address()), sent(qp_b.address()));
    let qp_a = qp_a.connect(&address_b).unwrap();
    let qp_b = qp_b.connect(&address_a).unwrap();
    (
        End { pd: pd_a, cq: cq_a, qp: qp_a.ready_to_send().unwrap() },
        End { pd: pd_b, cq: cq_b, qp: qp_b.ready_to_send().unwrap() },
    )
}

/// A pair on the stand-in.
pub(super) fn standin_pair() -> (End, End) {
    pair(&open("null0"), &open("null0"), &QpOptions::default())
}

impl End {
    /// The next completion; fails after 20 seconds.
    pub(super) fn completion(&self) -> Completion {
        let deadline = Deadline::after(Duration::from_secs(20));
        let mut wait = Backoff::new();
        let mut found = None;
        while found.is_none() {
            self.cq.poll(1, |completion| found = Some(completion)).unwrap();
            deadline.check("test", "a completion").unwrap();
            wait.pause(deadline);
        }
        found.unwrap()
    }

    /// All completions that are there when the stand-in has done what it can.
    pub(super) fn completions(&self) -> Vec<Completion> {
        standin::settle();
        let mut all = Vec::new();
        self.cq.poll(usize::MAX, |completion| all.push(completion)).unwrap();
        all
    }
}
