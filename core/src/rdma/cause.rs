//! Why queue pairs have failed, told once it is known.

use std::time::{Duration, Instant};

use super::completion::Failure;

/// How long the request that failed may complete after another one that was flushed because of it.
const LATER: Duration = Duration::from_millis(50);

/// The first failure of a link's queue pairs. The requests and the receives of a queue pair, and different queue pairs, complete in their
/// own orders (InfiniBand Architecture Specification, volume 1, chapter 10): what was flushed may be polled before the request whose failure
/// flushed it, and says nothing by itself.
#[derive(Debug, Default)]
pub(crate) struct Cause {
    first: Option<Failure>,
    /// When the first one was seen, if it was flushed.
    since: Option<Instant>,
}

impl Cause {
    /// Takes a completion's failure: the first counts, or the first that was not flushed.
    pub(crate) fn add(&mut self, failure: Failure) {
        if self.first.is_none_or(|known| known.is_flushed() && !failure.is_flushed()) {
            self.since = failure.is_flushed().then(Instant::now);
            self.first = Some(failure);
        }
    }

    /// Whether a request has failed: nothing that is posted is executed any more.
    pub(crate) fn has_failed(&self) -> bool {
        self.first.is_some()
    }

    /// The failure, if it is known: one that was flushed counts only once no other has come for a while.
    pub(crate) fn known(&self) -> Option<Failure> {
        self.first.filter(|_| self.since.is_none_or(|since| since.elapsed() >= LATER))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::Status;

    const fn failure(status: Status) -> Failure {
        Failure { status, vendor: 0 }
    }

    #[test]
    fn what_was_flushed_waits_for_its_cause() {
        let mut cause = Cause::default();
        assert!(!cause.has_failed() && cause.known().is_none());
        cause.add(failure(Status::FLUSHED));
        assert!(cause.has_failed() && cause.known().is_none());
        cause.add(failure(Status::RETRIES_EXCEEDED));
        cause.add(failure(Status::FLUSHED));
        cause.add(failure(Status(1)));
        assert_eq!(cause.known(), Some(failure(Status::RETRIES_EXCEEDED)));
    }

    #[test]
    fn what_was_flushed_counts_if_nothing_else_comes() {
        let mut cause = Cause::default();
        cause.add(failure(Status::FLUSHED));
        let first = cause.since;
        cause.add(failure(Status::FLUSHED));
        assert_eq!(cause.since, first, "more of them do not put it off");
        cause.since = Instant::now().checked_sub(LATER);
        assert_eq!(cause.known(), Some(failure(Status::FLUSHED)));
    }
}
