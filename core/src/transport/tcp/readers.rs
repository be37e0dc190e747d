//! Which thread receives from a connection's socket: the service thread, or a user thread that waits for this very connection.
//!
//! The thread that receives holds the inbox's lock, and looks there whether it is its turn. The service thread is told what to
//! poll for with the outbox's lock held, so that the latest decision is the one that it hears last.
#![forbid(unsafe_code)]

use std::time::Instant;

use super::poller::{End, Poller};
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock};

#[derive(Debug, Default)]
pub(super) struct Readers {
    /// A user thread waits for this connection, and receives.
    assisted: AtomicBool,
    /// How often the service thread has received something, and how much of that the last user thread to assist has seen.
    arrivals: AtomicU64,
    known: AtomicU64,
    poller: Poller,
}

impl Readers {
    /// Whether user threads receive, so that the service thread need not.
    pub(super) fn are_users(&self) -> bool {
        self.assisted.load(Ordering::Acquire) || self.poller.is_user()
    }

    /// Runs `turn` with the inbox locked, and with whether to receive: a user thread always does (`assists`), the service thread
    /// unless user threads do. `turn` returns its result, and whether something was received.
    pub(super) fn turn<I, T>(
        &self,
        inbox: &Mutex<I>,
        assists: bool,
        turn: impl FnOnce(&mut I, bool) -> (T, bool),
    ) -> T {
        let mut inbox = lock(inbox);
        let (result, progress) = turn(&mut inbox, assists || !self.are_users());
        if progress && !assists {
            self.arrivals.fetch_add(1, Ordering::AcqRel);
        }
        result
    }

    /// A user thread begins to receive; false, having done nothing, if another one does. With the outbox locked, `ignore` tells
    /// the service thread to poll for nothing, unless it does not poll anyway.
    pub(super) fn begin<O>(&self, outbox: &Mutex<O>, ignore: impl FnOnce()) -> bool {
        if self.assisted.swap(true, Ordering::AcqRel) {
            return false;
        }
        if !self.poller.begin() {
            let _outbox = lock(outbox);
            ignore();
        }
        true
    }

    /// Whether the service thread has received something since a user thread last asked, which may be what the caller waits for.
    /// Between [`begin`](Self::begin) and [`end`](Self::end), and behind a turn, it receives nothing more.
    pub(super) fn have_missed(&self) -> bool {
        let arrivals = self.arrivals.load(Ordering::Acquire);
        let missed = self.known.load(Ordering::Relaxed) != arrivals;
        if missed {
            self.known.store(arrivals, Ordering::Relaxed);
        }
        missed
    }

    /// The user thread ends what it began; `idle` unless work remains that only another turn can advance. With the outbox locked,
    /// `watch` tells the service thread to poll, and whether to read; if it polls for nothing, and is to go on like that, only if
    /// there is something to send. Whether the service thread must be nudged.
    pub(super) fn end<O>(
        &self,
        outbox: &Mutex<O>,
        idle: bool,
        is_empty: impl FnOnce(&O) -> bool,
        watch: impl FnOnce(&O, bool),
    ) -> bool {
        let outbox = lock(outbox);
        let end = self.poller.end(idle);
        self.assisted.store(false, Ordering::Release);
        if end != End::StillUser || !is_empty(&outbox) {
            watch(&outbox, end == End::Service);
        }
        drop(outbox);
        end == End::NowUser || !idle
    }

    /// A look of the service thread, before its turn: when to look again, if user threads go on polling.
    pub(super) fn check(&self) -> Option<Instant> {
        self.poller.check()
    }

    /// The service thread has received something.
    pub(super) fn disturb(&self) {
        self.poller.disturb();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The service thread as user threads leave it: how often it was told to ignore the socket, and whether to read by the
    /// latest that it was told otherwise.
    #[derive(Debug, Default, PartialEq, Eq)]
    struct Told {
        ignored: u32,
        read: Option<bool>,
        nudged: bool,
    }

    /// A wait of a user thread, with so many frames to send.
    fn wait(readers: &Readers, frames: u32, idle: bool) -> Told {
        let (outbox, mut told) = (Mutex::new(frames), Told::default());
        assert!(readers.begin(&outbox, || told.ignored += 1) && readers.are_users());
        assert!(!readers.begin(&outbox, || panic!("another thread waits")));
        assert!(reads(readers, true, false) && !reads(readers, false, false));
        let watch = |_: &u32, read| told.read = Some(read);
        told.nudged = readers.end(&outbox, idle, |frames| *frames == 0, watch);
        told
    }

    /// Whether a turn receives; it makes `progress` or none.
    fn reads(readers: &Readers, assists: bool, progress: bool) -> bool {
        readers.turn(&Mutex::new(()), assists, |(), reads| (reads, progress))
    }

    #[test]
    fn one_thread_receives() {
        for (idle, nudged) in [(true, false), (false, true)] {
            let readers = Readers::default();
            assert!(!readers.are_users() && reads(&readers, false, false));
            assert_eq!(wait(&readers, 0, idle), Told { ignored: 1, read: Some(true), nudged });
            assert!(!readers.are_users() && reads(&readers, false, false));
        }
    }

    #[test]
    fn a_user_thread_hears_once_of_what_the_service_thread_has_received() {
        let readers = Readers::default();
        for (assists, progress, missed) in
            [(false, false, false), (true, true, false), (false, true, true), (true, false, false)]
        {
            reads(&readers, assists, progress);
            assert_eq!(readers.have_missed(), missed, "assists: {assists}, progress: {progress}");
            assert!(!readers.have_missed(), "it was told");
        }
    }

    #[test]
    fn after_many_waits_user_threads_go_on_polling_until_nobody_waits() {
        let readers = Readers::default();
        let mut waits = 0;
        let now = loop {
            let told = wait(&readers, 0, true);
            if told.nudged {
                break told;
            }
            waits += 1;
            assert!(waits < 100_000 && readers.check().is_none());
        };
        assert_eq!(now, Told { ignored: 1, read: Some(false), nudged: true });
        assert!(readers.are_users() && !reads(&readers, false, false));
        assert_eq!(wait(&readers, 0, true), Told { ignored: 0, read: None, nudged: false });
        let sends = Told { ignored: 0, read: Some(false), nudged: false };
        assert_eq!(wait(&readers, 1, true), sends, "the service thread sends");
        assert!(readers.check().is_some() && readers.check().is_none() && !readers.are_users());
        readers.disturb();
        assert_eq!(wait(&readers, 0, true), Told { ignored: 1, read: Some(true), nudged: false });
    }
}
