//! `GridBarrier`: threads of every shape of grid meet, leave together, and use it again after they left early.

use std::sync::Arc;
use std::time::Duration;

use aqueduct::ErrorKind;
use aqueduct::channel::GridBarrier;
use aqueduct::device::{GridBarrierHandle, device_library};
use aqueduct::gpu::{Context, Function, GpuBuffer, KernelArg, LaunchConfig, Module, Stream, arg};
use aqueduct::proxy::{Proxy, ProxyConfig, ProxyHandlerResult, ProxyTrigger};
use aqueduct_tests::ranks;

use crate::group::{Machine, context, soon};

const TEXT: &str = include_str!("grid.ptx");

/// Rounds of a launch, odd: the barrier ends in either phase.
const ROUNDS: u32 = 5;

struct Grid {
    meet: Function,
    stand_up: Function,
    stream: Stream,
    barrier: GridBarrier,
    /// A word per block.
    words: Arc<GpuBuffer>,
    /// Wrong numbers, threads that left, threads that passed.
    report: Arc<GpuBuffer>,
}

fn proxy(context: &Context) -> Proxy {
    Proxy::start(context, ProxyConfig::default(), |_: &ProxyTrigger| Ok(ProxyHandlerResult::Continue))
        .unwrap()
}

impl Grid {
    fn new(context: &Context) -> Self {
        let library = device_library(context).unwrap();
        let parts = [("the kernels", TEXT), ("the device library", library.as_str())];
        let module = Module::link_ptx(context, &parts).unwrap();
        let buffer = |bytes| Arc::new(GpuBuffer::new(context, bytes).unwrap());
        Self {
            meet: module.function("meet").unwrap(),
            stand_up: module.function("stand_up").unwrap(),
            stream: Stream::new(context).unwrap(),
            barrier: GridBarrier::new(context).unwrap(),
            words: buffer(64 << 10),
            report: buffer(16),
        }
    }

    fn launch(&self, kernel: &Function, config: &LaunchConfig, proxy: &Proxy, args: &[KernelArg<'_>]) {
        self.words.fill(0, soon()).unwrap();
        self.report.fill(0, soon()).unwrap();
        // SAFETY: callers pass the kernel's parameters; what they lead to is retained, and no Rust reference leads there. The
        // kernel leaves when the proxy ends.
        unsafe { kernel.launch(&self.stream, config, args) }.unwrap();
        self.stream.retain_all([self.barrier.keep_alive(), self.words.clone(), self.report.clone()]).unwrap();
        self.stream.retain_all(proxy.keep_alive()).unwrap();
        proxy.report_to(&self.stream);
    }

    fn counts(&self) -> [u32; 3] {
        let mut counts = [0; 3];
        self.report.download(0, &mut counts, soon()).unwrap();
        counts
    }

    /// The counts of a launch to its end.
    fn meet(&self, config: LaunchConfig, bad_round: u32, proxy: &Proxy) -> [u32; 3] {
        let grid: GridBarrierHandle = self.barrier.device_handle(proxy.fifo().abort);
        let (words, report) = (self.words.ptr(), self.report.ptr());
        let args = [arg(&grid), arg(&words), arg(&ROUNDS), arg(&bad_round), arg(&report)];
        self.launch(&self.meet, &config.cooperative(), proxy, &args);
        self.stream.synchronize(soon()).unwrap();
        self.counts()
    }
}

fn shaped(grid: [u32; 3], block: [u32; 3]) -> LaunchConfig {
    LaunchConfig { grid, block, ..LaunchConfig::linear(1, 1) }
}

/// The software device fills new memory with garbage here: a new barrier has to begin with zeros.
pub(super) fn meets(machine: Machine, test: &str) {
    let unkind = |_, command: &mut std::process::Command| {
        if std::env::var_os("AQUEDUCT_SOFT_UNKIND").is_none() {
            command.env("AQUEDUCT_SOFT_UNKIND", "1");
        }
    };
    if ranks::start_with(1, test, unkind).is_none() {
        return;
    }
    let context = context(&machine.driver(), 0);
    let (grid, proxy) = (Grid::new(&context), proxy(&context));
    let most = grid.meet.max_resident_blocks(64, 0).unwrap();
    let shapes = [
        LaunchConfig::linear(1, 1),
        LaunchConfig::linear(4, 32),
        LaunchConfig::linear(3, 41),
        shaped([2, 3, 2], [8, 3, 5]),
        LaunchConfig::linear(most, 64),
        shaped([1, 2, 1], [1, 1, 7]),
    ];
    for config in shapes {
        let all = [config.grid, config.block].iter().flatten().product::<u32>();
        // In every launch before the barrier's last use, and after one that left in the middle.
        for bad_round in [0, 2, ROUNDS, 0] {
            let [wrong, left, passed] = grid.meet(config, bad_round, &proxy);
            assert_eq!(wrong, 0, "{config:?}: a block ran ahead");
            let expected = if bad_round == 0 { [0, all] } else { [all, 0] };
            assert_eq!([left, passed], expected, "{config:?}, status in round {bad_round}");
        }
    }
    proxy.stop(soon()).unwrap();
}

pub(super) fn is_used_again(machine: Machine, test: &str) {
    if ranks::start(1, test).is_none() {
        return;
    }
    let context = context(&machine.driver(), 0);
    let grid = Grid::new(&context);
    let config = LaunchConfig::linear(4, 64);
    for _ in 0..3 {
        let first = proxy(&context);
        let (handle, report) = (grid.barrier.device_handle(first.fifo().abort), grid.report.ptr());
        grid.launch(&grid.stand_up, &config.cooperative(), &first, &[arg(&handle), arg(&report)]);
        // Three blocks wait for the fourth, until the proxy ends.
        std::thread::sleep(Duration::from_millis(50));
        assert!(!grid.stream.is_idle().unwrap());
        first.stop(soon()).unwrap();
        assert_eq!(grid.stream.synchronize(soon()).unwrap_err().kind(), ErrorKind::Stopped);
        assert_eq!(grid.counts(), [0, 3 * 64, 0]);
        // No host resets the barrier.
        let second = proxy(&context);
        assert_eq!(grid.meet(config, 0, &second), [0, 0, 4 * 64]);
        second.stop(soon()).unwrap();
    }
}
