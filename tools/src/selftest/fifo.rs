//! Checks of a FIFO and its proxy: every thread of a kernel pushes triggers, and a thread of the host handles them.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, bail};
use aqueduct::channel::load_kernels;
use aqueduct::gpu::{LaunchConfig, PinnedBuffer, Stream, arg};
use aqueduct::proxy::{Proxy, ProxyConfig, ProxyHandlerResult, ProxyTrigger};

use super::check::{Check, Ran};

const BLOCKS: u32 = 3;
const THREADS: u32 = 64;
/// Triggers per thread.
const COUNT: u32 = 10;
/// Fewer slots than threads, so pushes have to wait for room.
const SLOTS: usize = 16;

/// A trigger as the handler saw it: its four words, and the word that its thread had written to memory before it.
type Seen = [u64; 5];

/// Bytes of the triggers of each thread in turn.
fn bytes(threads: &[Vec<Seen>]) -> Vec<u8> {
    threads.iter().flatten().flatten().flat_map(|word| word.to_le_bytes()).collect()
}

/// The triggers of each thread, in its order, as the kernel's documentation defines them.
fn expected() -> Vec<Vec<Seen>> {
    let of = |thread: u64| {
        let one = |i: u64| [thread, i, thread << 32 | i, thread ^ i, i + 1];
        (0..u64::from(COUNT)).map(one).collect()
    };
    (0..u64::from(BLOCKS * THREADS)).map(of).collect()
}

pub(super) fn served(check: &Check<'_>) -> Result<Ran> {
    let context = &check.rank.context;
    let Some(function) = load_kernels(context, "fifo", &[])?.pop() else {
        bail!("kernel file fifo has no entry");
    };
    let all = (BLOCKS * THREADS) as usize;
    let cells = Arc::new(PinnedBuffer::new(context, all * 4)?);
    let status = check.buffer(4)?;
    status.fill(0, check.deadline())?;
    let seen = Arc::new(Mutex::new(vec![Vec::<Seen>::new(); all]));
    let handler = {
        let (cells, seen) = (cells.clone(), seen.clone());
        move |trigger: &ProxyTrigger| {
            let [thread, serial, both, mixed] = trigger.payload();
            let mut threads = seen.lock().unwrap_or_else(PoisonError::into_inner);
            // A thread that does not exist is missing among the others' triggers.
            if let Some(mine) = usize::try_from(thread).ok().and_then(|thread| threads.get_mut(thread)) {
                let mut cell = [0; 4];
                cells.memory().read(thread as usize * 4, &mut cell)?;
                mine.push([thread, serial, both, mixed, u32::from_le_bytes(cell).into()]);
            }
            Ok(ProxyHandlerResult::Continue)
        }
    };
    let proxy = Proxy::start(context, ProxyConfig::default().with_fifo_size(SLOTS), handler)?;
    let stream = Stream::new(context)?;
    let (fifo, at, left) = (proxy.fifo(), cells.device_ptr(), status.ptr());
    let args = [arg(&fifo), arg(&COUNT), arg(&at), arg(&left)];
    // SAFETY: the parameters of the catalog row; the stream retains what is behind the handle, the cells and the status.
    // The host reads cells by volatile accesses, after the push that publishes them.
    unsafe { function.launch(&stream, &LaunchConfig::linear(BLOCKS, THREADS), &args) }?;
    stream.retain_all(proxy.keep_alive())?;
    stream.retain_all([cells as _, status.clone() as _])?;
    proxy.report_to(&stream);
    check.done(&stream)?;
    proxy.stop(check.deadline())?;
    check.same(&check.contents(&status)?, &0_u32.to_le_bytes(), "the code that a thread left with");
    let pushed = u64::from(BLOCKS * THREADS * COUNT);
    check.expect(
        proxy.counters().triggers == pushed,
        format_args!("{} triggers handled instead of {pushed}", proxy.counters().triggers),
    );
    let seen = bytes(&seen.lock().unwrap_or_else(PoisonError::into_inner));
    check.same(&check.read_back(seen), &bytes(&expected()), "triggers of each thread, as the proxy saw them");
    Ok(Ran::all(format!("{pushed} triggers of {all} threads through {SLOTS} slots, each waited for")))
}
