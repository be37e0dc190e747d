//! Reports of a device about queue pairs and completion queues, kept for the links that they belong to.
//!
//! Any link that looks at the device reads the reports of all: each one goes to the link that watches what it is about. A peer causes some
//! of them as often as it likes, for instance by reads that are refused, so they are counted for each link, and not all of them are logged.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::rdma::{About, AsyncEvent, CompletionQueue, Context};
use crate::sync::{AtomicU64, Mutex, OnceLock, Ordering, lock};

/// The reports of one device.
#[derive(Debug, Default)]
pub(super) struct Reports {
    watched: Mutex<HashMap<About, Arc<Heard>>>,
}

/// A link, whose reports are counted together.
#[derive(Clone, Debug)]
pub(super) struct Link {
    reports: Arc<Reports>,
    count: Arc<AtomicU64>,
}

/// The reports about one queue pair and its completion queue.
#[derive(Debug)]
struct Heard {
    failure: OnceLock<Error>,
    count: Arc<AtomicU64>,
}

/// Hears the reports of a queue pair as long as it lives.
#[derive(Debug)]
pub(super) struct Watch {
    link: Link,
    about: Vec<About>,
    heard: Arc<Heard>,
}

impl Reports {
    /// A new link.
    pub(super) fn link(self: &Arc<Self>) -> Link {
        Link { reports: self.clone(), count: Arc::default() }
    }

    /// The numbers of the queue pairs that are watched.
    #[cfg(all(test, not(loom)))]
    pub(super) fn queue_pairs(&self) -> Vec<u32> {
        let number = |about: &About| match about {
            About::QueuePair(number) => Some(*number),
            _ => None,
        };
        lock(&self.watched).keys().filter_map(number).collect()
    }

    /// The next report of `context` that is about no link, if there is one; keeps those before it for their links.
    pub(super) fn next(&self, context: &Context) -> Result<Option<AsyncEvent>> {
        loop {
            // Locked until the link has it: a number may name another queue pair as soon as the link has let go of this one.
            let watched = lock(&self.watched);
            let Some(event) = context.next_event()? else { return Ok(None) };
            let heard = watched.get(&event.about).cloned();
            if let Some(heard) = &heard
                && let Some(error) = event.error()
            {
                let _ = heard.failure.set(error);
            }
            drop(watched);
            match (heard, event.about) {
                (Some(heard), _) => heard.log(context.device().name(), &event),
                (None, About::QueuePair(_) | About::CompletionQueue(_)) => {
                    log::debug!("{}: {event}; its link has ended", context.device().name());
                }
                (None, _) => return Ok(Some(event)),
            }
        }
    }
}

impl Heard {
    /// Logs the first reports of a link, and of many ones ever fewer.
    fn log(&self, device: &str, event: &AsyncEvent) {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if event.error().is_some() && count.is_power_of_two() {
            log::warn!("{device}: {event} (report {count} of this link)");
        } else {
            log::debug!("{device}: {event} (report {count} of this link)");
        }
    }
}

impl Link {
    /// Watches queue pair `number` of the link, and `completions` if that queue is its own.
    pub(super) fn watch(&self, number: u32, completions: Option<&CompletionQueue>) -> Watch {
        let heard = Arc::new(Heard { failure: OnceLock::default(), count: self.count.clone() });
        let queue = completions.map(|queue| About::CompletionQueue(queue.number()));
        let about: Vec<About> = [About::QueuePair(number)].into_iter().chain(queue).collect();
        lock(&self.reports.watched).extend(about.iter().map(|about| (*about, heard.clone())));
        Watch { link: self.clone(), about, heard }
    }
}

impl Watch {
    /// The link of the queue pair.
    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    /// The first error that was reported.
    pub(super) fn failure(&self) -> Option<Error> {
        self.heard.failure.get().cloned()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watched = lock(&self.link.reports.watched);
        for about in &self.about {
            // A later one may have the same number.
            if watched.get(about).is_some_and(|heard| Arc::ptr_eq(heard, &self.heard)) {
                watched.remove(about);
            }
        }
    }
}
