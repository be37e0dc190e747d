//! Signals of the peer: values for words of this rank's memory.

use super::super::landing::{Effect, Turn};
use super::Inbox;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{Place, Regions, Use};
use crate::sync::Ordering;

impl Inbox {
    /// Stores a signal in host memory, everything before it having landed; false if it belongs elsewhere.
    pub(super) fn store(&self, region: u64, offset: u64, value: u64, regions: &Regions) -> Result<bool> {
        // SYNC connection.signal: the data of earlier frames was received by this thread, or by one that gave this inbox back
        // through a lock.
        regions.visit(region, self.peer, offset, 8, Use::Write, |place, at| match place.host() {
            Some(host) => {
                let word = host.memory().word64(at).map_err(|error| self.no_word().with_source(error))?;
                word.store(value, Ordering::Release);
                Ok(true)
            }
            None => Ok(false),
        })?
    }

    pub(super) fn update(
        &mut self,
        region: u64,
        offset: u64,
        value: u64,
        regions: &Regions,
        turn: &mut Turn,
    ) -> Result<()> {
        match regions.find(region, self.peer, offset, 8, Use::Write)? {
            Place::Host(to, _) => {
                // Found out now, so that the peer is told: a word that is not aligned cannot be stored.
                if let Err(error) = to.memory().word64(0) {
                    turn.spent.push(Place::Host(to, None));
                    return Err(self.no_word().with_source(error));
                }
                self.arrived(None, false, Effect::Store(to, value));
            }
            Place::Device(to) if !to.ptr().is_multiple_of(8) => {
                turn.spent.push(Place::Device(to));
                return Err(self.no_word());
            }
            Place::Device(to) => {
                let staging = &mut self.staging;
                // SYNC connection.signal: the value follows the copies on the stream, and comes with a fence.
                let written = staging.stream().write_value64(&to, value);
                turn.spent.push(Place::Device(to));
                written?;
                let copied = staging.event()?;
                turn.copies -= 1;
                self.arrived(Some(copied), false, Effect::None);
            }
            Place::Elsewhere => return Err(self.nowhere()),
        }
        Ok(())
    }

    /// The peer asks for the update of something that is no word.
    fn no_word(&self) -> Error {
        let message =
            format!("rank {} updated a word at an offset that is no multiple of 8 bytes", self.peer);
        Error::new(ErrorKind::Remote, "recv", message).with_peer(self.peer)
    }
}
