//! Noticing that this process is a forked child.
//!
//! Neither the CUDA driver nor the queues of a NIC survive fork(2): in the child every call is undefined, or reaches what
//! belongs to the parent. An atfork handler counts forks, so that the check before each call is one load and no system
//! call.

use std::sync::Once;

use crate::sync::raw::{AtomicU32, Ordering};

/// How many forks lie between the first process of this family and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The process that created something: its pid for messages, its fork generation for the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Creator {
    generation: u32,
    pub(crate) pid: u32,
}

impl Creator {
    /// The current process.
    pub(crate) fn current() -> Self {
        static REGISTER: Once = Once::new();
        REGISTER.call_once(|| {
            // SAFETY: the handler only adds to an atomic, which is async-signal-safe, and it lives as long as the
            // process. A failure (out of memory) leaves forks unnoticed, as without this module.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        Self { generation: GENERATION.load(Ordering::Relaxed), pid: std::process::id() }
    }

    /// Whether the current process is a forked child of this one.
    #[inline]
    pub(crate) fn forked(self) -> bool {
        GENERATION.load(Ordering::Relaxed) != self.generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_noticed_and_the_parent_is_not() {
        let creator = Creator::current();
        // SAFETY: the child only loads an atomic and leaves with _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: _exit is async-signal-safe.
            unsafe { libc::_exit(if creator.forked() { 7 } else { 1 }) };
        }
        assert!(child > 0);
        let mut status = 0;
        // SAFETY: `child` is ours and `status` is a live output.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 7);
        assert!(!creator.forked());
    }
}
