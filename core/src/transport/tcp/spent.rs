//! Memory that a connection's operations no longer use.

use std::sync::Arc;

use super::super::service::Disposer;
use super::piece::Payload;
use crate::memory::{Place, Remote};

/// Memory that operations no longer use. Its drop may wait for the device, and may end the communicator.
#[derive(Default)]
pub(super) struct Spent {
    pub(super) places: Vec<Place>,
    pub(super) remotes: Vec<Arc<Remote>>,
}

impl Spent {
    /// Has everything dropped by threads that may block.
    pub(super) fn dispose(self, disposer: &Disposer) {
        if !self.places.is_empty() {
            disposer.free(Arc::new(self.places));
        }
        if !self.remotes.is_empty() {
            disposer.dispose(self.remotes);
        }
    }

    pub(super) fn append(&mut self, mut other: Self) {
        self.places.append(&mut other.places);
        self.remotes.append(&mut other.remotes);
    }

    /// Takes the memory of a payload whose bytes are with the kernel, or are not sent.
    pub(super) fn take(&mut self, payload: Payload) {
        if let Payload::Host(host) = payload {
            self.places.push(Place::Host(host, None));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::deadline::{Backoff, Deadline};
    use crate::memory::HostBuffer;
    use crate::transport::tests::{place, resources, with_memories};

    /// Tells that it is dropped.
    struct Told(mpsc::Sender<()>);

    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    /// Its drop waits until the other end is dropped.
    struct Blocks(mpsc::Receiver<()>);

    impl Drop for Blocks {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    /// A call of the user's frees memory, and a thread of its own gives the peers' memory back.
    #[test]
    fn memory_is_left_to_threads_that_may_block() {
        with_memories(|comm, memories| {
            let resources = resources(comm, None);
            let service = resources.service().unwrap();
            let buffer = Arc::new(HostBuffer::new(comm.context(), 64).unwrap());
            let (tell, told) = mpsc::channel();
            let mut spent = Spent::default();
            for memory in &memories {
                let mut more = Spent::default();
                let host = place(&buffer).host().unwrap().clone();
                more.take(Payload::Host(host.keeping(Arc::new(Told(tell.clone())))));
                more.take(Payload::None);
                more.remotes.push(memory.remote().unwrap().0.clone());
                spent.append(more);
            }
            let holders = || memories.each_ref().map(|memory| Arc::strong_count(memory.remote().unwrap().0));
            let [one, two] = holders();
            let (go_on, blocks) = mpsc::channel();
            service.disposer().dispose(Blocks(blocks));
            spent.dispose(service.disposer());
            let early = (told.try_iter().count(), holders());
            drop(go_on);
            assert_eq!(early, (0, [one, two]), "the caller drops nothing");
            comm.check().unwrap();
            assert_eq!(told.try_iter().count(), 2);
            let (mut backoff, deadline) = (Backoff::new(), Deadline::after(Duration::from_secs(60)));
            while holders() != [one - 1, two - 1] && !deadline.expired() {
                backoff.pause(deadline);
            }
            assert_eq!(holders(), [one - 1, two - 1]);
        });
    }
}
