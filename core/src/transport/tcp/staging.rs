//! Pinned memory between device memory and the socket.

use std::collections::VecDeque;
use std::sync::Arc;

use super::frame::MAX_PAYLOAD;
use crate::error::Result;
use crate::gpu::{Context, DeviceSlice, Event, PinnedBuffer, Stream};

/// Bytes of pinned memory in each direction: enough frames that copying and sending overlap.
const RING_BYTES: usize = 4 * MAX_PAYLOAD;

/// A ring of pieces that are freed in the order in which they were taken, and the stream that copies them.
///
/// Made in `setup()`, and dropped by no service thread: allocating and freeing pinned memory waits for the device, and
/// the device may be waiting for what that thread brings.
#[derive(Debug)]
pub(super) struct Staging {
    buffer: Arc<PinnedBuffer>,
    pub(super) stream: Stream,
    space: Space,
    /// Events not in use.
    events: Vec<Event>,
}

impl Staging {
    pub(super) fn new(context: &Context) -> Result<Self> {
        let buffer = Arc::new(PinnedBuffer::new(context, RING_BYTES)?);
        Ok(Self { buffer, stream: Stream::new(context)?, space: Space::new(RING_BYTES), events: Vec::new() })
    }

    /// `len` bytes, if they are free: where they begin.
    pub(super) fn take(&mut self, len: usize) -> Option<usize> {
        self.space.take(len)
    }

    /// Frees what was taken first.
    pub(super) fn free_oldest(&mut self) {
        self.space.free_oldest();
    }

    /// The bytes, as devices see them.
    pub(super) fn device(&self, at: usize, len: usize) -> Result<DeviceSlice> {
        self.buffer.slice(at..at + len)
    }

    /// Where byte `at` is for the host.
    pub(super) fn host(&self, at: usize) -> *mut u8 {
        self.buffer.memory().as_ptr().wrapping_add(at)
    }

    /// Copies `from` to byte `at`.
    pub(super) fn fill(&self, at: usize, from: &[u8]) -> Result<()> {
        self.buffer.memory().write(at, from)
    }

    /// An event behind everything that the stream has been given.
    pub(super) fn event(&mut self) -> Result<Event> {
        let event = match self.events.pop() {
            Some(event) => event,
            None => Event::new(self.stream.context())?,
        };
        event.record(&self.stream)?;
        Ok(event)
    }

    /// Takes an event back for the next use.
    pub(super) fn recycle(&mut self, event: Event) {
        self.events.push(event);
    }
}

/// Which bytes of a ring are taken.
#[derive(Debug)]
struct Space {
    size: usize,
    next: usize,
    taken: VecDeque<usize>,
}

impl Space {
    fn new(size: usize) -> Self {
        Self { size, next: 0, taken: VecDeque::new() }
    }

    fn take(&mut self, len: usize) -> Option<usize> {
        // Whole cache lines: the host writes one piece while a device reads its neighbour.
        let len = len.next_multiple_of(64);
        let at = match self.taken.front() {
            None => 0,
            Some(&oldest) if self.next > oldest && self.size - self.next < len => 0,
            Some(_) => self.next,
        };
        let limit = match self.taken.front() {
            // The end may not meet the oldest: that would look empty.
            Some(&oldest) if at <= oldest => oldest.saturating_sub(1),
            _ => self.size,
        };
        let end = at + len;
        if end > limit {
            return None;
        }
        self.taken.push_back(at);
        self.next = end;
        Some(at)
    }

    fn free_oldest(&mut self) {
        self.taken.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_ring_is_used_to_its_end_and_from_its_beginning_up_to_the_oldest() {
        let mut space = Space::new(1024);
        assert_eq!((space.take(1024), space.take(1)), (Some(0), None));
        space.free_oldest();
        assert_eq!((space.take(512), space.take(512)), (Some(0), Some(512)));
        space.free_oldest();
        assert_eq!((space.take(64), space.take(384)), (Some(0), Some(64)));
        assert_eq!(space.take(64), None, "up to the oldest it would look empty");
        space.free_oldest();
        assert_eq!((space.take(64), space.take(512), space.take(1)), (Some(448), Some(512), None));
        // A piece that does not fit behind the last begins at 0, and bytes are taken by whole lines.
        let mut space = Space::new(1024);
        assert_eq!((space.take(300), space.take(1), space.take(300)), (Some(0), Some(320), Some(384)));
        space.free_oldest();
        assert_eq!((space.take(321), space.take(256)), (None, Some(704)));
        assert_eq!(space.take(257), None);
        space.free_oldest();
        assert_eq!(space.take(257), Some(0));
    }

    proptest! {
        #[test]
        fn pieces_never_overlap_and_an_empty_ring_takes_all(steps in prop::collection::vec((1usize..400, any::<bool>()), 1..200)) {
            let mut space = Space::new(1024);
            let mut live = VecDeque::<(usize, usize)>::new();
            for (len, free) in steps {
                if free && !live.is_empty() {
                    space.free_oldest();
                    live.pop_front();
                }
                let taken = space.take(len);
                if live.is_empty() {
                    prop_assert!(taken.is_some());
                }
                if let Some(at) = taken {
                    prop_assert!(at + len <= 1024);
                    prop_assert!(live.iter().all(|(start, size)| at + len <= *start || start + size <= at));
                    live.push_back((at, len));
                }
            }
        }
    }
}
