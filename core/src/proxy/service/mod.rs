//! [`ProxyService`]: proxies that put, signal and flush over connections, for port channels.

mod ids;
mod numbers;
mod port;
mod proxy_service;
mod queue;
mod registry;
mod router;
mod state;

#[cfg(all(test, not(loom)))]
mod tests;

pub use ids::{MemoryId, SemaphoreId};
pub(crate) use port::Port;
pub use proxy_service::{PendingSemaphore, ProxyService, ProxyServiceConfig, ServiceCounters};
pub use state::PortCounters;
