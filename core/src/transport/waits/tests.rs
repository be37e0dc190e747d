//! Streams are lent while somebody waits, and to one connection at a time.

use super::super::completion::Completion;
use super::super::words::Words;
use super::*;
use crate::gpu::{Device, Driver, PinnedBuffer};
use crate::sync::Ordering;
use crate::transport::tests::{soon, wait_for};

fn context() -> Context {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    Context::new(&Device::new(&driver, 0).unwrap()).unwrap()
}

/// Work that ends when the test says so.
struct Stuck {
    stream: Stream,
    event: Event,
    word: Arc<PinnedBuffer>,
}

impl Stuck {
    fn new(context: &Context) -> Self {
        let (stream, event) = (Stream::new(context).unwrap(), Event::new(context).unwrap());
        let word = Arc::new(PinnedBuffer::new(context, 8).unwrap());
        stream.wait_value64(&word.slice(..).unwrap(), 1).unwrap();
        event.record(&stream).unwrap();
        Self { stream, event, word }
    }

    fn end(&self) {
        self.word.memory().word64(0).unwrap().store(1, Ordering::Release);
        self.stream.synchronize(soon()).unwrap();
    }
}

/// Ends the waits of a test that fails, too: nobody waits for a device that stays stuck.
impl Drop for Stuck {
    fn drop(&mut self) {
        self.word.memory().word64(0).unwrap().store(1, Ordering::Release);
    }
}

#[test]
fn a_stream_that_came_back_with_work_is_lent_again_once_that_is_done() {
    let context = context();
    let (streams, stuck) = (WaitStreams::new(&context), Stuck::new(&context));
    let lent = streams.lend().unwrap();
    lent.stream.wait_event(&stuck.event).unwrap();
    let first = lent.stream.identity();
    assert_eq!(streams.count(), 0, "it is lent");
    drop(lent);
    let other = streams.lend().unwrap();
    assert_ne!(other.stream.identity(), first, "it would wait for work of somebody else");
    stuck.end();
    wait_for("the stream stays busy", || {
        let lent = streams.lend().unwrap();
        lent.stream.identity() == first
    });
    drop(other);
    let identities = [streams.lend().unwrap(), streams.lend().unwrap()].map(|lent| lent.stream.identity());
    assert!(identities.contains(&first) && streams.count() == 2, "no third one is made");
}

/// An outcome that has failed.
#[derive(Debug)]
struct GaveUp;

impl crate::outcome::Outcome for GaveUp {
    fn outcome(&self, op: &'static str) -> Result<()> {
        Err(crate::error::Error::usage(op, "given up"))
    }
}

#[test]
fn the_next_who_borrows_a_stream_is_not_told_what_earlier_work_gave_up() {
    let context = context();
    let streams = WaitStreams::new(&context);
    let lent = streams.lend().unwrap();
    let gave_up: Arc<dyn crate::outcome::Outcome> = Arc::new(GaveUp);
    lent.stream.depend_on(&gave_up);
    drop(lent);
    let (lent, event) = (streams.lend().unwrap(), Event::new(&context).unwrap());
    event.record(&lent.stream).unwrap();
    event.synchronize(soon()).unwrap();
}

#[test]
fn a_connection_has_a_stream_while_it_waits_and_one_at_most() {
    let context = context();
    let streams = WaitStreams::new(&context);
    let completion = Completion::new(&Words::new(&context), &streams).unwrap();
    assert_eq!(streams.count(), 0);
    let (one, two) = (Stuck::new(&context), Stuck::new(&context));
    let (first, second) = (completion.behind(&one.event).unwrap(), completion.behind(&two.event).unwrap());
    assert_eq!(streams.count(), 0, "it is lent");
    one.end();
    wait_for("the first wait is not over", || first.is_over().unwrap());
    assert!(!second.is_over().unwrap());
    drop(first);
    assert_eq!(streams.count(), 0, "the second wait goes on");
    two.end();
    wait_for("the second wait is not over", || second.is_over().unwrap());
    drop(second);
    assert_eq!(streams.count(), 1, "both were on one stream");
    // Events of the user's that wait for the connection.
    let events = [5, 7].map(|count| {
        let event = Event::new(&context).unwrap();
        completion.record(&event, count).unwrap();
        event
    });
    assert_eq!(streams.count(), 0, "it is lent");
    completion.reach(5);
    events[0].synchronize(soon()).unwrap();
    let early = (events[1].is_done().unwrap(), streams.count());
    completion.reach(7);
    events[1].synchronize(soon()).unwrap();
    assert_eq!((early, streams.count()), ((false, 0), 1));
    // A failure ends such waits, too.
    let event = Event::new(&context).unwrap();
    completion.record(&event, 9).unwrap();
    assert_eq!(streams.count(), 0);
    completion.release();
    event.synchronize(soon()).unwrap();
    assert_eq!(streams.count(), 1);
}
