//! `custom_trigger`: a user-defined trigger, answered by a proxy with a user-defined handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aqueduct::device::{LEFT_CLOSED, LEFT_NOT};
use aqueduct::gpu::{Function, GpuBuffer, LaunchConfig, PinnedBuffer, Stream, arg};
use aqueduct::proxy::{Proxy, ProxyConfig, ProxyHandlerResult, ProxyTrigger};
use aqueduct::{Error, Result};
use aqueduct_tests::ranks;

use super::{Example, example};
use crate::group::{Machine, context, soon};

const EXAMPLE: Example = example!("custom_trigger");

const BLOCKS: u32 = 5;
const THREADS: u32 = 64;
const ROUNDS: u32 = 7;
const ALL: usize = (BLOCKS * THREADS) as usize;
/// The bits of a trigger's word that a user may set: all but the top one.
const MASK: u64 = u64::MAX >> 1;

/// The host's answer to a trigger's first three words.
fn answer(what: u64, a: u64, b: u64) -> Option<u64> {
    match what {
        0 => Some(a.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(b) & MASK),
        1 => Some(a.rotate_left(17).wrapping_sub(b) & MASK),
        2 => Some((a ^ (b << 40)) & MASK),
        _ => None,
    }
}

/// The expected final value of thread `thread`.
fn expected(thread: u64) -> u64 {
    (0..u64::from(ROUNDS)).fold(thread + 1, |number, round| {
        answer(round % 3, number, 5 * round + 3).expect("three kinds of trigger")
    })
}

/// Writes the answer into `answers` and counts the trigger.
fn handle(answers: &PinnedBuffer, count: &AtomicU64, trigger: &ProxyTrigger) -> Result<ProxyHandlerResult> {
    let [what, a, b, slot] = trigger.payload();
    let unknown = || Error::usage("custom trigger", format!("{:x?} is no question", trigger.payload()));
    let answer = answer(what, a, b).ok_or_else(unknown)?;
    let slot = usize::try_from(slot).map_err(|_| unknown())?;
    answers.memory().word64(slot.checked_mul(8).ok_or_else(unknown)?)?.store(answer, Ordering::Relaxed);
    count.fetch_add(1, Ordering::Relaxed);
    Ok(ProxyHandlerResult::Continue)
}

pub(super) fn answers(machine: Machine, test: &str) {
    if ranks::start(1, test).is_none() {
        return;
    }
    let context = context(&machine.driver(), 0);
    let forms = EXAMPLE.load(&context);
    let answers = Arc::new(PinnedBuffer::new(&context, ALL * 8).unwrap());
    let count = Arc::new(AtomicU64::new(0));
    let handler = {
        let (answers, count) = (answers.clone(), count.clone());
        move |trigger: &ProxyTrigger| handle(&answers, &count, trigger)
    };
    // Far fewer slots than threads.
    let proxy = Proxy::start(&context, ProxyConfig::default().with_fifo_size(16), handler).unwrap();
    let asking =
        Asking { stream: Stream::new(&context).unwrap(), answers, results: results(&context), proxy };
    for (form, kernel) in &forms {
        asking.results.fill(0xA5, soon()).unwrap();
        assert_eq!(asking.ask(kernel, ROUNDS), LEFT_NOT, "{form}");
        let mut seen = vec![0_u64; ALL];
        asking.results.download(8, &mut seen, soon()).unwrap();
        let wanted: Vec<u64> = (0..ALL as u64).map(expected).collect();
        assert_eq!(seen, wanted, "{form}");
        assert_eq!(count.swap(0, Ordering::Relaxed), ALL as u64 * u64::from(ROUNDS), "{form}");
    }
    asking.proxy.check().unwrap();
    asking.proxy.stop(soon()).unwrap();
    for (form, kernel) in &forms {
        assert_eq!(asking.ask(kernel, 1), LEFT_CLOSED, "{form}: the proxy has ended");
    }
    assert_eq!(count.load(Ordering::Relaxed), 0);
}

/// The kernel's memory and proxy.
struct Asking {
    stream: Stream,
    answers: Arc<PinnedBuffer>,
    /// The kernel's status (u32), and from byte 8 on a u64 per thread.
    results: Arc<GpuBuffer>,
    proxy: Proxy,
}

fn results(context: &aqueduct::gpu::Context) -> Arc<GpuBuffer> {
    Arc::new(GpuBuffer::new(context, 8 + ALL * 8).unwrap())
}

impl Asking {
    /// Runs the kernel and returns its status.
    fn ask(&self, kernel: &Function, rounds: u32) -> u32 {
        self.results.upload(0, &[LEFT_NOT], soon()).unwrap();
        let fifo = self.proxy.fifo();
        let (answers, left) = (self.answers.device_ptr(), self.results.ptr());
        let results = left + 8;
        let args = [arg(&fifo), arg(&rounds), arg(&answers), arg(&results), arg(&left)];
        // SAFETY: the parameters are the example's; what they lead to is retained, and no Rust reference leads there but
        // atomic ones. The kernel leaves when the proxy ends.
        unsafe { kernel.launch(&self.stream, &LaunchConfig::linear(BLOCKS, THREADS), &args) }.unwrap();
        self.stream.retain_all(self.proxy.keep_alive()).unwrap();
        self.proxy.report_to(&self.stream);
        self.stream.retain_all([self.answers.clone() as _, self.results.clone() as _]).unwrap();
        let done = self.stream.synchronize(soon());
        let mut left = [0_u32];
        self.results.download(0, &mut left, soon()).unwrap();
        assert_eq!(done.is_err(), left[0] == LEFT_CLOSED, "{done:?}");
        left[0]
    }
}
