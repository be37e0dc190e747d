//! Messages of ranks that have to end early, so that their peers do not take them for lost.
//!
//! A rank that catches a signal tells every other one, and the rank that prints the report says when it has. Messages
//! arrive in order and before the loss of their sender, so a peer that is gone has said everything that it had to say.

use std::time::Duration;

use aqueduct::{Deadline, ErrorKind};
use serde::{Deserialize, Serialize};

use crate::job::Rank;

const TAG: u64 = 0x5e1e;

/// How long one message may take to leave. The kernel takes a message this small at once unless the peer is stuck.
const SEND: Duration = Duration::from_millis(100);

/// Why the self-test is to end.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Ending {
    pub(super) signal: i32,
    /// The rank that caught it. Others pass it on.
    pub(super) rank: u32,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Word {
    /// The sender is to end.
    Ending(Ending),
    /// The sender has printed the report.
    Reported,
}

/// The messages of one rank so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Peer {
    pub(super) ending: Option<Ending>,
    pub(super) reported: bool,
    /// It sends nothing more.
    pub(super) gone: bool,
}

impl Ending {
    /// The reason of a failed check, as rank `me` reports it.
    pub(super) fn reason(self, me: u32) -> String {
        let Self { signal, rank } = self;
        let whose = if rank == me { String::new() } else { format!("rank {rank} was ") };
        format!("{whose}ended by signal {signal} during this check")
    }
}

impl Peer {
    /// Whether it ended without a word.
    pub(super) fn lost(self) -> bool {
        self.gone && self.ending.is_none()
    }
}

/// Sends `word` to all other ranks. One that is gone does not need it.
pub(super) fn tell(rank: &Rank, word: Word) {
    let Ok(bytes) = serde_json::to_vec(&word) else { return };
    for peer in others(rank) {
        let _ = rank.bootstrap.send(peer, TAG, &bytes, Deadline::after(SEND));
    }
}

/// Takes the messages that have arrived, without waiting. `peers` has one entry for each rank.
pub(super) fn hear(rank: &Rank, peers: &mut [Peer]) {
    for number in others(rank) {
        let peer = &mut peers[number as usize];
        while !peer.gone {
            match rank.bootstrap.recv(number, TAG, Deadline::after(Duration::ZERO)) {
                Ok(bytes) => match serde_json::from_slice(&bytes) {
                    Ok(Word::Ending(ending)) => peer.ending = Some(ending),
                    Ok(Word::Reported) => peer.reported = true,
                    // From another version of this program, whose other messages end the self-test as well.
                    Err(_) => {}
                },
                Err(error) if error.kind() == ErrorKind::Timeout => break,
                Err(_) => peer.gone = true,
            }
        }
    }
}

/// All ranks but this one.
pub(super) fn others(rank: &Rank) -> impl Iterator<Item = u32> {
    let me = rank.bootstrap.rank();
    (0..rank.bootstrap.size()).filter(move |&other| other != me)
}
