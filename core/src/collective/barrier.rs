//! Barrier.

use std::sync::Arc;

use super::named::called;
use super::plans::{self, Hosts};
use crate::comm::Communicator;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::gpu::{GpuBuffer, Stream};
use crate::plan::{Element, Executor, ExecutorConfig, all_done};

const PREPARE: &str = "Barrier::prepare";

/// A barrier of all ranks on streams: what a stream has behind one begins when the streams of all ranks have reached theirs.
#[derive(Clone, Debug)]
pub struct Barrier {
    comm: Communicator,
    /// Nothing for one rank.
    executor: Option<Executor>,
    /// A plan has buffers, even if it moves no data.
    none: Arc<GpuBuffer>,
}

impl Barrier {
    /// Compiles the kernel and exchanges what it needs. Collective.
    ///
    /// # Errors
    /// As for [`Executor::prepare`].
    pub fn prepare(comm: &Communicator, deadline: impl Into<Deadline>) -> Result<Self> {
        let deadline = deadline.into();
        let _turn = comm.collective_call(PREPARE, deadline)?;
        let executor = match comm.size() {
            1 => None,
            ranks => {
                let config = ExecutorConfig::default().with_max_bytes(0);
                let executor =
                    Executor::prepare(comm, &plans::barrier(ranks, &Hosts::of(comm))?, config, deadline);
                Some(called(PREPARE, executor)?)
            }
        };
        // A rank without memory tells the others, which would wait in vain at the first barrier.
        let none = all_done(comm, PREPARE, GpuBuffer::new(comm.context(), 16), deadline)?;
        Ok(Self { comm: comm.clone(), executor, none: Arc::new(none) })
    }

    /// Enqueues one barrier. Every rank calls it as often as the others; all calls of one `Barrier` belong on one stream, or on
    /// streams that the caller orders.
    ///
    /// # Errors
    /// `PeerLost` once a rank is lost or has left; `Aborted` once the communicator is aborted; a driver error.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        const OP: &str = "Barrier::launch";
        let Some(executor) = &self.executor else { return self.comm.check_all(OP) };
        let none = self.none.slice(..0)?;
        called(OP, executor.execute(stream, &none, &none, 0, Element::U8, None))
    }
}
