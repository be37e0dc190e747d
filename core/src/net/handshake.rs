//! Challenge and response: both sides prove that they know the secret before anything else is looked at.
//!
//! ```text
//! client -> server   hello:  magic, version, claims, nonce                                   (64 bytes)
//! server -> client   reply:  magic, version, claims, nonce, HMAC(secret, "server", hello, reply)  (96 bytes)
//! client -> server   proof:  HMAC(secret, "client", hello, reply)                                  (32 bytes)
//! server -> client   taken:  HMAC(secret, "taken", hello, reply)                                   (32 bytes)
//!             or   refused:  24 bytes of HMAC(secret, "refused", hello, reply, why), why           (32 bytes)
//! ```
//!
//! The last message tells the client that the listener has the connection, so that whatever the client does later,
//! on this connection or another one, happens after the listener knows of this one. Or it says that the listener does not
//! take it although the secret is right, and why: see [`Admission`].
//!
//! Messages have fixed sizes, so nothing is allocated for a stranger. The labels keep a proof of one role from
//! being played back as the other; the fresh nonces keep it from being played back later; claims are inside both
//! proofs. The claims are only interpreted once the proof that covers them has been verified.
#![forbid(unsafe_code)]

use std::io;
use std::sync::Arc;

use super::admission::{Admission, Permit, Refusal};
use super::claims::Claims;
use super::raw::RawStream;
use super::secret::{MAC_BYTES, Secret, random_bytes};
use super::sys;
use crate::error::{Error, ErrorKind, Result};
use crate::wire::{Reader, WireResult, Writer};

const MAGIC: &[u8; 4] = b"AQHS";
const VERSION: u16 = 1;
const PREFIX: usize = 8;
const OPENING: usize = 64;
const REPLY: usize = OPENING + MAC_BYTES;
const SERVER: &[u8] = b"aqueduct handshake v1 server";
const CLIENT: &[u8] = b"aqueduct handshake v1 client";
const TAKEN: &[u8] = b"aqueduct handshake v1 taken";
const REFUSED: &[u8] = b"aqueduct handshake v1 refused";
/// How much of a refusal is its MAC; the rest says why.
const REFUSED_MAC: usize = MAC_BYTES - 8;

/// How far a handshake is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It waits for this readiness (`sys::READ` or `sys::WRITE`).
    Wants(u32),
    /// The peer has proved the secret; these are its claims.
    Done(Claims),
}

/// Why a handshake failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The peer closed the connection before it said anything: overloaded, or gone. Worth another attempt.
    Closed(io::Error),
    /// Anything else. Not worth another attempt.
    Final(Error),
}

/// One side of a handshake over a non-blocking stream.
#[derive(Debug)]
pub(super) struct Handshake {
    secret: Secret,
    local: Claims,
    /// Decides which proven peers the listening side takes; `None` on the side that connects.
    admission: Option<Arc<Admission>>,
    permit: Option<Permit>,
    state: State,
    hello: [u8; OPENING],
    reply: [u8; REPLY],
    buffer: [u8; REPLY],
    done: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    ClientHello,
    ClientReply,
    ClientProof(Claims),
    ClientTaken(Claims),
    ServerHello,
    ServerReply,
    ServerProof,
    ServerTaken(Claims),
    ServerRefused(Claims, Refusal),
}

impl Handshake {
    /// The side that connected.
    pub(super) fn client(secret: Secret, local: Claims) -> Result<Self> {
        let hello = opening(local)?;
        let mut this = Self::new(secret, local, State::ClientHello);
        this.hello = hello;
        this.buffer[..OPENING].copy_from_slice(&hello);
        Ok(this)
    }

    /// The side that listens, and takes the peers that `admission` admits.
    pub(super) fn server(secret: Secret, local: Claims, admission: Arc<Admission>) -> Self {
        Self { admission: Some(admission), ..Self::new(secret, local, State::ServerHello) }
    }

    fn new(secret: Secret, local: Claims, state: State) -> Self {
        let (hello, reply, buffer) = ([0; OPENING], [0; REPLY], [0; REPLY]);
        Self { secret, local, admission: None, permit: None, state, hello, reply, buffer, done: 0 }
    }

    /// Takes the permit that admission granted to a finished handshake of the listening side. Keep it as long as the
    /// connection.
    pub(super) fn take_permit(&mut self) -> Option<Permit> {
        self.permit.take()
    }

    /// Whether the peer has sent a whole hello; a stranger that only connects never gets that far.
    pub(super) fn greeted(&self) -> bool {
        self.state != State::ServerHello
    }

    /// Goes as far as it can without waiting.
    pub(super) fn drive(&mut self, raw: &dyn RawStream) -> std::result::Result<Progress, Failure> {
        loop {
            let (reading, length) = match self.state {
                State::ClientHello => (false, OPENING),
                State::ClientReply => (true, REPLY),
                State::ClientProof(_) | State::ServerTaken(_) | State::ServerRefused(..) => {
                    (false, MAC_BYTES)
                }
                State::ServerHello => (true, OPENING),
                State::ServerReply => (false, REPLY),
                State::ServerProof | State::ClientTaken(_) => (true, MAC_BYTES),
            };
            while self.done < length {
                let moved = if reading {
                    self.read(raw, length)
                } else {
                    raw.write(&self.buffer[self.done..length], &[])
                };
                match moved {
                    Ok(0) => return Err(self.ended(io::ErrorKind::UnexpectedEof.into())),
                    Ok(count) => self.done += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        return Ok(Progress::Wants(if reading { sys::READ } else { sys::WRITE }));
                    }
                    Err(error) => return Err(self.ended(error)),
                }
                if matches!(self.state, State::ServerHello | State::ClientReply) && self.done >= PREFIX {
                    self.check_prefix(raw)?;
                }
            }
            self.done = 0;
            if let Some(peer) = self.advance().map_err(Failure::Final)? {
                return Ok(Progress::Done(peer));
            }
        }
    }

    /// Reads no further than this message, so that what follows it stays in the socket.
    fn read(&mut self, raw: &dyn RawStream, length: usize) -> io::Result<usize> {
        let mut fds = Vec::new();
        let count = raw.read(&mut self.buffer[self.done..length], &mut fds)?;
        if fds.is_empty() {
            Ok(count)
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidData, "file descriptors before authentication"))
        }
    }

    fn ended(&self, error: io::Error) -> Failure {
        let early = matches!(self.state, State::ClientHello | State::ClientReply) && self.done < PREFIX;
        // A listener that is pressed for room may also close a connection whose proof it has not read yet.
        let late = matches!(self.state, State::ClientProof(_) | State::ClientTaken(_));
        if early || late || self.state == State::ServerHello {
            return Failure::Closed(error);
        }
        let message = match self.state {
            State::ServerProof => {
                "the peer left without proving the job's secret; does it have the same unique id?"
            }
            _ => "the connection ended during the handshake",
        };
        Failure::Final(Error::new(ErrorKind::Authentication, "handshake", message).with_source(error))
    }

    /// Refuses strangers by their first eight bytes, and tells a peer of another version which one this is.
    fn check_prefix(&self, raw: &dyn RawStream) -> std::result::Result<(), Failure> {
        let found = u16::from_le_bytes([self.buffer[4], self.buffer[5]]);
        let message = if &self.buffer[..4] != MAGIC {
            "the peer does not speak aqueduct's protocol".to_owned()
        } else if found != VERSION {
            if self.state == State::ServerHello {
                // Best effort: the connection is closed next in any case.
                let _ = raw.write(&prefix(), &[]);
            }
            format!(
                "the peer speaks handshake version {found}, this build {VERSION}: use one version of aqueduct"
            )
        } else {
            return Ok(());
        };
        Err(Failure::Final(Error::new(ErrorKind::Authentication, "handshake", message)))
    }

    /// The message in the buffer is complete: on to the next state, or the peer's claims.
    fn advance(&mut self) -> Result<Option<Claims>> {
        match self.state {
            State::ClientHello => self.state = State::ClientReply,
            State::ClientReply => {
                let (opening, proof) = self.buffer.split_at(OPENING);
                if !self.secret.verify(&[SERVER, &self.hello, opening], proof) {
                    return Err(rejected("the listener could not prove the job's secret"));
                }
                let peer = claims(opening)?;
                self.compare(peer)?;
                self.reply = self.buffer;
                let proof = self.secret.mac(&[CLIENT, &self.hello, &self.reply]);
                self.buffer[..MAC_BYTES].copy_from_slice(&proof);
                self.state = State::ClientProof(peer);
            }
            State::ClientProof(peer) => self.state = State::ClientTaken(peer),
            State::ClientTaken(peer) => {
                if !self.secret.verify(&[TAKEN, &self.hello, &self.reply], &self.buffer[..MAC_BYTES]) {
                    return Err(match self.refusal() {
                        Some(why) => why.error(self.local.from),
                        None => rejected("the listener could not prove the job's secret"),
                    });
                }
                return Ok(Some(peer));
            }
            State::ServerHello => {
                self.hello.copy_from_slice(&self.buffer[..OPENING]);
                let opening = opening(self.local)?;
                let proof = self.secret.mac(&[SERVER, &self.hello, &opening]);
                self.reply[..OPENING].copy_from_slice(&opening);
                self.reply[OPENING..].copy_from_slice(&proof);
                self.buffer = self.reply;
                self.state = State::ServerReply;
            }
            State::ServerReply => self.state = State::ServerProof,
            State::ServerProof => {
                if !self.secret.verify(&[CLIENT, &self.hello, &self.reply], &self.buffer[..MAC_BYTES]) {
                    return Err(rejected("the peer could not prove the job's secret"));
                }
                let peer = claims(&self.hello)?;
                self.compare(peer)?;
                match self.admission.as_ref().map(|admission| admission.admit(peer)).transpose() {
                    Ok(permit) => {
                        self.permit = permit;
                        let taken = self.secret.mac(&[TAKEN, &self.hello, &self.reply]);
                        self.buffer[..MAC_BYTES].copy_from_slice(&taken);
                        self.state = State::ServerTaken(peer);
                    }
                    Err(refusal) => {
                        let why = refusal.encode();
                        let mac = self.secret.mac(&[REFUSED, &self.hello, &self.reply, &why]);
                        self.buffer[..REFUSED_MAC].copy_from_slice(&mac[..REFUSED_MAC]);
                        self.buffer[REFUSED_MAC..MAC_BYTES].copy_from_slice(&why);
                        self.state = State::ServerRefused(peer, refusal);
                    }
                }
            }
            State::ServerTaken(peer) => return Ok(Some(peer)),
            State::ServerRefused(peer, refusal) => return Err(refusal.error(peer.from)),
        }
        Ok(None)
    }

    /// Why the listener does not take this connection, if that is what it has said and proved.
    fn refusal(&self) -> Option<Refusal> {
        let (mac, why) = self.buffer[..MAC_BYTES].split_at(REFUSED_MAC);
        let why: [u8; 8] = why.try_into().ok()?;
        self.secret
            .verify_start(&[REFUSED, &self.hello, &self.reply, &why], mac)
            .then(|| Refusal::decode(why))?
    }

    /// Both sides must mean the same connection.
    fn compare(&self, peer: Claims) -> Result<()> {
        let meets = |a: u32, b: u32| a == b || a == Claims::ANY || b == Claims::ANY;
        let mine = self.local;
        if peer.purpose == mine.purpose
            && peer.scope == mine.scope
            && meets(peer.to, mine.from)
            && meets(peer.from, mine.to)
        {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Authentication,
            "handshake",
            format!("a connection for another purpose or rank arrived here: {peer:?} met {mine:?}"),
        ))
    }
}

fn rejected(what: &str) -> Error {
    Error::new(
        ErrorKind::Authentication,
        "handshake",
        format!("{what}; do both sides have the same unique id, or the same secret where one was set?"),
    )
}

fn prefix() -> [u8; PREFIX] {
    let mut out = [0; PREFIX];
    out[..4].copy_from_slice(MAGIC);
    out[4..6].copy_from_slice(&VERSION.to_le_bytes());
    out
}

fn opening(claims: Claims) -> Result<[u8; OPENING]> {
    let nonce: [u8; 32] = random_bytes()?;
    let mut w = Writer::new();
    w.raw(&prefix()).u64(claims.scope).u32(claims.from).u32(claims.to).u16(claims.purpose).u16(0).u32(0);
    w.raw(&nonce);
    let mut out = [0; OPENING];
    out.copy_from_slice(w.as_bytes());
    Ok(out)
}

fn claims(opening: &[u8]) -> WireResult<Claims> {
    let mut r = Reader::new(opening);
    r.raw(PREFIX)?;
    Ok(Claims { scope: r.u64()?, from: r.u32()?, to: r.u32()?, purpose: r.u16()? })
}
