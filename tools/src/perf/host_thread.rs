//! A host thread on the CPU cores near a GPU, where a proxy's thread runs too. Bare loops use it.

use std::sync::mpsc::{self, Receiver, Sender};

use anyhow::{Context as _, Result, bail};
use aqueduct::Deadline;
use aqueduct::gpu::Context;
use aqueduct::proxy::{Proxy, ProxyConfig, ProxyHandler, ProxyHandlerResult};
use aqueduct_ptx::abi::ProxyTrigger;

/// A thread that runs jobs one after the other. It ends when the last handle is dropped.
pub(super) struct HostThread {
    jobs: Sender<Job>,
}

/// The result of a job, available once the job has run.
pub(super) struct Answer<T>(Receiver<T>);

type Job = Box<dyn FnOnce() + Send>;

impl HostThread {
    pub(super) fn start(context: &Context, deadline: Deadline) -> Result<Self> {
        let (jobs, queue) = mpsc::channel();
        // A thread started from a proxy's handler inherits the proxy's cores (pthread_create(3), "the new thread
        // inherits a copy of its creator's CPU affinity mask"). The proxy itself is not needed after that.
        let proxy = Proxy::start(context, ProxyConfig::default(), Starter(Some(queue)))?;
        proxy.stop(deadline)?;
        Ok(Self { jobs })
    }

    /// Queues `job` behind the jobs before it.
    pub(super) fn begin<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Answer<T>> {
        let (tell, told) = mpsc::channel();
        let job = move || drop(tell.send(job()));
        self.jobs.send(Box::new(job)).ok().context("the host thread of the bare loop has ended")?;
        Ok(Answer(told))
    }
}

impl<T> Answer<T> {
    pub(super) fn get(self, deadline: Deadline) -> Result<T> {
        match self.0.recv_timeout(deadline.remaining()) {
            Ok(answer) => Ok(answer),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                bail!("the host thread of the bare loop did not finish before the deadline")
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => bail!("the host thread of the bare loop panicked"),
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
