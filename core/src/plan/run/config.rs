//! Settings of an executor.

use aqueduct_ptx::plan::Element;

use super::ir::Reduction;
use crate::comm::Transport;

/// Settings of [`Executor::prepare`](super::Executor::prepare). Every rank must pass the same.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ExecutorConfig {
    pub(super) variants: Vec<(Element, Option<Reduction>)>,
    pub(super) max_bytes: Option<u64>,
    pub(super) unchecked: bool,
    pub(super) port_transport: Option<Transport>,
}

impl ExecutorConfig {
    /// The same with these element types and reductions, each of which is a kernel to compile; `None` stands for the plan's own
    /// reduction. A plan that only moves data needs none.
    #[must_use]
    pub fn with_variants(mut self, variants: impl IntoIterator<Item = (Element, Option<Reduction>)>) -> Self {
        self.variants = variants.into_iter().collect();
        self
    }

    /// The same for messages of up to this many bytes, which decides how much scratch is allocated. By default the plan's own
    /// limit, or as many as the communicator's scratch serves if that is less.
    #[must_use]
    pub fn with_max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// The same with port channels over this transport. By default they use CudaIpc where the peer's device is reached, and
    /// Ethernet elsewhere.
    #[must_use]
    pub fn with_port_transport(mut self, transport: Transport) -> Self {
        self.port_transport = Some(transport);
        self
    }

    /// The same without [`check`](crate::plan::check::check), for plans that are known to be right, or to be fragments. A wrong plan
    /// may wait for ever, until the communicator is aborted, or give a wrong result; it touches no memory but its own
    /// and its buffers'.
    #[must_use]
    pub fn unchecked(mut self) -> Self {
        self.unchecked = true;
        self
    }
}
