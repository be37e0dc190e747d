//! Agreement on who belongs to the group, as `docs/membership.md` states it. No I/O: messages and observations go in,
//! messages and a verdict come out, so that it runs under simulation as it does on control links.

mod agreement;
mod ballots;
mod callers;
mod departures;
mod message;
mod quorum;
mod reports;
mod roster;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

pub(crate) use agreement::{Membership, Verdict};
#[cfg(feature = "fuzzing")]
pub(crate) use message::examples;
pub(crate) use message::{Envelope, Message};
pub(crate) use quorum::Ranks;
