//! The word that says whether memory which others have mapped may still be read.
//!
//! The owner sets it when it exposes the memory and clears it when it revokes that. A reader looks before and after it copies. What the
//! owner writes after it has revoked is never taken for data: a reader that sees any of it also sees the cleared word.
//!
//! Each side needs a fence for this promise, as in a sequence lock. The owner's stands between clearing the word and every later write, the
//! reader's between its copy and the second look. A word is never set to the same number again, so it cannot look
//! untouched.
#![forbid(unsafe_code)]

use crate::sync::{Ordering, fence};

/// The value of a word whose memory is not exposed.
pub(super) const REVOKED: u64 = 0;

/// Orders a revocation that this thread has made, or has been told of, before its next writes to the memory.
#[inline]
pub(super) fn before_writing() {
    fence(Ordering::Release); // SYNC message.revoked (owner)
}

/// Orders what was copied from the memory before the next look at the word.
#[inline]
pub(super) fn after_copying() {
    fence(Ordering::Acquire); // SYNC message.revoked (reader)
}

/// Runs `copy` if the word, as `load` loads it, is `serial`. True if it still is afterwards: then the copy has nothing that was
/// written after a revocation.
#[inline]
pub(super) fn copy_valid<E>(
    load: impl Fn() -> Result<u64, E>,
    serial: u64,
    copy: impl FnOnce() -> Result<(), E>,
) -> Result<bool, E> {
    if load()? != serial {
        return Ok(false);
    }
    copy()?;
    after_copying();
    Ok(load()? == serial)
}

#[cfg(all(test, loom))]
mod models {
    use std::convert::Infallible;

    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::sync::AtomicU64;

    /// One thread revokes and tells another one, which writes two words of data; a third one reads them.
    fn model(with_fence: bool) {
        loom::model(move || {
            let memory = Arc::new([const { () }; 3].map(|()| AtomicU64::new(7)));
            let owner = memory.clone();
            let writer = thread::spawn(move || {
                let [word, first, second] = &*owner;
                word.store(REVOKED, Ordering::Relaxed);
                if with_fence {
                    before_writing();
                }
                first.store(9, Ordering::Relaxed);
                second.store(9, Ordering::Relaxed);
            });
            let [word, first, second] = &*memory;
            let mut read = [0; 2];
            let load = || Ok::<_, Infallible>(word.load(Ordering::Relaxed));
            let valid = copy_valid(load, 7, || {
                read = [second.load(Ordering::Relaxed), first.load(Ordering::Relaxed)];
                Ok(())
            });
            assert!(valid == Ok(false) || read == [7, 7], "data from after the revocation: {read:?}");
            writer.join().unwrap();
        });
    }

    #[test]
    fn loom_data_written_after_a_revocation_is_not_taken() {
        model(true);
    }

    #[test]
    #[should_panic(expected = "data from after the revocation")]
    fn loom_without_the_owner_s_fence_it_would_be() {
        model(false);
    }
}
