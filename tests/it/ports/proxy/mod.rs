//! Proxies with user-defined handlers.

mod full;
mod handlers;
mod stops;
mod thread;

use std::sync::{Arc, Mutex};

use aqueduct::gpu::{Context, DeviceSlice, Stream};
use aqueduct::proxy::{Proxy, ProxyConfig, ProxyHandler, ProxyHandlerResult, ProxyTrigger};
use aqueduct::{Error, ErrorKind, Result};
use aqueduct_ptx::oracle::fifo::Arrivals;

use super::kernels::{Kernels, Report};
use crate::group::soon;

/// A proxy that runs `handle`, and the stream, kernel and memory to push to it.
struct Job {
    proxy: Proxy,
    stream: Stream,
    kernels: Kernels,
    report: Report,
}

impl Job {
    fn new(context: &Context, config: ProxyConfig, handler: impl ProxyHandler) -> Self {
        let (kernels, report) = (Kernels::load(context), Report::new(context));
        let proxy = Proxy::start(context, config, handler).unwrap();
        Self { proxy, stream: Stream::new(context).unwrap(), kernels, report }
    }

    fn push(&self, blocks: u32, threads: u32, count: u32) {
        self.push_with(blocks, threads, count, 0);
    }

    fn push_with(&self, blocks: u32, threads: u32, count: u32, cells: u64) {
        let fifo = self.proxy.fifo();
        self.kernels.push(&self.stream, &fifo, (blocks, threads), count, cells, &self.report);
        self.stream.retain_all(self.proxy.keep_alive()).unwrap();
    }

    /// Waits for the kernel and returns its status.
    fn left(&self) -> u32 {
        self.stream.synchronize(soon()).unwrap();
        self.report.status()
    }

    /// Number of positions that kernels have taken so far.
    fn taken(&self) -> u64 {
        let (head, [keep, _]) = (self.proxy.fifo().head, self.proxy.keep_alive());
        // SAFETY: the head is 8 bytes of the FIFO's memory, which `keep` keeps.
        let head = unsafe { DeviceSlice::from_raw(self.stream.context(), head, 8, keep) };
        let mut words = [0_u32; 2];
        head.download(0, &mut words, soon()).unwrap();
        u64::from(words[0])
    }

    /// Waits until `count` triggers have been handled.
    fn handled(&self, count: u64) {
        let deadline = soon();
        while self.proxy.counters().triggers < count {
            deadline.check("counters", "triggers").unwrap();
            std::thread::yield_now();
        }
    }
}

/// A handler that counts every trigger.
fn noting(
    arrivals: &Arc<Mutex<Arrivals>>,
) -> impl FnMut(&ProxyTrigger) -> Result<ProxyHandlerResult> + Send + use<> {
    let arrivals = arrivals.clone();
    move |trigger: &ProxyTrigger| {
        let taken = arrivals.lock().unwrap().take(trigger);
        taken.map_err(|wrong| Error::new(ErrorKind::Internal, "test", wrong))?;
        Ok(ProxyHandlerResult::Continue)
    }
}
