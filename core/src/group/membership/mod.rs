//! Agreement on who belongs to the group, as `docs/membership.md` states it. No I/O: messages and observations go in,
//! messages and a verdict come out, so that it runs under simulation as it does on control links.

mod agreement;
mod message;
mod quorum;
#[cfg(test)]
mod simulation;

pub(crate) use agreement::{Membership, Verdict};
pub(crate) use message::{Envelope, Message};
pub(crate) use quorum::Ranks;
