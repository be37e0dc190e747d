//! Litmus tests of weak memory: each outcome that the PTX memory model allows comes up, and no other one does.

#![allow(missing_docs, reason = "a test")]

mod coherence;
mod judge;
mod multicast;
mod orders;
mod packets;
mod rig;
mod seeds;
