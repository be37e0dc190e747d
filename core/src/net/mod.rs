//! Authenticated, framed streams between the processes of one job.
//!
//! A [`Network`] holds the job's [`Secret`]. Whoever connects or listens through it proves the secret by challenge
//! and response before a byte of payload is looked at, on TCP and on unix sockets alike, and so does the other
//! side. After that a [`Stream`] carries [`Frame`]s of bounded length. A [`Reactor`] serves many streams and
//! listeners with one thread. There is no confidentiality and no protection against someone who can alter packets
//! between two hosts: the secret keeps strangers out, it does not hide what is said.

mod admission;
mod claims;
mod commands;
mod connect;
mod faulty;
mod frame;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod handler;
mod handshake;
pub(crate) mod heartbeat;
mod interface;
mod link;
mod listener;
mod network;
#[cfg(any(all(test, not(loom)), feature = "fuzzing"))]
pub(crate) mod parts;
mod pollable;
mod raw;
mod reactor;
mod reader;
#[cfg(any(all(test, not(loom)), feature = "fuzzing"))]
pub(crate) mod recorded;
mod registration;
mod resolve;
mod secret;
mod service;
mod stream;
mod sys;
mod unix;

#[cfg(test)]
pub(crate) mod apart;
#[cfg(test)]
mod tests;

pub(crate) use claims::purpose;
pub use claims::{Address, Claims};
pub use commands::Acceptor;
pub(crate) use connect::tells_of_loss;
pub use frame::{Frame, MAX_FDS};
pub use handler::Handler;
pub use interface::{Interface, choose, interfaces};
pub use link::Link;
pub use listener::{Listener, Rejections};
pub use network::Network;
pub use pollable::{Interest, Next, Pollable};
pub use raw::{Layer, RawStream};
pub use reactor::{Reactor, ReactorConfig};
pub use registration::Registration;
pub(crate) use resolve::resolve;
pub use secret::{Secret, SecretText, random_bytes};
pub(crate) use secret::{from_hex, from_hex_text, to_hex};
pub use stream::Stream;

/// Waiting for descriptors, for rooms that serve sockets on threads of their own.
pub(crate) mod ready {
    pub(crate) use super::sys::{Epoll, EventFd, READ, WRITE, has_hung_up, wait_readable};
}

#[cfg(test)]
pub(crate) use unix::left_behind as left_behind_sockets;
pub(crate) use unix::sweep as sweep_sockets;
