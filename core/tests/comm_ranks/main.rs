//! Communicators on the software device: ranks as threads of one process, and as processes of their own.

mod abort;
mod bootstraps;
mod captures;
mod closed;
mod departure;
mod items;
mod membership;
mod memory;
mod mixed_up;
mod processes;
mod split;
mod support;
