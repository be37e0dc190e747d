//! Items of one rank, and the error that is reported of several.

use std::sync::{Arc, mpsc};

use super::*;
use crate::bootstrap;
use crate::comm::{Communicator, CommunicatorConfig};
use crate::gpu::{Context, Device, Driver};
use crate::ledger::holds::HoldId;
use crate::setup::key::Kind;
use crate::setup::mailbox::SetupMail;

/// An item that can never be built, or that could be, and where it gives out its end.
struct Fake {
    key: Key,
    fails: bool,
    end: mpsc::Sender<(Kind, Result<()>)>,
}

impl Item for Fake {
    fn key(&self) -> Key {
        self.key
    }

    fn ready(&mut self) -> Option<Result<()>> {
        let failure = || Err(Error::new(ErrorKind::Exhausted, "send_memory", "no memory".to_owned()));
        Some(if self.fails { failure() } else { Ok(()) })
    }

    fn offer(&mut self) -> Result<Offer<Hold>> {
        Ok(Offer::default())
    }

    fn build(&mut self, _: Offer<Receipt>, _: Deadline) -> Result<()> {
        Ok(())
    }

    fn finish(self: Box<Self>, result: Result<()>) {
        self.end.send((self.key.kind, result)).unwrap();
    }
}

/// Runs `test` on rank 0 of one.
fn alone<T>(test: impl FnOnce(&Post<'_>) -> T) -> T {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let soon = Deadline::after(Duration::from_secs(60));
    let bootstrap = bootstrap::local(1).remove(0);
    let comm = Communicator::new(&bootstrap, &context, CommunicatorConfig::default(), soon).unwrap();
    let exchange = comm.exchange();
    let mail = SetupMail::new(0, 1);
    test(&Post { group: &exchange.group, mail: &mail, ledger: &exchange.ledger })
}

/// Runs items, by their keys and whether they fail; the error, and the end of each.
fn run_alone(items: &[(Key, bool)], deadline: Deadline) -> (Error, Vec<(Kind, Result<()>)>) {
    let (end, ends) = mpsc::channel();
    let items =
        items.iter().map(|&(key, fails)| Box::new(Fake { key, fails, end: end.clone() }) as Box<dyn Item>);
    let error = alone(|post| run(post, items.collect(), deadline, || ())).unwrap_err();
    (error, ends.try_iter().collect())
}

/// Otherwise it would wait until its time is up.
#[test]
fn an_item_hears_that_the_other_end_at_its_own_rank_has_failed() {
    let [send, recv] = [Kind::MemorySend, Kind::MemoryRecv].map(|kind| Key::user(kind, 0, 7));
    let (_, ends) = run_alone(&[(recv, false), (send, true)], Deadline::after(Duration::from_secs(60)));
    assert_eq!(ends.len(), 2);
    for (kind, end) in ends {
        let error = end.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{kind:?}: {error}");
    }
}

#[test]
fn an_exchange_that_nobody_else_asks_for_is_named_by_its_call() {
    let space = Namespace::Exchange { buffer: 1, count: 3 };
    let key = Key { kind: Kind::MemoryRecv, peer: 0, space, tag: 9 };
    let (error, _) = run_alone(&[(key, false)], Deadline::after(Duration::ZERO));
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("exchange_memory with 3 buffers and tag 9"), "{error}");
}

#[test]
fn an_exchange_of_the_librarys_own_names_no_tag_and_no_call_that_nobody_made() {
    let key = Key::library(Kind::MemoryRecv, 0, 4_294_967_297);
    let (error, _) = run_alone(&[(key, false)], Deadline::after(Duration::ZERO));
    assert_eq!((error.kind(), error.op()), (ErrorKind::Timeout, "setup"), "{error}");
    assert!(error.message().contains("make the same calls that prepare"), "{error}");
    assert!(!error.message().contains("4294967297") && !error.message().contains("recv_memory"), "{error}");
}

/// It comes after the last look for it, and before the attempt is over.
#[test]
fn an_offer_that_comes_as_the_deadline_passes_is_given_back() {
    let key = Key::user(Kind::MemoryRecv, 0, 7);
    let (thing, (end, ends)) = (Arc::new(()), mpsc::channel());
    alone(|post| {
        let attempt = post.mail.with(|attempts| attempts.begin(key));
        assert!(post.mail.with(|attempts| attempts.ask(key)));
        let item = Box::new(Fake { key, fails: false, end });
        let mut one = Running { place: 0, key, attempt, step: Step::Asked, withdrawn: None, item };
        assert!(matches!(one.advance(post, Deadline::after(Duration::ZERO)), Progress::None));
        let hold = post.ledger.hold(HoldId::Memory(1), thing.clone(), 0);
        let offer = Offer { holds: vec![hold.id()], ..Offer::default() };
        hold.sent();
        assert!(post.mail.hear(key, attempt, Message::Offer(offer)).unwrap().unused.is_none());
        let Progress::Ended(result) = one.expire(post) else { panic!("it waits on") };
        assert_eq!(Arc::strong_count(&thing), 2);
        one.end(post, result);
        assert_eq!(Arc::strong_count(&thing), 1, "its receipt has not come back");
    });
    assert_eq!(ends.try_recv().unwrap().1.unwrap_err().kind(), ErrorKind::Timeout);
}

#[test]
fn a_failure_of_this_rank_is_reported_before_what_it_heard() {
    let own = |text: &str| Error::new(ErrorKind::Exhausted, "recv_memory", text.to_owned()).with_peer(2);
    let heard =
        Error::new(ErrorKind::Exhausted, "send_memory", "rank 2 failed: no memory".to_owned()).with_peer(2);
    let aborted = Error::new(ErrorKind::Aborted, "send_memory", "aborted by rank 2".to_owned());
    let mut worst = Worst::default();
    for (place, error, reported) in [
        (1, &heard, "rank 2 failed: no memory"),
        (0, &aborted, "aborted by rank 2"),
        (7, &own("no descriptors"), "no descriptors"),
        (5, &own("no memory"), "no memory"),
        (6, &own("no time"), "no memory"),
        (2, &heard, "no memory"),
    ] {
        worst.note(place, error);
        assert_eq!(worst.0.as_ref().unwrap().1.message(), reported);
    }
}
