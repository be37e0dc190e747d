//! Loads the kernels of all plans of a preparation, several at a time: a driver's compiler takes some tenths of a second for each.

use std::path::Path;
use std::thread::{self, Builder};

use aqueduct_ptx::plan::Kernel;

use crate::channel::load_plan;
use crate::comm::Communicator;
use crate::error::Result;
use crate::gpu::{Context, Function, ThreadCaptureMode};
use crate::processors;
use crate::sync::{AtomicUsize, Mutex, Ordering, lock};

/// The most threads that compile for one rank: each takes memory meanwhile.
const MOST: usize = 16;

/// Where kernels are loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loader<'a> {
    pub(super) context: &'a Context,
    /// The folder of compiled kernels.
    pub(super) cache: Option<&'a Path>,
    /// How many threads may load, the calling one among them.
    pub(super) threads: usize,
}

/// A kernel to load: what it does, and how many threads its blocks have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) threads: u32,
}

impl<'a> Loader<'a> {
    /// For this rank, which leaves other ranks of its host that may use the same processors their part: they compile at the same time.
    pub(super) fn of(comm: &'a Communicator) -> Self {
        let mine = &comm.peers()[comm.rank() as usize];
        let others = comm.peers().iter().filter(|peer| peer.rank != mine.rank && peer.same_host(mine));
        let others = others.map(|peer| peer.pid_beside(mine));
        let threads = processors::share(others);
        Self { context: comm.context(), cache: comm.config().cache.as_deref(), threads }
    }

    /// The functions of `wanted`, in their order. Begins none once `check` fails.
    ///
    /// # Errors
    /// The first, in the order of kernels, of `check` or of [`load_plan`].
    pub(super) fn load(
        &self,
        wanted: &[Wanted<'_>],
        check: impl Fn() -> Result<()> + Sync,
    ) -> Result<Vec<Function>> {
        let threads = self.threads.clamp(1, MOST).min(wanted.len());
        let places: Vec<Mutex<Option<Result<Function>>>> = wanted.iter().map(|_| Mutex::default()).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            while let nth = next.fetch_add(1, Ordering::Relaxed)
                && let Some(wanted) = wanted.get(nth)
            {
                let loaded = check().and_then(|()| self.load_one(*wanted, threads > 1));
                if loaded.is_err() {
                    // Whatever is before this one has been taken.
                    next.store(places.len(), Ordering::Relaxed);
                }
                *lock(&places[nth]) = Some(loaded);
            }
        };
        // A stream that another thread captures forbids the others the same calls as it does the caller.
        let driver = self.context.driver();
        let mode = ThreadCaptureMode::current(driver)?;
        let help = || {
            if let Ok(_mode) = ThreadCaptureMode::set(driver, mode) {
                work();
            }
        };
        thread::scope(|scope| {
            let name = || Builder::new().name("aqueduct-load".into());
            // Where the system has no more threads, those that there are load everything.
            let _started = (1..threads).take_while(|_| name().spawn_scoped(scope, help).is_ok()).count();
            work();
        });
        let loaded =
            places.into_iter().map_while(|place| place.into_inner().unwrap_or_else(|e| e.into_inner()));
        loaded.collect()
    }

    fn load_one(&self, wanted: Wanted<'_>, others: bool) -> Result<Function> {
        let Wanted { kernel, threads } = wanted;
        if threads == kernel.threads {
            return load_plan(self.context, kernel, self.cache, others);
        }
        let kernel = Kernel { threads, ..kernel.clone() };
        load_plan(self.context, &kernel, self.cache, others)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::thread::ThreadId;
    use std::time::Duration;

    use cuda_driver_sys::CUstreamCaptureMode;

    use super::*;
    use crate::deadline::{Backoff, Deadline};
    use crate::error::Error;
    use crate::gpu::{Device, Driver};
    use crate::plan::run::ExecutorConfig;
    use crate::plan::run::compile::kernels;
    use crate::plan::{Element, samples};

    fn context() -> Context {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        Context::new(&Device::all(&driver).unwrap()[0]).unwrap()
    }

    /// The kernels of an all-reduce for eight types.
    fn eight() -> Vec<Kernel> {
        let elements = [Element::F32, Element::F64, Element::F16, Element::Bf16];
        let elements = elements.into_iter().chain([Element::I32, Element::U32, Element::I64, Element::U64]);
        let config = ExecutorConfig::default().with_variants(elements.map(|element| (element, None)));
        let uncompiled = kernels(&samples::one_shot(2, false), 0, &config, &[]).unwrap();
        uncompiled.kernels().map(|wanted| wanted.kernel.clone()).collect()
    }

    fn wanted(kernels: &[Kernel]) -> Vec<Wanted<'_>> {
        kernels.iter().map(|kernel| Wanted { kernel, threads: kernel.threads }).collect()
    }

    #[test]
    fn as_many_threads_as_allowed_load_at_a_time_and_in_the_callers_capture_mode() {
        let (context, kernels) = (context(), eight());
        let driver = context.driver();
        let seen = Mutex::new(HashSet::<ThreadId>::new());
        let _relaxed = ThreadCaptureMode::relaxed(driver).unwrap();
        for threads in [0, 1, 3] {
            lock(&seen).clear();
            let loader = Loader { context: &context, cache: None, threads };
            // Each thread keeps its first kernel until all of them have one.
            let check = || {
                let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
                assert_eq!(ThreadCaptureMode::current(driver)?, relaxed);
                let (soon, mut backoff) = (Deadline::after(Duration::from_secs(60)), Backoff::new());
                lock(&seen).insert(thread::current().id());
                while lock(&seen).len() < threads {
                    soon.check("load", "the other threads")?;
                    backoff.pause(soon);
                }
                Ok(())
            };
            let loaded = loader.load(&wanted(&kernels), check).unwrap();
            assert_eq!((lock(&seen).len(), loaded.len()), (threads.max(1), kernels.len()));
        }
    }

    #[test]
    fn functions_come_in_the_order_of_their_kernels() {
        let (context, mut kernels) = (context(), eight());
        for (nth, kernel) in kernels.iter_mut().enumerate() {
            kernel.symbol = format!("number_{nth}");
        }
        let loader = Loader { context: &context, cache: None, threads: 3 };
        let loaded = loader.load(&wanted(&kernels), || Ok(())).unwrap();
        let names: Vec<_> = loaded.iter().map(Function::name).collect();
        let symbols: Vec<_> = kernels.iter().map(|kernel| kernel.symbol.as_str()).collect();
        assert_eq!(names, symbols);
    }

    #[test]
    fn the_first_failure_is_told_and_nothing_begins_behind_it() {
        let (context, kernels) = (context(), eight());
        for threads in [1, 3] {
            let loader = Loader { context: &context, cache: None, threads };
            let asked = AtomicUsize::new(0);
            let check = || match asked.fetch_add(1, Ordering::Relaxed) {
                0..3 => Ok(()),
                nth => Err(Error::timeout("load", format!("check {nth}"))),
            };
            let error = loader.load(&wanted(&kernels), check).unwrap_err();
            if threads == 1 {
                assert_eq!(error.message(), "check 3");
            }
            // Those that other threads had begun meanwhile.
            assert!(asked.into_inner() <= 3 + threads, "{error}");
        }
        // Of several, that of the first kernel, whoever is quicker.
        let mut broken = kernels.clone();
        broken[2].symbol = "0 is no name".into();
        broken[3].symbol = "neither is 0".into();
        let first = Loader { context: &context, cache: None, threads: 1 };
        let expected = first.load(&wanted(&broken[2..3]), || Ok(())).unwrap_err().to_string();
        let loader = Loader { context: &context, cache: None, threads: 3 };
        for _ in 0..20 {
            assert_eq!(loader.load(&wanted(&broken), || Ok(())).unwrap_err().to_string(), expected);
        }
    }
}
