//! Kernels ask the host for work: a FIFO that their threads push to, and a host thread that serves it.
//!
//! [`Fifo`] carries triggers; a [`Proxy`] is a thread that takes them out and hands each to a [`ProxyHandler`]. A
//! [`ProxyService`] is such a thread, or several, for port channels: its handler puts, signals and flushes over
//! connections of any transport. To serve requests of your own kernels, write a handler:
//!
//! ```no_run
//! use aqueduct::proxy::{Proxy, ProxyConfig, ProxyHandlerResult, ProxyTrigger};
//! # fn main() -> aqueduct::Result<()> {
//! # let driver = aqueduct::gpu::Driver::select(None)?;
//! # let context = aqueduct::gpu::Context::new(&aqueduct::gpu::Device::new(&driver, 0)?)?;
//! let proxy = Proxy::start(&context, ProxyConfig::default(), |trigger: &ProxyTrigger| {
//!     println!("a kernel asks for {:?}", trigger.payload());
//!     Ok(ProxyHandlerResult::Continue)
//! })?;
//! let handle = proxy.fifo(); // what kernels push with
//! # drop(handle);
//! proxy.stop(std::time::Duration::from_secs(10))
//! # }
//! ```

mod affinity;
mod config;
mod fifo;
mod handler;
mod service;
mod thread;
mod words;

pub use aqueduct_ptx::abi::{ChannelTrigger, ProxyTrigger, TriggerKind};

pub use config::{Idle, ProxyConfig};
pub use fifo::{Fifo, FifoConsumer};
pub use handler::{ProxyHandler, ProxyHandlerResult};
pub use service::{
    MemoryId, PendingSemaphore, PortCounters, ProxyService, ProxyServiceConfig, SemaphoreId, ServiceCounters,
};
pub use thread::{Proxy, ProxyCounters};

pub(crate) use service::Port;
