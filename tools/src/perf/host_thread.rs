//! A thread of the host on the cores beside a GPU, as a proxy's is, for bare loops.

use std::sync::mpsc::{self, Receiver, Sender};

use anyhow::{Context as _, Result, bail};
use aqueduct::Deadline;
use aqueduct::gpu::Context;
use aqueduct::proxy::{Proxy, ProxyConfig, ProxyHandler, ProxyHandlerResult};
use aqueduct_ptx::abi::ProxyTrigger;

/// A thread that does one job after the other and ends with the last handle.
pub(super) struct HostThread {
    jobs: Sender<Job>,
}

/// What a job gives, once it is done.
pub(super) struct Answer<T>(Receiver<T>);

type Job = Box<dyn FnOnce() + Send>;

impl HostThread {
    pub(super) fn start(context: &Context, deadline: Deadline) -> Result<Self> {
        let (jobs, queue) = mpsc::channel();
        // What a proxy's handler starts runs on the proxy's cores (pthread_create(3), "the new thread inherits a copy of its
        // creator's CPU affinity mask"); the proxy itself has done its part then.
        let proxy = Proxy::start(context, ProxyConfig::default(), Starter(Some(queue)))?;
        proxy.stop(deadline)?;
        Ok(Self { jobs })
    }

    /// Begins `job` when those before it are done.
    pub(super) fn begin<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Answer<T>> {
        let (tell, told) = mpsc::channel();
        let job = move || drop(tell.send(job()));
        self.jobs.send(Box::new(job)).ok().context("the thread beside the GPU has ended")?;
        Ok(Answer(told))
    }
}

impl<T> Answer<T> {
    pub(super) fn get(self, deadline: Deadline) -> Result<T> {
        match self.0.recv_timeout(deadline.remaining()) {
            Ok(answer) => Ok(answer),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                bail!("the host's side of the bare loop did not end in time")
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => bail!("the host's side of the bare loop panicked"),
        }
    }
}

struct Starter(Option<Receiver<Job>>);

impl ProxyHandler for Starter {
    fn init(&mut self) -> aqueduct::Result<()> {
        if let Some(queue) = self.0.take() {
            std::thread::spawn(move || queue.into_iter().for_each(|job| job()));
        }
        Ok(())
    }

    fn handle(&mut self, _: u64, _: &ProxyTrigger) -> aqueduct::Result<ProxyHandlerResult> {
        Ok(ProxyHandlerResult::Continue)
    }
}
