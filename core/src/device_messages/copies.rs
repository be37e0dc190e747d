//! Copies of a device in one stream, and what they use, until each has ended.

use std::collections::VecDeque;
use std::sync::Arc;

use super::blocks::Block;
use crate::error::{Error, Result};
use crate::gpu::{Context, DeviceSlice, Event, KeepAlive, Stream};
use crate::message::device::Underway;
use crate::message::guarding::drop_guarded;
use crate::sync::{Mutex, lock};

/// Copies that wait for somebody who looks, beyond which the next one looks itself.
const MANY: usize = 32;

/// A stream, and what its copies use. The stream retains nothing itself: it would drop that in whatever copy comes later, whose caller has
/// locks, and the last ones not before another copy comes.
pub(super) struct Copies {
    stream: Stream,
    lists: Mutex<Lists>,
}

#[derive(Default)]
struct Lists {
    /// In the order of the stream.
    under_way: VecDeque<UnderWay>,
    /// Owners of memory that copies used which have ended. Their drop may be the program's code.
    used: Vec<KeepAlive>,
}

/// A copy that the device has been asked for, with the memory that it uses.
struct UnderWay {
    end: Arc<End>,
    owners: [KeepAlive; 2],
    block: Option<Arc<Block>>,
}

/// What tells that a copy has ended.
enum End {
    Event(Event),
    /// Its event could not be recorded: it has ended when its stream has nothing to do.
    Idle(Stream),
}

/// A copy under way. Dropping it changes nothing for the device: what it uses is in the list of its stream.
pub(super) struct Copy {
    end: Arc<End>,
}

impl Copies {
    /// # Errors
    /// A driver error.
    pub(super) fn new(context: &Context) -> Result<Self> {
        Ok(Self { stream: Stream::new(context)?, lists: Mutex::default() })
    }

    pub(super) fn context(&self) -> &Context {
        self.stream.context()
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Begins to copy `from` to `to`, of the same length, from or to `block` if there is one. Nobody else gets the block before that has
    /// ended. `None` while memory of the device is being freed, for which a copy would wait.
    ///
    /// # Errors
    /// A driver error: then nothing is under way.
    pub(super) fn begin(
        &self,
        to: &DeviceSlice,
        from: &DeviceSlice,
        block: Option<Arc<Block>>,
    ) -> Result<Option<Copy>> {
        if to.len() != from.len() {
            let text = format!("{} bytes are to be copied to {}", from.len(), to.len());
            return Err(Error::usage("read", text));
        }
        if lock(&self.lists).under_way.len() >= MANY {
            self.look();
        }
        let event = Event::new(self.stream.context())?;
        // SAFETY: both slices name memory that their owners keep accessible. The caller has both until this returns, and the list has both
        // owners, and the block, from then on until the copy has ended.
        if !unsafe { self.stream.try_copy(to.ptr(), from.ptr(), to.len()) }? {
            return Ok(None);
        }
        // From here on the device may write, so the caller is told of a copy in any case.
        let end = match event.record(&self.stream) {
            Ok(()) => End::Event(event),
            Err(error) => {
                log::warn!("the end of a copy is known only when the device has nothing to do: {error}");
                End::Idle(self.stream.clone())
            }
        };
        let end = Arc::new(end);
        let owners = [to, from].map(|slice| slice.keep_alive().clone());
        lock(&self.lists).under_way.push_back(UnderWay { end: end.clone(), owners, block });
        Ok(Some(Copy { end }))
    }

    /// Frees the blocks of copies that have ended. Owners of memory stay until somebody [reaps](Self::reap): callers may have locks.
    pub(super) fn look(&self) {
        // Dropped without the lock: a block takes another one.
        let mut blocks = Vec::new();
        let mut lists = lock(&self.lists);
        while let Some(first) = lists.under_way.front() {
            let ended = first.end.is_reached();
            if matches!(ended, Ok(false)) {
                break;
            }
            let Some(UnderWay { end, owners, block }) = lists.under_way.pop_front() else { break };
            blocks.push((end, block));
            match ended {
                // A failed device copies nothing any more, but nobody knows whether others use what it used.
                Err(error) => {
                    log::error!("leaking what a copy used: {error}");
                    std::mem::forget(owners);
                }
                Ok(_) => {
                    for owner in owners {
                        // Reads in a row use the same memory.
                        if !lists.used.iter().rev().take(2).any(|used| Arc::ptr_eq(used, &owner)) {
                            lists.used.push(owner);
                        }
                    }
                }
            }
        }
        drop(lists);
        drop(blocks);
    }

    /// Drops the owners of memory that no copy uses any more. Runs code of the program's, so the caller holds no lock.
    pub(super) fn reap(&self) {
        self.look();
        let used = std::mem::take(&mut lock(&self.lists).used);
        used.into_iter().for_each(drop_guarded);
    }

    /// Whether [`reap`](Self::reap) has something to drop, now or later.
    pub(super) fn has_any(&self) -> bool {
        let lists = lock(&self.lists);
        !lists.under_way.is_empty() || !lists.used.is_empty()
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.reap();
        let rest = std::mem::take(&mut lock(&self.lists).under_way);
        if rest.is_empty() {
            return;
        }
        // The stream is dropped next, and leaves what its work uses to its context until that has ended.
        let what = rest.into_iter().flat_map(|UnderWay { owners, block, .. }| {
            owners.into_iter().chain(block.map(|block| block as KeepAlive))
        });
        if let Err(error) = self.stream.retain_all(what) {
            log::warn!("a device still copies: {error}");
        }
    }
}

impl End {
    fn is_reached(&self) -> Result<bool> {
        match self {
            Self::Event(event) => event.is_done(),
            Self::Idle(stream) => stream.is_idle(),
        }
    }
}

impl Copy {
    /// Whether it has ended.
    pub(super) fn is_done(&self) -> Result<bool> {
        self.end.is_reached().map_err(|error| error.of("read"))
    }
}

impl Underway for Copy {
    fn is_done(&mut self) -> Result<bool> {
        Self::is_done(self)
    }
}
