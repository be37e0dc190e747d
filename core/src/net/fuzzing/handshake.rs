//! Handshakes with a peer that knows the secret over a bad network, and with one that does not.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, LazyLock, Mutex};

use super::super::admission::Admission;
use super::super::handshake::{Failure, Handshake, Progress};
use super::super::{Claims, RawStream, Secret};
use crate::wire::Reader;

/// Two sides of one job. The input: both sides' claims (scope, from, to, purpose: 18 bytes each), how many bytes pass at
/// a time, at which byte of each direction to change something (2 bytes each, above the length: nowhere), and by what.
///
/// With nothing changed and claims that fit both sides end well and know the other's claims; otherwise the client never
/// does, and the server only if the change is in what it said last.
pub fn handshake(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut r = Reader::new(bytes);
    let (client, server) = (claims(&mut r)?, claims(&mut r)?);
    let step = usize::from(r.u8().ok()?).max(1);
    let mut damage = || Some((usize::from(r.u16().ok()?), r.u8().ok()?));
    let (to_server, to_client) = (damage()?, damage()?);
    r.finish().ok()?;

    let (up, down) = (Pipe::new(step, to_server), Pipe::new(step, to_client));
    let secret = Secret::from_bytes([7; 32]);
    let mut first = Side::new(Handshake::client(secret.clone(), client).ok()?, &down, &up);
    let mut second = Side::new(Handshake::server(secret, server, Admission::new(None, 1)), &up, &down);
    while first.go() | second.go() {}

    let fits = client.purpose == server.purpose
        && client.scope == server.scope
        && meets(client.to, server.from)
        && meets(client.from, server.to);
    let changed = |damage: (usize, u8), all: usize| damage.1 != 0 && damage.0 < all;
    if !fits || changed(to_server, 64 + 32) || changed(to_client, 96) {
        assert!(first.done.is_none() && second.done.is_none(), "a changed or foreign handshake was taken");
        return None;
    }
    assert_eq!(second.done, Some(client));
    if changed(to_client, 96 + 32) {
        assert_eq!(first.done, None, "a changed last word was taken");
        return None;
    }
    assert_eq!(first.done, Some(server));
    Some(bytes.to_vec())
}

/// A stranger that says the input to a listener, or answers it to a client, without the secret: neither ends well.
/// Accepted is what is long enough to be refused for its proof.
pub fn stranger(bytes: &[u8]) -> Option<Vec<u8>> {
    let claims = Claims { purpose: 1, scope: 9, from: Claims::ANY, to: Claims::ANY };
    let secret = Secret::from_bytes([7; 32]);
    let sides = [
        Handshake::client(secret.clone(), claims).ok()?,
        Handshake::server(secret, claims, Admission::new(None, 1)),
    ];
    let mut greeted = false;
    for handshake in sides {
        let (said, heard) = (Pipe::new(usize::MAX, (0, 0)), Pipe::new(usize::MAX, (0, 0)));
        said.push(bytes);
        let mut side = Side::new(handshake, &said, &heard);
        while side.go() {}
        assert_eq!(side.done, None, "a stranger was taken");
        greeted |= side.handshake.greeted() && heard.taken() > 64;
    }
    greeted.then(|| bytes.to_vec())
}

pub(super) fn inputs() -> Vec<(&'static str, Vec<u8>)> {
    let claims = |from: u32, to: u32| {
        [&9u64.to_le_bytes()[..], &from.to_le_bytes(), &to.to_le_bytes(), &[1, 0]].concat()
    };
    let nowhere = [0xff, 0xff, 0];
    let both = |step: u8| [&claims(2, 5)[..], &claims(5, u32::MAX), &[step], &nowhere, &nowhere].concat();
    let mut hello = b"AQHS\x01\0\0\0".to_vec();
    hello.extend(claims(u32::MAX, u32::MAX));
    hello.resize(96, 0);
    vec![("handshake", both(1)), ("handshake", both(255)), ("stranger", hello)]
}

fn claims(r: &mut Reader<'_>) -> Option<Claims> {
    Some(Claims { scope: r.u64().ok()?, from: r.u32().ok()?, to: r.u32().ok()?, purpose: r.u16().ok()? })
}

fn meets(a: u32, b: u32) -> bool {
    a == b || a == Claims::ANY || b == Claims::ANY
}

/// One end and what became of it.
struct Side {
    handshake: Handshake,
    raw: Ends,
    ended: bool,
    done: Option<Claims>,
}

impl Side {
    fn new(handshake: Handshake, read: &Arc<Pipe>, write: &Arc<Pipe>) -> Self {
        Self { handshake, raw: Ends { read: read.clone(), write: write.clone() }, ended: false, done: None }
    }

    /// Whether anything moved.
    fn go(&mut self) -> bool {
        if self.ended {
            return false;
        }
        let before = (self.raw.read.taken(), self.raw.write.taken());
        match self.handshake.drive(&self.raw) {
            Ok(Progress::Wants(_)) => {}
            Ok(Progress::Done(claims)) => (self.ended, self.done) = (true, Some(claims)),
            Err(Failure::Closed(_) | Failure::Final(_)) => self.ended = true,
        }
        self.ended || before != (self.raw.read.taken(), self.raw.write.taken())
    }
}

/// One direction: `step` bytes can be in it at a time, and one byte on the way is changed.
#[derive(Debug)]
struct Pipe {
    step: usize,
    damage: (usize, u8),
    /// Bytes in flight, and how many bytes have ever entered and left.
    state: Mutex<(VecDeque<u8>, usize, usize)>,
}

impl Pipe {
    fn new(step: usize, damage: (usize, u8)) -> Arc<Self> {
        Arc::new(Self { step, damage, state: Mutex::default() })
    }

    fn push(&self, bytes: &[u8]) -> usize {
        let mut state = self.state.lock().expect("nobody panics with it");
        let room = self.step.saturating_sub(state.0.len()).min(bytes.len());
        for byte in &bytes[..room] {
            let change = if state.1 == self.damage.0 { self.damage.1 } else { 0 };
            state.0.push_back(byte ^ change);
            state.1 += 1;
        }
        room
    }

    fn pop(&self, into: &mut [u8]) -> usize {
        let mut state = self.state.lock().expect("nobody panics with it");
        let count = into.len().min(state.0.len());
        for (place, byte) in into.iter_mut().zip(state.0.drain(..count)) {
            *place = byte;
        }
        state.2 += count;
        count
    }

    fn taken(&self) -> usize {
        let state = self.state.lock().expect("nobody panics with it");
        state.1 + state.2
    }
}

/// The two pipes of one side.
#[derive(Debug)]
struct Ends {
    read: Arc<Pipe>,
    write: Arc<Pipe>,
}

impl RawStream for Ends {
    fn read(&self, into: &mut [u8], _: &mut Vec<OwnedFd>) -> io::Result<usize> {
        match self.read.pop(into) {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }

    fn write(&self, from: &[u8], _: &[BorrowedFd<'_>]) -> io::Result<usize> {
        match self.write.push(from) {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }

    fn shutdown(&self, _: bool) -> io::Result<()> {
        Ok(())
    }

    /// No caller waits on it.
    fn fd(&self) -> BorrowedFd<'_> {
        static NULL: LazyLock<std::fs::File> =
            LazyLock::new(|| std::fs::File::open("/dev/null").expect("every system has one"));
        NULL.as_fd()
    }
}
