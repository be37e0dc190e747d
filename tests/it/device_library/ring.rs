//! `ring_all_gather`: checks every byte. Between calls only the kernels synchronise with each other.

use std::sync::Arc;

use aqueduct::channel::{GridBarrier, MemoryChannel};
use aqueduct::comm::Transport;
use aqueduct::device::{LEFT_NOT, LEFT_TOLD};
use aqueduct::gpu::{Function, GpuBuffer, LaunchConfig, Stream, arg};

use super::{Example, example};
use crate::data::{assert_same, bytes};
use crate::group::{Machine, Rank, processes, soon};

const EXAMPLE: Example = example!("ring_all_gather");

/// Largest part of a rank in bytes.
const MOST: usize = (64 << 10) + 17;
const CANARY: u8 = 0xA5;

/// Bytes per part, number of blocks, threads per block.
const CALLS: [(usize, u32, u32); 10] = [
    (4096, 1, 32),
    (1, 2, 64),
    (0, 2, 32),
    (MOST, 3, 96),
    (15, 4, 32),
    (16, 1, 256),
    (17, 3, 64),
    (8191, 4, 128),
    (MOST - 1, 2, 32),
    (4097, 3, 96),
];

/// A rank's place in the ring.
struct Place<'a> {
    rank: &'a Rank,
    ranks: u32,
    stream: Stream,
    next: MemoryChannel,
    prev: MemoryChannel,
    buffer: Arc<GpuBuffer>,
    grid: GridBarrier,
    /// The kernel's status.
    left: Arc<GpuBuffer>,
}

impl<'a> Place<'a> {
    fn new(rank: &'a Rank, ranks: u32) -> Self {
        let (comm, me) = (&rank.comm, rank.me());
        let (next, prev) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
        let buffer = rank.buffer(ranks as usize * MOST);
        let memory = comm.register_memory(&buffer, Transport::CudaIpc).unwrap();
        // With two ranks, next and previous are the same rank, so tags are by the rank that sends data.
        let link = |peer: u32, sender: u32| {
            comm.send_memory(&memory, peer, sender.into()).unwrap();
            let theirs = comm.recv_memory(peer, sender.into()).unwrap();
            let connection = comm.connect(peer, sender.into(), Transport::CudaIpc).unwrap();
            (comm.build_semaphore(&connection, sender.into()).unwrap(), theirs)
        };
        let links = [link(next, me), link(prev, prev)];
        comm.setup(soon()).unwrap();
        let [next, prev] = links.map(|(semaphore, theirs)| {
            MemoryChannel::new(&semaphore.get().unwrap(), &theirs.get().unwrap(), &memory, None).unwrap()
        });
        let (stream, grid) =
            (Stream::new(comm.context()).unwrap(), GridBarrier::new(comm.context()).unwrap());
        Self { rank, ranks, stream, next, prev, buffer, grid, left: rank.buffer(4) }
    }

    fn start(&self, kernel: &Function, part: usize, blocks: u32, threads: u32) {
        let (next, prev) = (self.next.device_handle(), self.prev.device_handle());
        let grid = self.grid.device_handle(self.rank.comm.abort_handle());
        self.left.fill(0, soon()).unwrap();
        let left = self.left.ptr();
        let (part, me) = (part as u64, self.rank.me());
        let args = [arg(&next), arg(&prev), arg(&grid), arg(&part), arg(&me), arg(&self.ranks), arg(&left)];
        let config = LaunchConfig::linear(blocks, threads).cooperative();
        // SAFETY: the parameters are the example's; what they lead to is retained, and no Rust reference leads there. The
        // kernel leaves when the channels' abort words say so.
        unsafe { kernel.launch(&self.stream, &config, &args) }.unwrap();
        let channels = [self.next.keep_alive(), self.prev.keep_alive(), self.grid.keep_alive()];
        self.stream.retain_all(channels).unwrap();
        self.stream
            .retain_all([self.buffer.clone(), self.left.clone(), self.rank.comm.keep_alive()])
            .unwrap();
        self.rank.comm.report_to(&self.stream);
    }

    /// The kernel's status. The wait for the stream is an error if the kernel was told to leave.
    fn left(&self) -> u32 {
        let done = self.stream.synchronize(soon());
        let mut left = [0_u32];
        self.left.download(0, &mut left, soon()).unwrap();
        assert_eq!(done.is_err(), left[0] == LEFT_TOLD, "{done:?}");
        left[0]
    }
}

pub(super) fn gathers(machine: Machine, ranks: u32, test: &str) {
    processes(machine, ranks, test, |rank| {
        let place = Place::new(&rank, ranks);
        let forms = EXAMPLE.load(rank.comm.context());
        let me = rank.me() as usize;
        // Start the ranks at different times: only the kernels wait for late ranks.
        rank.barrier();
        for (iteration, (part, blocks, threads)) in (0..).zip(CALLS) {
            for (turn, (form, kernel)) in (0..).zip(&forms) {
                let iteration = iteration * 10 + turn;
                let mut canvas = vec![CANARY; ranks as usize * MOST];
                canvas[me * part..][..part].copy_from_slice(&bytes(rank.me(), iteration, part));
                place.buffer.upload(0, &canvas, soon()).unwrap();
                place.start(kernel, part, blocks, threads);
                assert_eq!(place.left(), LEFT_NOT, "{form}");
                for other in 0..ranks {
                    canvas[other as usize * part..][..part].copy_from_slice(&bytes(other, iteration, part));
                }
                let mut seen = vec![0; canvas.len()];
                place.buffer.download(0, &mut seen, soon()).unwrap();
                assert_same(
                    &seen,
                    &canvas,
                    format_args!("{form}: {part} bytes, {blocks} x {threads} threads"),
                );
            }
        }
        rank.barrier();
    });
}

pub(super) fn one_is_missing(machine: Machine, test: &str) {
    processes(machine, 2, test, |rank| {
        let place = Place::new(&rank, 2);
        let forms = EXAMPLE.load(rank.comm.context());
        rank.barrier();
        if rank.me() == 1 {
            // Leaves normally, without having made a call.
            return;
        }
        for (form, kernel) in &forms {
            place.start(kernel, MOST, 3, 64);
            assert_eq!(place.left(), LEFT_TOLD, "{form}");
        }
    });
}
