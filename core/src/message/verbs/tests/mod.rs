//! Links over queue pairs of the stand-in, between two ends in one process; peers that send whatever they like; and messengers of
//! which one cannot use its device.

mod calls;
mod closing;
mod ending;
mod falling_back;
mod frames;
mod hostile;
mod logged;
mod making_pairs;
mod pairs;
mod placed;
mod reading;
mod receives;
mod refused;
mod reports;
mod unkind;
mod waking;
mod windows;

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::message::head::{Head, Operation};
use crate::message::one_sided::Wanted;
use crate::message::wire::{Landing, Sink, Wire};
use crate::net::RawStream;
use crate::net::ready::wait_readable;
use crate::rdma::{RemoteRange, Verbs, standin};

pub(super) const SOON: Duration = Duration::from_secs(30);
/// Nothing that a test waits for takes so long.
pub(super) const HOUR: Duration = Duration::from_secs(3600);

/// One end of a pair of sockets.
#[derive(Debug)]
pub(super) struct Socket(UnixStream);

impl RawStream for Socket {
    fn read(&self, into: &mut [u8], _: &mut Vec<OwnedFd>) -> io::Result<usize> {
        (&self.0).read(into)
    }

    fn write(&self, from: &[u8], _: &[BorrowedFd<'_>]) -> io::Result<usize> {
        (&self.0).write(from)
    }

    fn shutdown(&self, both: bool) -> io::Result<()> {
        self.0.shutdown(if both { std::net::Shutdown::Both } else { std::net::Shutdown::Write })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A piece without a place.
pub(super) fn wanted(from: RemoteRange) -> Wanted {
    Wanted { from, place: None }
}

pub(super) fn verbs() -> Verbs {
    Verbs::from_table(standin::table(), "stand-in")
}

pub(super) fn nic(names: &str) -> Arc<Nic> {
    nic_with(names, Choice::default())
}

/// One of the devices `names`, with the settings of `choice`.
pub(super) fn nic_with(names: &str, choice: Choice) -> Arc<Nic> {
    let choice = Choice { allowed: true, library: Some(verbs()), devices: Some(names.into()), ..choice };
    Arc::new(Nic::open(&choice).unwrap())
}

/// Two connected ends whose messages have up to `eager` bytes, and the sockets between them.
pub(super) fn ends(eager: usize) -> [(Box<dyn RawStream>, VerbsLink); 2] {
    ends_of(eager, &Choice::default())
}

/// The same with the settings of `choice`.
fn ends_of(eager: usize, choice: &Choice) -> [(Box<dyn RawStream>, VerbsLink); 2] {
    let (one, two) = UnixStream::pair().unwrap();
    let drafts = [(); 2].map(|()| Draft::new(&nic_with("null0", choice.clone()), eager).unwrap());
    let [first, second] = [drafts[0].offer(), drafts[1].offer()];
    let [one_draft, two_draft] = drafts;
    [(one, one_draft, second), (two, two_draft, first)].map(|(socket, draft, theirs)| {
        socket.set_nonblocking(true).unwrap();
        let socket: Box<dyn RawStream> = Box::new(Socket(socket));
        (socket, draft.connect(&theirs).unwrap())
    })
}

pub(super) fn pair_of(eager: usize) -> [VerbsWire; 2] {
    ends(eager).map(|(socket, link)| VerbsWire::new(socket, link, None))
}

pub(super) fn pair_with(choice: &Choice) -> [VerbsWire; 2] {
    ends_of(8 << 10, choice).map(|(socket, link)| VerbsWire::new(socket, link, None))
}

pub(super) fn pair() -> [VerbsWire; 2] {
    pair_of(8 << 10)
}

/// Keeps frames. Data that comes in parts is put together.
#[derive(Default)]
pub(super) struct Kept {
    frames: Vec<(Head, Vec<u8>)>,
    parts: usize,
}

impl Sink for Kept {
    fn frame(&mut self, head: Head, body: &[u8]) -> Result<()> {
        self.frames.push((head, body.to_vec()));
        Ok(())
    }

    fn begin(&mut self, head: Head) -> Result<()> {
        self.frames.push((head, vec![0; head.length as usize]));
        Ok(())
    }

    fn landing(&mut self, head: Head, done: usize) -> Result<Landing> {
        let (began, body) = self.frames.last_mut().unwrap();
        assert_eq!(*began, head);
        Ok(Landing::Memory(body[done..].as_mut_ptr()))
    }

    fn landed(&mut self, _: Head, _: usize) -> Result<()> {
        self.parts += 1;
        Ok(())
    }
}

pub(super) fn head(kind: u16, body: &[u8]) -> Head {
    Head::new(Operation::Message, kind, 7, body.len())
}

pub(super) fn body(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 + len) as u8).collect()
}

/// Pushes, and flushes what was held back.
pub(super) fn push(wire: &VerbsWire, head: Head, body: &[u8]) -> bool {
    let pushed = wire.push(head, body).unwrap();
    wire.kick().unwrap();
    pushed
}

/// Pulls until `count` frames have come.
pub(super) fn pull(wire: &VerbsWire, kept: &mut Kept, count: usize) {
    let deadline = Deadline::after(SOON);
    while kept.frames.len() < count {
        wire.pull(kept).unwrap();
        assert!(!deadline.expired(), "only {} frames of {count}", kept.frames.len());
    }
}

pub(super) fn is_readable(wire: &VerbsWire, patience: Duration) -> bool {
    wait_readable(wire.descriptors()[0], Deadline::after(patience)).unwrap()
}

pub(super) fn number(wire: &VerbsWire) -> u32 {
    wire.number()
}

/// Pulls until the link ends; what ended it.
#[track_caller]
pub(super) fn end_of(wire: &VerbsWire, kept: &mut Kept) -> crate::Error {
    let deadline = Deadline::after(SOON);
    loop {
        match wire.pull(kept).and_then(|_| wire.arm()) {
            Ok(_) => assert!(!deadline.expired(), "the link does not end"),
            Err(error) => return error,
        }
    }
}
