//! Feeds a collective call with frames of its peers, without a network.

use std::sync::Mutex;
use std::time::Duration;

use super::super::mailbox::Mailbox;
use super::super::tcp::{Heard, MESSAGE, read_frame};
use super::super::{Bootstrap, LocalBootstrap, local};
use crate::deadline::Deadline;
use crate::error::Result;
use crate::net::Frame;
use crate::wire::{Reader, WireError, Writer};

const MINE: &[u8] = b"mine";

/// A rank that has heard all that it will ever hear, and speaks to nobody.
#[derive(Debug)]
struct Listener {
    rank: u32,
    size: u32,
    mailbox: Mailbox,
}

impl Bootstrap for Listener {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn send(&self, peer: u32, _: u64, _: &[u8], _: Deadline) -> Result<()> {
        assert!(peer < self.size && peer != self.rank);
        Ok(())
    }

    fn recv(&self, peer: u32, tag: u64, _: Deadline) -> Result<Vec<u8>> {
        assert!(peer < self.size && peer != self.rank);
        self.mailbox.take(peer, tag, Deadline::after(Duration::ZERO))
    }
}

/// The input: which call (0 gathers, 1 broadcasts, 2 meets at a barrier), rank, size, then frames, each with its sender, its
/// kind, and its payload behind a length.
pub fn collective(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut r = Reader::new(bytes);
    let (call, rank, size) = (r.u8().ok()?, r.u8().ok()?.into(), r.u8().ok()?.into());
    if rank >= size {
        return None;
    }
    let listener = Listener { rank, size, mailbox: Mailbox::default() };
    while r.remaining() > 0 {
        let (from, kind) = (u32::from(r.u8().ok()?), r.u16().ok()?);
        let frame = Frame { kind, payload: r.bytes(1 << 16).ok()?.to_vec(), fds: Vec::new() };
        if let Heard::Message(tag, message) = read_frame(from, frame).ok()? {
            listener.mailbox.deliver(from, tag, message).ok()?;
        }
    }
    let deadline = Deadline::after(Duration::from_secs(3600));
    let blocks = match call {
        0 => listener.all_gather(MINE, deadline).ok()?,
        1 => vec![listener.broadcast(0, MINE, deadline).ok()?],
        2 => listener.barrier(deadline).map(|()| Vec::new()).ok()?,
        _ => return None,
    };
    if call == 0 {
        assert_eq!((blocks.len(), &*blocks[rank as usize]), (size as usize, MINE));
    }
    Some(format!("{blocks:?}").into_bytes())
}

/// A rank that keeps what it hears.
#[derive(Debug)]
struct Tapped {
    inner: LocalBootstrap,
    heard: Mutex<Writer>,
}

impl Bootstrap for Tapped {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn size(&self) -> u32 {
        self.inner.size()
    }

    fn send(&self, peer: u32, tag: u64, bytes: &[u8], deadline: Deadline) -> Result<()> {
        self.inner.send(peer, tag, bytes, deadline)
    }

    fn recv(&self, peer: u32, tag: u64, deadline: Deadline) -> Result<Vec<u8>> {
        let message = self.inner.recv(peer, tag, deadline)?;
        let payload = [&tag.to_le_bytes()[..], &message].concat();
        let from = u8::try_from(peer).map_err(|_| WireError::Invalid { what: "rank" })?;
        self.heard.lock().expect("nobody panics").u8(from).u16(MESSAGE).bytes(&payload);
        Ok(message)
    }
}

/// Seeds for the fuzzer: the frames that rank 1 of three receives in each call, recorded once per call.
pub(super) fn heard() -> Vec<(&'static str, Vec<u8>)> {
    let (rank, size) = (1, 3_u8);
    let hear = |call: u8| {
        let mut head = Writer::new();
        head.u8(call).u8(rank).u8(size);
        let all: Vec<_> =
            local(size.into()).into_iter().map(|inner| Tapped { inner, heard: Mutex::default() }).collect();
        let deadline = Deadline::after(Duration::from_secs(3600));
        std::thread::scope(|scope| {
            for each in &all {
                scope.spawn(move || match call {
                    0 => each.all_gather(b"block", deadline).map(drop),
                    1 => each.broadcast(0, b"news", deadline).map(drop),
                    _ => each.barrier(deadline),
                });
            }
        });
        let heard = std::mem::take(&mut *all[usize::from(rank)].heard.lock().expect("nobody panics"));
        head.raw(heard.as_bytes());
        ("collective", head.finish())
    };
    let mut seeds: Vec<_> = [0, 1, 2].map(hear).to_vec();
    seeds.push(("collective", vec![0, 0, 1]));
    seeds
}
