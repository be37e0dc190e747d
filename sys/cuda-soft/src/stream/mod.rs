//! Streams: the order of asynchronous work, in streams, events, captures and graphs.
//!
//! | file | job |
//! |---|---|
//! | `op` | begins operations when those they depend on have ended |
//! | `event`, `memory`, `host` | the content of events, memory operations and host functions |
//! | `runtime` | the parts of the machine that work uses while it runs |
//! | `work` | the kinds of work, and how each runs |
//! | `capture` | turns work into the nodes of a graph |
//! | `streams` | orders the work of a context |
//! | `graph` | launches captured work |

pub(crate) mod capture;
pub(crate) mod event;
pub(crate) mod graph;
pub(crate) mod host;
pub(crate) mod memory;
pub(crate) mod op;
pub(crate) mod runtime;
pub(crate) mod streams;
pub(crate) mod work;
