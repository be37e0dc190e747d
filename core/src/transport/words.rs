//! Words in pinned memory that devices and the host share: a cache line for each connection, many on a page.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::Result;
use crate::gpu::{Context, DeviceSlice, KeepAlive, PinnedBuffer, VolatileSlice};
use crate::sync::{Mutex, lock};

/// Bytes of a line, so that no device reads what the host writes for another connection.
pub(super) const LINE: usize = 64;
/// Lines of a page, one for each bit of a word.
const LINES: usize = u64::BITS as usize;

/// The pages of a communicator. There are as many as lines in use at one time needed.
#[derive(Debug)]
pub(crate) struct Words {
    context: Context,
    pages: Mutex<Vec<Arc<Page>>>,
}

#[derive(Debug)]
struct Page {
    buffer: Arc<PinnedBuffer>,
    /// The lines that nobody has.
    free: Mutex<u64>,
}

/// A line. It is used again only once nothing runs on any device: a kernel or stream may still look at it.
#[derive(Debug)]
pub(super) struct Line {
    page: Arc<Page>,
    number: usize,
}

impl Words {
    pub(crate) fn new(context: &Context) -> Arc<Self> {
        Arc::new(Self { context: context.clone(), pages: Mutex::default() })
    }

    /// A line of zeros. Call it in `setup()`: it may allocate.
    pub(super) fn line(&self) -> Result<Arc<Line>> {
        let known = lock(&self.pages).iter().find_map(Page::take);
        let line = match known {
            Some(line) => line,
            None => {
                // Without the lock: an allocation drops what the user's streams retain, and that may ask for a line.
                let buffer = Arc::new(PinnedBuffer::new(&self.context, LINES * LINE)?);
                let page = Arc::new(Page { buffer, free: Mutex::new(u64::MAX << 1) });
                lock(&self.pages).push(page.clone());
                Line { page, number: 0 }
            }
        };
        line.memory()?.fill(0);
        Ok(Arc::new(line))
    }
}

impl Page {
    fn take(self: &Arc<Self>) -> Option<Line> {
        let mut free = lock(&self.free);
        let number = free.trailing_zeros() as usize;
        if number == LINES {
            return None;
        }
        *free &= !(1 << number);
        Some(Line { page: self.clone(), number })
    }
}

impl Line {
    /// Its bytes, for the host.
    pub(super) fn memory(&self) -> Result<VolatileSlice<'_>> {
        self.page.buffer.memory().slice(self.number * LINE, LINE)
    }

    /// Its host address.
    pub(super) fn host_ptr(&self) -> NonNull<u8> {
        // SAFETY: the page has `LINES` lines, and `number` is below that.
        unsafe { self.page.buffer.host_ptr().add(self.number * LINE) }
    }

    /// Its address for kernels.
    pub(super) fn device_ptr(&self) -> u64 {
        self.page.buffer.device_ptr() + (self.number * LINE) as u64
    }

    /// Its first `len` bytes, as devices see them; they keep it.
    pub(super) fn slice(self: &Arc<Self>, len: usize) -> DeviceSlice {
        let keep = Arc::clone(self) as KeepAlive;
        // SAFETY: the range lies within the line, whose page lives as long as `keep`; nobody else gets the line meanwhile.
        unsafe { DeviceSlice::from_raw(self.page.buffer.context(), self.device_ptr(), len.min(LINE), keep) }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let (page, number) = (self.page.clone(), self.number);
        self.page.buffer.context().once_quiet(move || *lock(&page.free) |= 1 << number);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::deadline::Deadline;
    use crate::gpu::{Device, Driver, Stream};
    use crate::sync::Ordering;

    #[test]
    fn lines_are_apart_zeroed_and_used_again_only_once_no_device_can_look_at_them() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let words = Words::new(&context);
        let lines: Vec<_> = (0..LINES).map(|_| words.line().unwrap()).collect();
        let mut places: Vec<_> = lines.iter().map(|line| line.device_ptr()).collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] == LINE as u64));
        let (host, device) = (lines[0].host_ptr().addr().get(), lines[0].device_ptr());
        for line in &lines {
            let here = [line.host_ptr().addr().get() - host, (line.device_ptr() - device) as usize];
            assert_eq!(here, [line.number * LINE; 2], "the host and devices see one line");
        }
        assert_eq!(lock(&words.pages).len(), 1);
        let other = words.line().unwrap();
        assert_eq!(lock(&words.pages).len(), 2, "the first page is full");
        assert!(!places.contains(&other.device_ptr()));
        // A stream waits for a word of a line that is dropped.
        let stream = Stream::new(&context).unwrap();
        let mut lines = lines;
        let (first, gate) = (lines.swap_remove(1), lines.swap_remove(0));
        let place = first.device_ptr();
        first.memory().unwrap().fill(7);
        stream.wait_value64(&gate.slice(8), 1).unwrap();
        drop((lines, first));
        let busy = words.line().unwrap().device_ptr();
        gate.memory().unwrap().word64(0).unwrap().store(1, Ordering::Release);
        stream.synchronize(Deadline::after(std::time::Duration::from_secs(60))).unwrap();
        assert!(!places.contains(&busy), "a device may look at it");
        context.settle();
        let again: Vec<_> = (0..2 * LINES - 3).map(|_| words.line().unwrap()).collect();
        let again = again.iter().find(|line| line.device_ptr() == place).expect("it was not used again");
        assert_eq!(again.memory().unwrap().word64(0).unwrap().load(Ordering::Acquire), 0);
    }

    struct Asks(std::sync::Weak<Words>, std::sync::mpsc::Sender<bool>);

    impl Drop for Asks {
        fn drop(&mut self) {
            let line = self.0.upgrade().and_then(|words| words.line().ok());
            self.1.send(line.is_some()).unwrap();
        }
    }

    #[test]
    fn what_is_dropped_while_a_page_is_made_may_ask_for_a_line() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let words = Words::new(&context);
        let (asking, answer) = (Arc::downgrade(&words), std::sync::mpsc::channel());
        let stream = Stream::new(&context).unwrap();
        stream.retain(Arc::new(Asks(asking, answer.0))).unwrap();
        let making = std::thread::spawn(move || words.line().unwrap());
        let answered = answer.1.recv_timeout(std::time::Duration::from_secs(20));
        assert_eq!(answered, Ok(true), "it waits for a lock of the thread that it runs on");
        making.join().unwrap();
    }
}
