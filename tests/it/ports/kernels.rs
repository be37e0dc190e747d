//! Kernels for these tests, made with the device library, and their reports.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use aqueduct::channel::{PortChannel, load_kernels};
use aqueduct::gpu::{Context, Function, KeepAlive, LaunchConfig, Module, PinnedBuffer, Stream, arg};
use aqueduct_ptx::abi::{FifoHandle, ProxyTrigger};
use aqueduct_ptx::{Target, functions};

use super::peer_channel::PeerChannel;

/// The lowest PTX version with `cvta.param`.
const TARGET: Target = Target { sm: 70, ptx: 77 };

const TEXT: &str = include_str!("kernels.ptx");

/// Kernels of these tests. Load them before any kernel runs, because loading waits for running kernels.
pub(super) struct Kernels {
    push: Function,
    raw: Function,
    storm: Function,
    mixed: Function,
    wait: Function,
    flush: Function,
    exchange: Function,
}

impl Kernels {
    pub(super) fn load(context: &Context) -> Self {
        let text = functions(TARGET).unwrap().text + TEXT;
        let module = Module::load_ptx(context, &text).unwrap();
        let own = |name| module.function(name).unwrap();
        let push = load_kernels(context, "fifo", &[]).unwrap().remove(0);
        Self {
            push,
            raw: own("raw"),
            storm: own("storm"),
            mixed: own("mixed"),
            wait: own("wait"),
            flush: own("flush"),
            exchange: own("exchange"),
        }
    }

    /// Every thread pushes `count` triggers with `aqueduct_fifo_push`. `cells` is that kernel's parameter, or 0.
    pub(super) fn push(
        &self,
        stream: &Stream,
        fifo: &FifoHandle,
        (blocks, threads): (u32, u32),
        count: u32,
        cells: u64,
        report: &Report,
    ) {
        let at = report.ptr();
        let args = [arg(fifo), arg(&count), arg(&cells), arg(&at)];
        // SAFETY: the catalog's parameters; tests keep the proxy's memory, cells and report until the stream is done.
        unsafe { self.push.launch(stream, &LaunchConfig::linear(blocks, threads), &args) }.unwrap();
        stream.retain(report.keep()).unwrap();
    }

    /// Pushes a trigger of four words.
    pub(super) fn raw(&self, stream: &Stream, fifo: &FifoHandle, words: [u64; 4], report: &Report) {
        let [w0, w1, w2, w3] = words;
        let at = report.ptr();
        let args = [arg(fifo), arg(&w0), arg(&w1), arg(&w2), arg(&w3), arg(&at)];
        // SAFETY: the kernel's parameters; tests keep the FIFO until the stream is done, the stream the report.
        unsafe { self.raw.launch(stream, &LaunchConfig::linear(1, 32), &args) }.unwrap();
        stream.retain(report.keep()).unwrap();
    }

    /// Pushes a port channel's trigger without the checks that the library's kernels make.
    pub(super) fn trigger(
        &self,
        stream: &Stream,
        channel: &PortChannel,
        trigger: ProxyTrigger,
        report: &Report,
    ) {
        self.raw(stream, &channel.device_handle().fifo, trigger.payload(), report);
        stream.retain(channel.keep_alive()).unwrap();
    }

    /// `blocks` blocks put `count` words each.
    pub(super) fn storm(
        &self,
        stream: &Stream,
        channel: &PortChannel,
        blocks: u32,
        count: u32,
        report: &Report,
    ) {
        let handle = channel.device_handle();
        let at = report.ptr();
        let args = [arg(&handle), arg(&count), arg(&at)];
        // SAFETY: the kernel's parameters; the stream keeps the channel and the report.
        unsafe { self.storm.launch(stream, &LaunchConfig::linear(blocks, 32), &args) }.unwrap();
        stream.retain_all([channel.keep_alive(), report.keep()]).unwrap();
    }

    /// One block puts and flushes `count` times. The others put from and to the memory at offset `far`, one of them at least
    /// once between two flushes.
    pub(super) fn mixed(
        &self,
        stream: &Stream,
        channel: &PortChannel,
        blocks: u32,
        count: u32,
        far: u64,
        report: &Report,
    ) {
        let handle = channel.device_handle();
        let at = report.ptr();
        let stop = at + 4;
        let args = [arg(&handle), arg(&handle.src), arg(&count), arg(&far), arg(&stop), arg(&at)];
        // SAFETY: the kernel's parameters; the stream keeps the channel, its memories and the report. All of
        // the few blocks are resident, so block 0 may wait for block 1; the others end when block 0 has.
        unsafe { self.mixed.launch(stream, &LaunchConfig::linear(blocks, 32), &args) }.unwrap();
        stream.retain_all([channel.keep_alive(), report.keep()]).unwrap();
    }

    /// Exchanges the first `words` words of the buffers `count` times.
    pub(super) fn exchange(
        &self,
        stream: &Stream,
        end: &PeerChannel,
        words: u32,
        count: u32,
        report: &Report,
    ) {
        let handle = end.channel.device_handle();
        let (inbox, at) = (end.inbox.ptr(), report.ptr());
        let args = [arg(&handle), arg(&handle.src), arg(&inbox), arg(&words), arg(&count), arg(&at)];
        // SAFETY: the kernel's parameters; the stream keeps the channel, both buffers and the report, and the words are inside.
        unsafe { self.exchange.launch(stream, &LaunchConfig::linear(1, 32), &args) }.unwrap();
        stream.retain_all([end.channel.keep_alive(), end.inbox.clone(), report.keep()]).unwrap();
    }

    /// Launches a kernel that waits for a signal. A wait for the stream returns an error if it gives up.
    pub(super) fn wait(&self, stream: &Stream, channel: &PortChannel, report: &Report) {
        single(&self.wait, stream, channel, report);
    }

    /// Launches a kernel that flushes. A wait for the stream returns an error if it gives up.
    pub(super) fn flush(&self, stream: &Stream, channel: &PortChannel, report: &Report) {
        single(&self.flush, stream, channel, report);
    }
}

fn single(kernel: &Function, stream: &Stream, channel: &PortChannel, report: &Report) {
    let handle = channel.device_handle();
    let at = report.ptr();
    let args = [arg(&handle), arg(&at)];
    // SAFETY: the parameters of `wait` and `flush`; the stream keeps the channel and the report.
    unsafe { kernel.launch(stream, &LaunchConfig::linear(1, 32), &args) }.unwrap();
    stream.retain_all([channel.keep_alive(), report.keep()]).unwrap();
    channel.report_to(stream);
}

/// A kernel's report: a status, followed by numbers. Make it before kernels wait, because allocating may wait for them.
pub(super) struct Report(Arc<PinnedBuffer>);

impl Report {
    pub(super) fn new(context: &Context) -> Self {
        Self(Arc::new(PinnedBuffer::new(context, 4096).unwrap()))
    }

    pub(super) fn ptr(&self) -> u64 {
        self.0.device_ptr()
    }

    fn keep(&self) -> KeepAlive {
        self.0.clone()
    }

    /// The status of the last thread that left early, or 0.
    pub(super) fn status(&self) -> u32 {
        self.0.memory().word32(0).map(|word: &AtomicU32| word.load(Ordering::Acquire)).unwrap()
    }

    /// Number `index` after the status.
    pub(super) fn number(&self, index: usize) -> u64 {
        self.0.memory().word64(8 + 8 * index).map(|word: &AtomicU64| word.load(Ordering::Acquire)).unwrap()
    }
}
