//! Control links: how ranks speak while they run, and how they notice that one has gone.
//!
//! When the communicator is made, up to 16 ranks are all linked to each other; in a larger one each rank opens links to
//! ranks +1, +2, +4, .. (mod n), so that about 2 log2(n) others watch it, and a link to any other rank when it is first
//! needed. A link is a unix socket on the same host, which can pass file descriptors, otherwise TCP. It carries frames
//! both ways. Two ranks that open one to each other at the same time have two; nothing depends on the order between
//! them, and either carries any frame.
//!
//! A link that ends without a BYE means that the peer is lost, and so does one on which nothing comes for too long
//! ([`heartbeat`](crate::net::heartbeat)). Whoever notices aborts, which tells every rank it has a link to, each of which passes
//! it on once ([`failure`]). Who goes on after that is agreed over the same links ([`membership`](crate::group::membership)).
//!
//! A peer that has said BYE on every link has left in good order, which is no failure: what it sent has arrived. But nothing more
//! will come from it. Calls that need it fail from then on; kernels that wait for it are told to leave after
//! [`GRACE`](crate::group::peer_state::GRACE), in which those that find everything there have long gone on; and if one did leave,
//! its work is not done, and the communicator aborts. As long as anything of its group is kept, it says BYE also on links that are
//! opened later. After that, who has no link to it finds nobody, and cannot tell whether it has left or was lost.
#![forbid(unsafe_code)]

mod agree;
mod deferred;
mod failure;
mod joining;
mod mail;
mod meeting;
mod presence;
mod service;
mod shared;
mod state;

pub(crate) use agree::Outcome;
#[cfg(feature = "fuzzing")]
pub(crate) use mail::fuzzing;
pub(crate) use mail::{Address, Needs};
pub(crate) use meeting::{Attendance, ahead};
pub(crate) use service::Service;
pub(crate) use shared::{Control, Member};
