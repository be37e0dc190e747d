//! Streams: the order of asynchronous work, in streams, events, captures and graphs.
//!
//! | file | job |
//! |---|---|
//! | `op` | begins operations when those they depend on have ended |
//! | `late` | puts that off, if the configuration asks for it |
//! | `event`, `memory`, `host` | the content of events, memory operations and host functions |
//! | `user_object` | objects of the user that graphs keep alive |
//! | `runtime` | the parts of the machine that work uses while it runs |
//! | `work` | the kinds of work, and how each runs |
//! | `graph` | graphs and their nodes |
//! | `capture` | turns work into the nodes of a graph |
//! | `streams` | orders the work of a context |
//! | `graph_exec` | launches graphs |

pub(crate) mod capture;
pub(crate) mod event;
pub(crate) mod graph;
pub(crate) mod graph_exec;
pub(crate) mod host;
mod late;
pub(crate) mod memory;
pub(crate) mod op;
pub(crate) mod runtime;
pub(crate) mod streams;
#[cfg(test)]
mod tests;
pub(crate) mod user_object;
mod words;
pub(crate) mod work;
