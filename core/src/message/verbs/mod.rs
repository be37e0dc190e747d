//! The wire between two processes that both have an RDMA device: a queue pair of type RC, and the TCP connection over which
//! its address was exchanged.
//!
//! Frames form a stream, as on TCP. The stream is cut into packets, each a SEND into a receive that the peer has posted:
//!
//! | offset | field | size |
//! |---|---|---|
//! | 0 | receives that the sender has posted again since it last told, see [`credits`] | 4 |
//! | 4 | bytes of the stream that follow; 0 in a packet that only gives back receives | 4 |
//! | 8 | the next bytes of the stream | |
//!
//! A frame leaves at once if none has come since the last progress; further ones gather in a packet until it is full, or until the next
//! progress. Without credits, all gather. A packet that the device takes inline needs no place in the ring of sends.
//!
//! The receives of a link and its ring of sends are one registered piece of memory, see [`memory`]: 64 KiB for the usual eager limit. A
//! shared receive queue would need less for idle peers, but a peer's credits would then stand for receives that others may have
//! taken, and no flushed receive would tell that all has come: `docs/messages.md` has the reasons ("Prepared receives").
//!
//! Reads have queue pairs of their own, see [`pairs`]: a read that is refused ends its pair, and never the link.
//!
//! The TCP connection stays open and tells of the end of the peer's process. The completion channel is the doorbell.

mod copies;
mod credits;
mod draft;
mod inbound;
mod memory;
mod naming;
mod nic;
mod offer;
mod outbound;
mod owner;
mod packet;
mod pairs;
mod reader;
mod regions;
mod reports;
#[cfg(all(test, not(loom)))]
mod tests;
mod wire;

pub(super) use draft::{Draft, VerbsLink};
pub(super) use nic::{Choice, Nic};
pub(super) use offer::Offer;
pub(super) use wire::VerbsWire;
#[cfg(feature = "fuzzing")]
pub(super) use {inbound::Inbound, packet::Header};

/// Bytes of a packet, its header included.
const PACKET: usize = 2048;

/// In the id of every receive, beside its slot, and of no request.
const RECEIVE: u64 = 1 << 63;

/// The longest body of a frame on a link whose side takes messages of `eager` bytes: such a message with a token in front.
fn longest_body(eager: usize) -> usize {
    eager.max(8 << 10) + 64
}
