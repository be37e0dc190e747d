//! Checks of the device library: the examples' kernels, linked with its functions by the driver.

use std::sync::Arc;

use anyhow::Result;
use aqueduct::channel::GridBarrier;
use aqueduct::device::device_library;
use aqueduct::gpu::{Function, LaunchConfig, Module, PinnedBuffer, Stream, arg};
use aqueduct::proxy::{Proxy, ProxyConfig, ProxyHandlerResult, ProxyTrigger};

use super::check::{CANARY, Check, Ran, paint};
use super::group::{LEN, Pair};

const RING: &str = include_str!("../../../ptx/examples/ring_all_gather.ptx");
const TRIGGER: &str = include_str!("../../../ptx/examples/custom_trigger.ptx");

/// The oldest driver that takes the generic address of a kernel's parameter, as the examples do: CUDA 11.7.
const OLDEST: (i32, i32) = (11, 7);

/// The kernel `name` of `text`, linked with the library; or why there is none.
fn link(check: &Check<'_>, name: &str, text: &str) -> Result<Result<Function, Ran>> {
    let context = &check.rank.context;
    let (major, minor) = context.driver().version();
    if (major, minor) < OLDEST {
        let why = format!("the examples need a driver of CUDA {}.{}, and this is ", OLDEST.0, OLDEST.1);
        return Ok(Err(Ran::not(format!("{why}{major}.{minor}"))));
    }
    let library = device_library(context)?;
    let module = Module::link_ptx(context, &[(name, text), ("the device library", &library)])?;
    Ok(Ok(module.function(name)?))
}

/// Bytes of each rank's part, blocks, threads per block.
const CALLS: [(usize, u32, u32); 6] =
    [(4096, 1, 32), (1, 2, 64), (0, 2, 32), (LEN / 2, 4, 96), (17, 3, 64), (8191, 4, 128)];

/// Both ranks of a pair gather the parts of both: a ring of two, whose kernel signals and waits by the channel's handle and
/// meets at a grid barrier after each step.
pub(super) fn gathered(check: &Check<'_>) -> Result<Ran> {
    let kernel = match link(check, "ring_all_gather", RING)? {
        Ok(kernel) => kernel,
        Err(not) => return Ok(not),
    };
    let grid = GridBarrier::new(&check.rank.context)?;
    let what = format!("ring_all_gather, {} calls of 1 to 4 blocks that meet at a grid barrier", CALLS.len());
    check.each_pair(what, |pair| {
        (0..)
            .zip(CALLS)
            .try_for_each(|(iteration, call)| gather(check, pair, &kernel, &grid, iteration, call))
    })
}

fn gather(
    check: &Check<'_>,
    pair: &Pair,
    kernel: &Function,
    grid: &GridBarrier,
    iteration: u32,
    (part, blocks, threads): (usize, u32, u32),
) -> Result<()> {
    // `ring` puts from the gathered buffer to the peer's at the same offsets, so this is both source and target.
    let place = u32::from(check.me() > pair.peer);
    let framed = |parts: &[(u32, u32)]| {
        let mut canvas = vec![CANARY; LEN];
        for &(place, rank) in parts {
            canvas[place as usize * part..][..part].copy_from_slice(&paint(rank, 300 + iteration, part));
        }
        canvas
    };
    check.load(&pair.ring_buffer, &framed(&[(place, check.me())]))?;
    let left = check.buffer(4)?;
    left.fill(0, check.deadline())?;
    check.step(pair)?;
    let (channel, barrier) = (pair.ring.device_handle(), grid.device_handle(check.group.comm.abort_handle()));
    let (bytes, ranks, status) = (part as u64, 2_u32, left.ptr());
    let args =
        [arg(&channel), arg(&channel), arg(&barrier), arg(&bytes), arg(&place), arg(&ranks), arg(&status)];
    // SAFETY: the parameters are the example's; what they lead to is retained, and no Rust reference leads there. The
    // kernel leaves when the channel's abort word says so.
    unsafe { kernel.launch(&pair.stream, &LaunchConfig::linear(blocks, threads).cooperative(), &args) }?;
    pair.stream.retain_all([pair.ring.keep_alive(), grid.keep_alive(), check.group.comm.keep_alive()])?;
    pair.stream.retain(left.clone())?;
    check.group.comm.report_to(&pair.stream);
    check.done(&pair.stream)?;
    check.same(&check.contents(&left)?, &0_u32.to_le_bytes(), "the code that the kernel left with");
    check.same(
        &check.contents(&pair.ring_buffer)?,
        &framed(&[(place, check.me()), (1 - place, pair.peer)]),
        format_args!("parts of {part} bytes gathered with rank {} by {blocks} blocks", pair.peer),
    );
    check.step(pair)
}

const BLOCKS: u32 = 3;
const THREADS: u32 = 64;
const ROUNDS: u32 = 5;
/// The bits of a trigger's word that a user may set: all but the top one.
const MASK: u64 = u64::MAX >> 1;

/// The host's answer to a question, which depends on every word of it.
fn answer(kind: u64, number: u64, other: u64) -> u64 {
    (number.rotate_left(17) ^ (kind << 50)).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(other) & MASK
}

/// The answer that a thread has last, as the kernel asks: each question is about the answer before.
fn last_answer(thread: u64) -> u64 {
    (0..u64::from(ROUNDS)).fold(thread + 1, |number, round| answer(round % 3, number, 5 * round + 3))
}

/// Each thread of a kernel asks a proxy, waits for the answer, and asks again about it.
pub(super) fn answered(check: &Check<'_>) -> Result<Ran> {
    let kernel = match link(check, "custom_trigger", TRIGGER)? {
        Ok(kernel) => kernel,
        Err(not) => return Ok(not),
    };
    let (context, all) = (&check.rank.context, (BLOCKS * THREADS) as usize);
    let answers = Arc::new(PinnedBuffer::new(context, all * 8)?);
    let (results, left) = (check.buffer(all * 8)?, check.buffer(4)?);
    results.fill(CANARY, check.deadline())?;
    left.fill(0, check.deadline())?;
    let slots = answers.clone();
    let handler = move |trigger: &ProxyTrigger| {
        let [kind, number, other, thread] = trigger.payload();
        // Refuses a thread that has no slot.
        slots.memory().write(thread as usize * 8, &answer(kind, number, other).to_le_bytes())?;
        Ok(ProxyHandlerResult::Continue)
    };
    let proxy = Proxy::start(context, ProxyConfig::default().with_fifo_size(16), handler)?;
    let stream = Stream::new(context)?;
    let (fifo, at, to, status) = (proxy.fifo(), answers.device_ptr(), results.ptr(), left.ptr());
    let args = [arg(&fifo), arg(&ROUNDS), arg(&at), arg(&to), arg(&status)];
    // SAFETY: the parameters are the example's; what they lead to is retained, and the host writes answers by volatile
    // accesses only. The kernel leaves when the proxy ends.
    unsafe { kernel.launch(&stream, &LaunchConfig::linear(BLOCKS, THREADS), &args) }?;
    stream.retain_all(proxy.keep_alive())?;
    stream.retain_all([answers as _, results.clone() as _, left.clone() as _])?;
    proxy.report_to(&stream);
    check.done(&stream)?;
    proxy.stop(check.deadline())?;
    check.same(&check.contents(&left)?, &0_u32.to_le_bytes(), "the code that a thread left with");
    let wanted: Vec<u8> = (0..all as u64).flat_map(|thread| last_answer(thread).to_le_bytes()).collect();
    check.same(&check.contents(&results)?, &wanted, "the last answer of each thread");
    Ok(Ran::all(format!("custom_trigger, {all} threads with {ROUNDS} questions each, answered by a proxy")))
}
