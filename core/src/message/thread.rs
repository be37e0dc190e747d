//! A thread that makes progress and dispatches, for programs that do not want to.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::sync::{AtomicBool, Ordering};

/// A thread of a messenger.
#[derive(Debug)]
pub(super) struct Runner {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Runner {
    /// Runs `turn`, which sleeps if there is nothing to do, again and again.
    pub(super) fn start(turn: impl Fn() -> Result<()> + Send + 'static) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let run = move || {
            while !stopped.load(Ordering::Acquire) {
                if let Err(error) = turn() {
                    log::error!("the thread of a messenger ends: {error}");
                    return;
                }
            }
        };
        let builder = std::thread::Builder::new().name("aq-progress".into());
        let failed = |error| Error::system("start_thread", "cannot start a thread", error);
        Ok(Self { stop, thread: builder.spawn(run).map_err(failed)? })
    }

    /// Ends the threads after what they do now, and waits for that; `wake` ends their sleep.
    pub(super) fn stop_all(all: Vec<Self>, wake: impl Fn()) {
        // First, so that they end at the same time.
        all.iter().for_each(|runner| runner.stop.store(true, Ordering::Release));
        all.into_iter().for_each(|runner| runner.join(&wake));
    }

    fn join(self, wake: impl Fn()) {
        if self.thread.thread().id() == std::thread::current().id() {
            // A callback dropped the last handle of its own messenger: the thread ends after it.
            return;
        }
        while !self.thread.is_finished() {
            // Again and again: it may have been about to fall asleep.
            wake();
            std::thread::sleep(Duration::from_millis(1));
        }
        if self.thread.join().is_err() {
            log::error!("the thread of a messenger ended with a panic");
        }
    }
}
