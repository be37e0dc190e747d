//! The numbers by which triggers name objects: which are free, and which a kernel or a request may still use.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Weak};

use crate::gpu::Context;
use crate::proxy::fifo::Fifo;
use crate::sync::{Mutex, lock};

/// Numbers that nobody has any more, each with the FIFOs, by their indices, that may hold requests that name it.
type Retired = Mutex<Vec<(u16, Range<usize>)>>;

/// Allocates the numbers of one kind of object: unused ones first, then freed ones, oldest first, so that a number is reused as late
/// as possible.
#[derive(Debug)]
pub(super) struct Numbers {
    context: Context,
    limit: usize,
    fresh: usize,
    freed: VecDeque<u16>,
    retired: Arc<Retired>,
    /// Such numbers, each with the FIFOs that may still hold requests, and the position behind the last of these.
    settling: Vec<(u16, Vec<(usize, u64)>)>,
}

/// A number in use: by its object, by requests under way, and by channels, which streams and graphs keep as long as kernels
/// of theirs may run. Once all of them have gone and nothing runs on any device, no kernel can take the words and requests of
/// its next user for those of its own channel; what kernels have pushed may still lie in the FIFOs.
#[derive(Debug)]
pub(super) struct Number {
    number: u16,
    fifos: Range<usize>,
    context: Context,
    retired: Weak<Retired>,
}

impl Numbers {
    pub(super) fn new(context: &Context, limit: usize) -> Self {
        let context = context.clone();
        Self {
            context,
            limit,
            fresh: 0,
            freed: VecDeque::new(),
            retired: Arc::default(),
            settling: Vec::new(),
        }
    }

    /// How many objects can have one at a time.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// How many objects more would get one.
    pub(super) fn room(&self) -> usize {
        self.limit - self.fresh + self.freed.len()
    }

    /// Takes a number for an object that requests in `fifos` may name.
    pub(super) fn take(&mut self, fifos: Range<usize>) -> Option<Arc<Number>> {
        let number = if self.fresh < self.limit {
            self.fresh += 1;
            u16::try_from(self.fresh - 1).ok()?
        } else {
            self.freed.pop_front()?
        };
        let (context, retired) = (self.context.clone(), Arc::downgrade(&self.retired));
        Some(Arc::new(Number { number, fifos, context, retired }))
    }

    /// Takes numbers back that nobody has any more. Kernels have ended when a number comes, but what they pushed may still lie in
    /// a FIFO, and the proxy would take it for its next user's: it is free once the proxies have handled that.
    pub(super) fn take_back(&mut self, fifos: &[Fifo]) {
        for (number, named_in) in std::mem::take(&mut *lock(&self.retired)) {
            self.settling.push((number, named_in.map(|fifo| (fifo, fifos[fifo].end_of_written())).collect()));
        }
        let freed = &mut self.freed;
        self.settling.retain_mut(|(number, ends)| {
            ends.retain(|&(fifo, end)| !fifos[fifo].is_popped(end));
            freed.extend(ends.is_empty().then_some(*number));
            !ends.is_empty()
        });
    }
}

impl Number {
    pub(super) fn get(&self) -> u16 {
        self.number
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        if let Some(retired) = self.retired.upgrade() {
            let of = (self.number, self.fifos.clone());
            self.context.once_quiet(move || lock(&retired).push(of));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::deadline::Deadline;
    use crate::gpu::{Device, Driver, PinnedBuffer, Stream};
    use crate::sync::Ordering;

    fn context() -> Context {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        Context::new(&Device::new(&driver, 0).unwrap()).unwrap()
    }

    #[test]
    fn a_number_is_used_again_as_late_as_possible() {
        let mut numbers = Numbers::new(&context(), 3);
        let mut take = |freed: &[u16]| {
            numbers.freed.extend(freed);
            numbers.take(0..0).map(|number| number.get())
        };
        assert_eq!([take(&[]), take(&[])], [Some(0), Some(1)]);
        assert_eq!([take(&[1, 0]), take(&[]), take(&[]), take(&[])], [Some(2), Some(1), Some(0), None]);
    }

    /// A kernel of a stream that is busy may still look at the words.
    #[test]
    fn a_number_is_free_only_once_the_device_is_quiet() {
        let context = context();
        let mut numbers = Numbers::new(&context, 1);
        let (stream, gate) =
            (Stream::new(&context).unwrap(), Arc::new(PinnedBuffer::new(&context, 8).unwrap()));
        stream.wait_value64(&gate.slice(..).unwrap(), 1).unwrap();
        let number = numbers.take(0..0).unwrap();
        let channel = number.clone();
        drop(number);
        let mut is_free = || {
            numbers.take_back(&[]);
            numbers.room() > 0
        };
        context.reap();
        assert!(!is_free(), "a channel has it");
        drop(channel);
        context.reap();
        let early = is_free();
        gate.memory().word64(0).unwrap().store(1, Ordering::Release);
        stream.synchronize(Deadline::after(Duration::from_secs(60))).unwrap();
        assert!(!early, "a kernel may look at its words");
        context.settle();
        assert!(is_free());
    }
}
