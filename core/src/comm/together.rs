//! Several ranks of one thread: their communicators made at once, and calls of all of them made at the same time.
#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc;
use std::thread;

use crate::bootstrap;
use crate::comm::communicator::Communicator;
use crate::comm::config::CommunicatorConfig;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::Context;
use crate::sync::{Mutex, lock};

impl Communicator {
    /// The communicators of all ranks of a group that lies in this process: rank n on `contexts[n]`, in this order
    /// (ncclCommInitAll). The ranks meet on threads that have ended when this returns.
    ///
    /// Calls for which ranks wait for each other are then made with [`together`]; everything else, such as launches
    /// and copies, for one rank after the other.
    ///
    /// # Errors
    /// `InvalidUsage` for no contexts; otherwise as for [`new`](Self::new). Of several errors, the one that came first.
    pub fn local(
        contexts: &[Context],
        config: CommunicatorConfig,
        deadline: impl Into<Deadline>,
    ) -> Result<Vec<Self>> {
        const OP: &str = "Communicator::local";
        let (size, deadline) = (u32::try_from(contexts.len()).unwrap_or(u32::MAX), deadline.into());
        if size == 0 {
            return Err(Error::usage(OP, "there are no contexts; give one for each rank"));
        }
        bootstrap::check_size(OP, size)?;
        // A rank that fails gives its bootstrap up, and so the others do not wait for it.
        let ranks = bootstrap::local(size).into_iter().zip(contexts).collect();
        at_once(OP, ranks, |(rank, context)| Self::new(rank, context, config.clone(), deadline), |_, _| {})
    }
}

/// Makes a call of several ranks of this process at the same time: runs `call` for each of `comms`, on a thread of
/// its own, and returns the results in the order of `comms` when all have ended. For calls in which ranks wait for
/// each other, which one thread cannot make one after the other: [`setup`](Communicator::setup),
/// `Collective::prepare`, [`split`](Communicator::split), [`shrink`](Communicator::shrink),
/// [`close`](Communicator::close) (ncclGroupStart and ncclGroupEnd).
///
/// The context of the communicator is current on its thread, for a program's own calls of the driver.
///
/// ```no_run
/// # use aqueduct::comm::{Communicator, Pending, RegisteredMemory, Transport, together};
/// # fn exchange(comms: &[Communicator], mine: &[RegisteredMemory]) -> aqueduct::Result<()> {
/// let received: Vec<Pending<RegisteredMemory>> = together(comms, |comm| {
///     let (rank, size) = (comm.rank(), comm.size());
///     comm.send_memory(&mine[rank as usize], (rank + 1) % size, 0)?;
///     let received = comm.recv_memory((rank + size - 1) % size, 0)?;
///     comm.setup(std::time::Duration::from_secs(30))?;
///     Ok(received)
/// })?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The error that `call` returned first. Its communicator is then aborted with this reason, so that no other rank and
/// no kernel waits for it; the others fail with `Aborted`. For a failure after which the group is to go on, return it
/// as a value: `together(&comms, |comm| Ok(comm.setup(deadline)))`. `System` if there are not enough threads; nothing
/// has been called then.
///
/// # Panics
/// If `call` panics, with the same panic, after all others have ended; its communicator is aborted, too.
pub fn together<T: Send>(
    comms: &[Communicator],
    call: impl Fn(&Communicator) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    const OP: &str = "together";
    let enter = |comm: &&Communicator| {
        let _entered = comm.context().enter()?;
        call(comm)
    };
    let give_up = |comm: &&Communicator, error: &Error| {
        // A closed or aborted communicator is left alone.
        if comm.check().is_ok() {
            comm.abort(format!("rank {} failed in {OP}: {error}", comm.rank()));
        }
    };
    at_once(OP, comms.iter().collect(), enter, give_up)
}

/// Runs `call` for all items at the same time, each on a thread of its own, and returns the results in order, or the
/// error that came first, an abort's only if there is no other. `failed` hears of each failure. An item is dropped after that.
fn at_once<I: Send, T: Send>(
    op: &'static str,
    items: Vec<I>,
    call: impl Fn(&I) -> Result<T> + Sync,
    failed: impl Fn(&I, &Error) + Sync,
) -> Result<Vec<T>> {
    let first = Mutex::new(None);
    let fail = |item: &I, error: Error| {
        // Noted before others can fail because of it. A rank that was only told to give up may be faster than the one that
        // told it.
        let mut first = lock(&first);
        let told = |known: &Error| known.kind() == ErrorKind::Aborted && error.kind() != ErrorKind::Aborted;
        if first.as_ref().is_none_or(told) {
            *first = Some(error.clone());
        }
        drop(first);
        failed(item, &error);
    };
    let run = |item: I| match catch_unwind(AssertUnwindSafe(|| call(&item))) {
        Ok(Ok(value)) => Ok(Some(value)),
        Ok(Err(error)) => {
            fail(&item, error);
            Ok(None)
        }
        Err(panic) => {
            fail(&item, Error::new(ErrorKind::Aborted, op, "the call of a rank panicked"));
            Err(panic)
        }
    };
    let ended = thread::scope(|scope| -> Result<Vec<thread::Result<Option<T>>>> {
        // Each waits for its item, so that nothing has begun if one thread is missing.
        let mut threads = Vec::new();
        for _ in &items {
            let (sender, receiver) = mpsc::channel();
            let run = &run;
            let body = move || receiver.recv().map_or(Ok(None), run);
            let thread = thread::Builder::new().name("aqueduct-rank".into()).spawn_scoped(scope, body);
            let no_thread =
                |error| Error::system(op, "cannot start a thread for each rank; see ulimit -u", error);
            threads.push((sender, thread.map_err(no_thread)?));
        }
        for ((sender, _), item) in threads.iter().zip(items) {
            // The thread waits for it, so this does not fail.
            let _ = sender.send(item);
        }
        Ok(threads.into_iter().map(|(_, thread)| thread.join().and_then(|ended| ended)).collect())
    })?;
    let mut values = Vec::new();
    for ended in ended {
        match ended {
            Ok(value) => values.extend(value),
            Err(panic) => resume_unwind(panic),
        }
    }
    match lock(&first).take() {
        Some(error) => Err(error),
        None => Ok(values),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::{AtomicU32, Ordering};

    #[test]
    fn results_come_in_order() {
        let gate = std::sync::Barrier::new(9);
        let all = at_once(
            "test",
            (0..9).collect(),
            |n| {
                gate.wait();
                Ok(n * n)
            },
            |_, _| unreachable!("none fails"),
        );
        assert_eq!(all.unwrap(), (0..9).map(|n| n * n).collect::<Vec<_>>());
        assert!(at_once("test", Vec::<u32>::new(), |_| Ok(()), |_, _| {}).unwrap().is_empty());
    }

    /// Rank 3 fails first, then 2, 1 and 0, each because the item of the one before is gone.
    #[test]
    fn the_error_is_noted_before_others_can_fail_because_of_it() {
        struct Item<'a>(u32, &'a AtomicU32);
        impl Drop for Item<'_> {
            fn drop(&mut self) {
                self.1.fetch_add(1, Ordering::SeqCst);
                if self.0 == 3 {
                    // Time for the others to fail.
                    thread::sleep(std::time::Duration::from_millis(100));
                }
            }
        }
        let (gone, told) = (AtomicU32::new(0), AtomicU32::new(0));
        let call = |Item(n, gone): &Item<'_>| {
            while gone.load(Ordering::SeqCst) < 3 - n {
                thread::yield_now();
            }
            Err::<(), _>(Error::usage("test", format!("rank {n} failed")))
        };
        let failed = |Item(n, _): &Item<'_>, error: &Error| {
            assert_eq!(error.message(), format!("rank {n} failed"));
            told.fetch_add(1, Ordering::SeqCst);
        };
        let items = (0..4).map(|n| Item(n, &gone)).collect();
        let error = at_once("test", items, call, failed).unwrap_err();
        assert_eq!((error.message(), told.load(Ordering::SeqCst)), ("rank 3 failed", 4));
    }

    #[test]
    fn a_panic_is_told_of_as_a_failure_and_goes_on_when_all_have_ended() {
        let told = AtomicU32::new(0);
        let call = |n: &u32| {
            assert!(*n != 1, "rank 1 panics");
            while told.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            Ok(())
        };
        let failed = |n: &u32, _: &Error| {
            assert_eq!(*n, 1);
            told.fetch_add(1, Ordering::SeqCst);
        };
        let all = catch_unwind(AssertUnwindSafe(|| at_once("test", (0..3).collect(), call, failed)));
        assert_eq!(all.unwrap_err().downcast_ref::<&str>(), Some(&"rank 1 panics"));
    }
}
