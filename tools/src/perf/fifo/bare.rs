//! The bare loop that a FIFO is compared with: a minimal kernel pushes, and a minimal host loop takes the triggers out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, bail};
use aqueduct::Deadline;
use aqueduct::channel::load_kernels;
use aqueduct::gpu::{Function, GpuBuffer, KeepAlive, PinnedBuffer, arg};
use aqueduct_ptx::abi::lap_bit;

use super::super::host_thread::HostThread;
use super::super::timing::StreamClock;
use super::launch::{Pushes, given_up, zeroed};
use crate::job::Rank;

/// Distance in bytes that keeps words with different writers on different cache lines.
const LINE: usize = 128;
const SLOT: usize = 32;

pub(super) struct Bare {
    function: Function,
    /// The status at offset 0, the head at `LINE`, the cached tail at `2 * LINE`.
    device: Arc<GpuBuffer>,
    /// The tail at offset 0, and the slots from `LINE` on.
    host: Arc<PinnedBuffer>,
    size: usize,
    /// Triggers pushed so far.
    position: u64,
    thread: HostThread,
}

impl Bare {
    /// `size` is the number of slots, a power of two.
    pub(super) fn new(rank: &Rank, size: usize) -> Result<Self> {
        let Some(function) = load_kernels(&rank.context, "perf_fifo_bare", &[])?.pop() else {
            bail!("kernel file perf_fifo_bare has no entry");
        };
        let thread = HostThread::start(&rank.context, rank.deadline())?;
        let context = rank.context.clone();
        // Allocated by the thread that reads it, so that it lies on the NUMA node of the GPU.
        let host = thread.begin(move || PinnedBuffer::new(&context, LINE + size * SLOT))?;
        let host = Arc::new(host.get(rank.deadline())??);
        Ok(Self { function, device: zeroed(rank, 3 * LINE)?, host, size, position: 0, thread })
    }

    /// Time of one launch in microseconds. Returns after all of its triggers have been taken out.
    pub(super) fn time(&mut self, rank: &Rank, clock: &StreamClock, pushes: Pushes) -> Result<f64> {
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
        let owners: [KeepAlive; 2] = [self.device.clone(), self.host.clone()];
        let time = clock.time(rank, owners, |stream, _| {
            let [slots, head, tail, cache] = [&slots, &head, &tail, &cache].map(arg);
            let [size, log2, count] = [&size, &log2, &pushes.count].map(arg);
            let args = [slots, head, tail, cache, size, log2, count, arg(&patience), arg(&base)];
            // SAFETY: the parameters of the catalog row; the clock's stream retains both memories until the kernel is done.
            Ok(unsafe { self.function.launch(stream, &pushes.config(), &args) }?)
        })?;
        given_up(rank, &self.device, "bare pushes")?;
        let taken = consumer.get(rank.deadline())?;
        if taken != total {
            bail!("the bare loop on the host received only {taken} of {total} triggers before its deadline");
        }
        Ok(time)
    }
}

/// Takes out `count` triggers from position `from` on. Returns how many arrived before the deadline.
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
        // A trigger is stored in two halves; look at one word of each.
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
