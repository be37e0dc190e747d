//! Loads the kernels of all plans of a preparation, several at a time: a driver's compiler takes 0.2 to 0.6 s for each.

use std::path::Path;
use std::thread::{self, Builder};

use aqueduct_ptx::plan::Kernel;

use crate::channel::load_plan;
use crate::comm::Communicator;
use crate::error::Result;
use crate::gpu::{Context, Function};
use crate::processors;
use crate::sync::{AtomicUsize, Mutex, Ordering, lock};

/// The most threads that compile for one rank. Each takes some 100 MB meanwhile.
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

impl<'a> Loader<'a> {
    /// For this rank, which leaves their part of the processors to the other ranks of its host: they compile at the same time.
    pub(super) fn of(comm: &'a Communicator) -> Self {
        let peers = comm.peers();
        let mine = &peers[comm.rank() as usize];
        let ranks = peers.iter().filter(|peer| peer.same_host(mine)).count();
        let threads = processors::share(ranks);
        Self { context: comm.context(), cache: comm.config().cache.as_deref(), threads }
    }

    /// The functions of `kernels`, in their order. Begins none once `check` fails.
    ///
    /// # Errors
    /// The first, in the order of kernels, of `check` or of [`load_plan`].
    pub(super) fn load(
        &self,
        kernels: &[&Kernel],
        check: impl Fn() -> Result<()> + Sync,
    ) -> Result<Vec<Function>> {
        let threads = self.threads.clamp(1, MOST).min(kernels.len());
        let places: Vec<Mutex<Option<Result<Function>>>> = kernels.iter().map(|_| Mutex::default()).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            while let nth = next.fetch_add(1, Ordering::Relaxed)
                && let Some(kernel) = kernels.get(nth)
            {
                let loaded = check().and_then(|()| load_plan(self.context, kernel, self.cache, threads > 1));
                if loaded.is_err() {
                    // Whatever is before this one has been taken.
                    next.store(kernels.len(), Ordering::Relaxed);
                }
                *lock(&places[nth]) = Some(loaded);
            }
        };
        thread::scope(|scope| {
            let name = || Builder::new().name("aqueduct-load".into());
            // Where the system has no more threads, those that there are load everything.
            let _started = (1..threads).take_while(|_| name().spawn_scoped(scope, work).is_ok()).count();
            work();
        });
        let loaded =
            places.into_iter().map_while(|place| place.into_inner().unwrap_or_else(|e| e.into_inner()));
        loaded.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::thread::ThreadId;

    use super::*;
    use crate::deadline::{Backoff, Deadline};
    use crate::error::Error;
    use crate::gpu::{Device, Driver};
    use crate::plan::run::compile::kernels;
    use crate::plan::run::{ExecutorConfig, ir::Plan};
    use crate::plan::{Element, samples};

    fn context() -> Context {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        Context::new(&Device::all(&driver).unwrap()[0]).unwrap()
    }

    /// The kernels of an all-reduce for eight types, which have one name and differ in what they do.
    fn eight(plan: &Plan) -> Vec<Kernel> {
        let elements = [Element::F32, Element::F64, Element::F16, Element::Bf16];
        let elements = elements.into_iter().chain([Element::I32, Element::U32, Element::I64, Element::U64]);
        let config = ExecutorConfig::default().with_variants(elements.map(|element| (element, None)));
        kernels(plan, 0, &config, &[]).unwrap().kernels().cloned().collect()
    }

    #[test]
    fn as_many_threads_as_allowed_load_at_a_time() {
        let (context, plan) = (context(), samples::one_shot(2, false));
        let (wanted, seen) = (eight(&plan), Mutex::new(HashSet::<ThreadId>::new()));
        let wanted: Vec<_> = wanted.iter().collect();
        for threads in [0, 1, 3] {
            lock(&seen).clear();
            let loader = Loader { context: &context, cache: None, threads };
            // Each thread keeps its first kernel until all of them have one.
            let check = || {
                let (soon, mut backoff) =
                    (Deadline::after(std::time::Duration::from_secs(60)), Backoff::new());
                lock(&seen).insert(thread::current().id());
                while lock(&seen).len() < threads {
                    soon.check("load", "the other threads")?;
                    backoff.pause(soon);
                }
                Ok(())
            };
            let loaded = loader.load(&wanted, check).unwrap();
            assert_eq!(lock(&seen).len(), threads.max(1));
            assert_eq!(loaded.len(), wanted.len());
        }
    }

    #[test]
    fn functions_come_in_the_order_of_their_kernels() {
        let (context, plan) = (context(), samples::one_shot(2, false));
        let mut wanted = eight(&plan);
        for (nth, kernel) in wanted.iter_mut().enumerate() {
            kernel.symbol = format!("number_{nth}");
        }
        let loader = Loader { context: &context, cache: None, threads: 3 };
        let loaded = loader.load(&wanted.iter().collect::<Vec<_>>(), || Ok(())).unwrap();
        let names: Vec<_> = loaded.iter().map(Function::name).collect();
        let symbols: Vec<_> = wanted.iter().map(|kernel| kernel.symbol.as_str()).collect();
        assert_eq!(names, symbols);
    }

    #[test]
    fn the_first_failure_is_told_and_nothing_begins_behind_it() {
        let (context, plan) = (context(), samples::one_shot(2, false));
        let wanted = eight(&plan);
        for threads in [1, 3] {
            let loader = Loader { context: &context, cache: None, threads };
            let asked = AtomicUsize::new(0);
            let check = || match asked.fetch_add(1, Ordering::Relaxed) {
                0..3 => Ok(()),
                nth => Err(Error::timeout("load", format!("check {nth}"))),
            };
            let error = loader.load(&wanted.iter().collect::<Vec<_>>(), check).unwrap_err();
            assert!(error.message().starts_with("check "), "{error}");
            // Those that other threads had begun meanwhile.
            assert!(asked.into_inner() <= 3 + threads);
        }
    }
}
