//! What a FIFO stands beside: the same pushes by hand, and the simplest loop of a host that takes them out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, bail};
use aqueduct::Deadline;
use aqueduct::channel::load_kernels;
use aqueduct::gpu::{Function, GpuBuffer, PinnedBuffer, arg};
use aqueduct_ptx::abi::lap_bit;

use super::super::host_thread::HostThread;
use super::launch::{Clock, Pushes, given_up, zeroed};
use crate::job::Rank;

/// Bytes that keep words with different writers on different lines.
const LINE: usize = 128;
const SLOT: usize = 32;

pub(super) struct Bare {
    function: Function,
    /// Status, at `LINE` the head, at twice that the cached tail.
    device: Arc<GpuBuffer>,
    /// The tail, and from `LINE` on the slots.
    host: Arc<PinnedBuffer>,
    size: usize,
    /// Triggers so far.
    position: u64,
    thread: HostThread,
}

impl Bare {
    /// `size`: slots, a power of two.
    pub(super) fn new(rank: &Rank, size: usize) -> Result<Self> {
        let Some(function) = load_kernels(&rank.context, "perf_fifo_bare", &[])?.pop() else {
            bail!("kernel file perf_fifo_bare has no entry");
        };
        let thread = HostThread::start(&rank.context, rank.deadline())?;
        let context = rank.context.clone();
        // By the thread that reads it, so that it lies beside the GPU, too.
        let host = thread.begin(move || PinnedBuffer::new(&context, LINE + size * SLOT))?;
        let host = Arc::new(host.get(rank.deadline())??);
        Ok(Self { function, device: zeroed(rank, 3 * LINE)?, host, size, position: 0, thread })
    }

    /// Microseconds of one launch; returns when all of its triggers have been taken out.
    pub(super) fn time(&mut self, rank: &Rank, clock: &Clock, pushes: Pushes) -> Result<f64> {
        let (host, position, deadline) = (self.host.clone(), self.position, rank.deadline());
        let (capacity, total) = (self.size as u64, pushes.total());
        let give_way = rank.context.driver().is_software();
        let consumer =
            self.thread.begin(move || consume(&host, capacity, position, total, give_way, deadline))?;
        self.position += total;
        let (base, shared) = (self.device.ptr(), self.host.device_ptr());
        let [slots, head, tail, cache] =
            [shared + LINE as u64, base + LINE as u64, shared, base + 2 * LINE as u64];
        let (size, log2, patience) = (self.size as u32, self.size.ilog2(), rank.timeout.as_nanos() as u64);
        let time = clock.time(rank, |stream| {
            let [slots, head, tail, cache] = [&slots, &head, &tail, &cache].map(arg);
            let [size, log2, count] = [&size, &log2, &pushes.count].map(arg);
            let args = [slots, head, tail, cache, size, log2, count, arg(&patience), arg(&base)];
            // SAFETY: the parameters of the catalog row; the stream retains both memories until the kernel is done.
            unsafe { self.function.launch(stream, &pushes.config(), &args) }?;
            stream.retain(self.device.clone())?;
            stream.retain(self.host.clone())
        })?;
        given_up(rank, &self.device, "bare pushes")?;
        let taken = consumer.get(rank.deadline())?;
        if taken != total {
            bail!("the host's side of the bare loop saw {taken} of {total} triggers in time");
        }
        Ok(time)
    }
}

/// Takes out `count` triggers from position `from` on; how many came in time.
fn consume(
    memory: &PinnedBuffer,
    capacity: u64,
    from: u64,
    count: u64,
    give_way: bool,
    deadline: Deadline,
) -> u64 {
    let words = memory.len() / size_of::<AtomicU64>();
    // SAFETY: page-aligned memory of so many words that outlives the call; everybody reaches it by atomic accesses.
    let words = unsafe { std::slice::from_raw_parts(memory.host_ptr().as_ptr().cast::<AtomicU64>(), words) };
    let (tail, slots) = words.split_at(LINE / size_of::<AtomicU64>());
    for position in from..from + count {
        let slot = ((position & (capacity - 1)) as usize) * (SLOT / size_of::<AtomicU64>());
        let lap = lap_bit(position, capacity);
        let mut looks = 0u64;
        // One word of each of the two stores.
        while [slot, slot + 2].iter().any(|&at| (slots[at].load(Ordering::Relaxed) >> 63 == 1) != lap) {
            looks += 1;
            if give_way {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
            if looks.is_multiple_of(1 << 16) && deadline.expired() {
                return position - from;
            }
        }
        tail[0].store(position + 1, Ordering::Release);
    }
    count
}
