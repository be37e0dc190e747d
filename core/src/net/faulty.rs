//! Streams that fail where [`NetFaults`] says so.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::claims::{Claims, purpose};
use super::raw::{Layer, RawStream};
use crate::fault::{LinkKind, NetAction, NetFaults, Step, Track};
use crate::sync::{Mutex, lock};

impl Layer for NetFaults {
    fn wrap(&self, local: Claims, peer: Claims, raw: Box<dyn RawStream>) -> Box<dyn RawStream> {
        let kind = match local.purpose {
            purpose::RENDEZVOUS => Some(LinkKind::Rendezvous),
            purpose::BOOTSTRAP => Some(LinkKind::Bootstrap),
            purpose::CONTROL => Some(LinkKind::Control),
            purpose::DATA => Some(LinkKind::Data),
            _ => None,
        };
        match self.track(local.from, peer.from, kind) {
            None => raw,
            Some(track) => {
                let state = State { track, inserted: Vec::new(), fate: Fate::Works };
                Box::new(Faulty { raw, state: Mutex::new(state) })
            }
        }
    }
}

/// A stream whose sending side is tampered with.
#[derive(Debug)]
struct Faulty {
    raw: Box<dyn RawStream>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    track: Track,
    /// Bytes that the sender has not asked to send; they go before its next ones.
    inserted: Vec<u8>,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Works,
    /// Writes report success and send nothing.
    Swallows,
    Dropped,
}

impl RawStream for Faulty {
    fn read(&self, into: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
        self.raw.read(into, fds)
    }

    fn write(&self, from: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        let mut state = lock(&self.state);
        let state = &mut *state;
        loop {
            match state.fate {
                Fate::Works => {}
                Fate::Swallows => return Ok(from.len()),
                Fate::Dropped => return Err(io::ErrorKind::BrokenPipe.into()),
            }
            while !state.inserted.is_empty() {
                let written = self.raw.write(&state.inserted, &[])?;
                state.inserted.drain(..written);
            }
            let count = |bytes: usize| bytes.min(from.len());
            match state.track.step(from) {
                Step::Pass(most, pause) => {
                    std::thread::sleep(pause);
                    let written = self.raw.write(&from[..most], fds)?;
                    state.track.advance(&from[..written]);
                    return Ok(written);
                }
                Step::Act(NetAction::Drop) => {
                    state.fate = Fate::Dropped;
                    self.raw.shutdown(true)?;
                }
                Step::Act(NetAction::Truncate) => {
                    state.fate = Fate::Swallows;
                    self.raw.shutdown(false)?;
                }
                Step::Act(NetAction::Stall) => state.fate = Fate::Swallows,
                Step::Act(NetAction::Delay(time)) => std::thread::sleep(time),
                Step::Act(NetAction::Fragment) => {}
                Step::Act(NetAction::Lose(bytes)) => {
                    state.track.advance(&from[..count(bytes)]);
                    return Ok(count(bytes));
                }
                Step::Act(NetAction::Duplicate(bytes)) => {
                    state.inserted.extend_from_slice(&from[..count(bytes)]);
                }
                Step::Act(NetAction::Corrupt(bytes)) => {
                    let mut changed = from[..count(bytes)].to_vec();
                    state.track.corrupt(&mut changed);
                    state.track.advance(&from[..changed.len()]);
                    let written = self.raw.write(&changed, fds).or_else(would_block_is_none)?;
                    let reported = changed.len();
                    state.inserted.extend_from_slice(&changed[written..]);
                    return Ok(reported);
                }
            }
        }
    }

    fn shutdown(&self, both: bool) -> io::Result<()> {
        if lock(&self.state).fate == Fate::Works { self.raw.shutdown(both) } else { Ok(()) }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.raw.fd()
    }
}

fn would_block_is_none(error: io::Error) -> io::Result<usize> {
    if error.kind() == io::ErrorKind::WouldBlock { Ok(0) } else { Err(error) }
}
