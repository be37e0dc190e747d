//! Kernels that signal and wait with a semaphore's handle alone, of either kind of semaphore.

use std::sync::Arc;

use aqueduct::comm::Transport;
use aqueduct::device::{LEFT_NOT, LEFT_TOLD, Operation, SemaphoreHandle, device_library};
use aqueduct::gpu::{Context, Function, GpuBuffer, KeepAlive, LaunchConfig, Module, Stream, arg};

use crate::group::{Machine, Rank, processes, soon};

const TEXT: &str = include_str!("semaphore.ptx");
const TURNS: u32 = 5;

struct Kernels {
    signal: Function,
    wait: Function,
    stream: Stream,
    out: Arc<GpuBuffer>,
}

impl Kernels {
    fn new(context: &Context) -> Self {
        let library = device_library(context).unwrap();
        let parts = [("the kernels", TEXT), ("the device library", library.as_str())];
        let module = Module::link_ptx(context, &parts).unwrap();
        Self {
            signal: module.function("signal").unwrap(),
            wait: module.function("wait").unwrap(),
            stream: Stream::new(context).unwrap(),
            out: Arc::new(GpuBuffer::new(context, 8).unwrap()),
        }
    }

    fn signal(&self, semaphore: &SemaphoreHandle, owner: KeepAlive) {
        let count = 2 * TURNS;
        // SAFETY: the kernel's parameters; the semaphore is retained.
        unsafe {
            self.signal.launch(&self.stream, &LaunchConfig::linear(1, 1), &[arg(semaphore), arg(&count)])
        }
        .unwrap();
        self.stream.retain(owner).unwrap();
    }

    /// Number of signals that a kernel took, of 2 * `TURNS`, and its status.
    fn wait(&self, rank: &Rank, semaphore: &SemaphoreHandle, owner: KeepAlive) -> [u32; 2] {
        let out = self.out.ptr();
        let args = [arg(semaphore), arg(&TURNS), arg(&out)];
        // SAFETY: as above; `out` is retained, and no Rust reference leads there. The kernel leaves when told.
        unsafe { self.wait.launch(&self.stream, &LaunchConfig::linear(1, 1), &args) }.unwrap();
        self.stream.retain_all([owner, self.out.clone()]).unwrap();
        rank.comm.report_to(&self.stream);
        let done = self.stream.synchronize(soon());
        let mut seen = [0; 2];
        self.out.download(0, &mut seen, soon()).unwrap();
        assert_eq!(done.is_err(), seen[1] == LEFT_TOLD, "{done:?}");
        seen
    }
}

pub(super) fn alone(machine: Machine, test: &str) {
    processes(machine, 2, test, |rank| {
        let (comm, peer) = (&rank.comm, 1 - rank.me());
        let kernels = Kernels::new(comm.context());
        let mapped = comm.connect(peer, 0, Transport::CudaIpc).unwrap();
        let streamed = comm.connect(peer, 1, Transport::Ethernet).unwrap();
        let by_device = comm.build_semaphore(&mapped, 2).unwrap();
        let by_host = comm.build_host2device_semaphore(&streamed, 3).unwrap();
        comm.setup(soon()).unwrap();
        let (by_device, by_host) = (by_device.get().unwrap(), by_host.get().unwrap());
        let handles = [by_device.device_handle(), by_host.device_handle()];

        kernels.signal(&handles[0], by_device.keep_alive());
        assert_eq!(kernels.wait(&rank, &handles[0], by_device.keep_alive()), [2 * TURNS, LEFT_NOT]);
        for _ in 0..2 * TURNS {
            by_host.signal().unwrap();
        }
        assert_eq!(kernels.wait(&rank, &handles[1], by_host.keep_alive()), [2 * TURNS, LEFT_NOT]);
        assert!(comm.abort_record().is_none());

        rank.barrier();
        if rank.me() == 1 {
            // Leaves normally. Nobody signals rank 0 any more.
            return;
        }
        assert_eq!(kernels.wait(&rank, &handles[0], by_device.keep_alive()), [0, LEFT_TOLD]);
        assert_eq!(kernels.wait(&rank, &handles[1], by_host.keep_alive()), [0, LEFT_TOLD]);
        let record = comm.abort_record().unwrap();
        assert_eq!((record.operation, record.rank, record.peer), (Operation::WAIT, 0, Some(1)));
        assert_eq!(record.awaited, u64::from(2 * TURNS) + 1);
    });
}
