//! `connection.signal` and `port.flushed`: ranks put to each other through a port channel, whose proxy drives the connection.

use aqueduct::channel::PortChannel;
use aqueduct::comm::Transport;
use aqueduct::gpu::{LaunchConfig, Module, Stream, arg};
use aqueduct::proxy::{ProxyService, ProxyServiceConfig};

use super::rig::{Effort, Litmus, Play, Twin};
use crate::group::{Rank, soon};

const TEXT: &str = include_str!("port.ptx");

/// Bytes of each half of source and inbox: a cache line for each of up to 256 threads.
const HALF: usize = 1 << 15;
/// No thread's word of any trial that is run.
const SPOILT: &str = "3735928559";

/// Which of the two kinds of forbidden trials counts.
#[derive(Clone, Copy)]
enum Tag {
    Signal,
    Flushed,
}

fn run(rank: &Rank, play: &Play<'_>, transport: Transport, tag: Tag) {
    let (comm, peer) = (&rank.comm, 1 - rank.me());
    let [local, inbox, out] = [2 * HALF, 2 * HALF, 64].map(|bytes| {
        let buffer = rank.buffer(bytes);
        buffer.fill(0, soon()).unwrap();
        buffer
    });
    let [mine, arrivals] = [&local, &inbox].map(|buffer| comm.register_memory(buffer, transport).unwrap());
    comm.send_memory(&arrivals, peer, 0).unwrap();
    let theirs = comm.recv_memory(peer, 0).unwrap();
    let connection = comm.connect(peer, 0, transport).unwrap();
    let service = ProxyService::start(comm, ProxyServiceConfig::default()).unwrap();
    let semaphore = service.build_and_add_semaphore(&connection, 0).unwrap();
    comm.setup(soon()).unwrap();
    let [dst, src] = [&theirs.get().unwrap(), &mine].map(|memory| service.add_memory(memory).unwrap());
    let channel = PortChannel::new(&service, semaphore.get().unwrap(), dst, src).unwrap();
    let params = [("HALF", HALF.to_string()), ("SPOILT", SPOILT.to_owned())];
    let params = params.each_ref().map(|(name, value)| (*name, value.as_str()));
    let module = Module::load_ptx(comm.context(), &play.text(comm.context(), TEXT, &params)).unwrap();
    let kernel = module.function("exchange").unwrap();
    let stream = Stream::new(comm.context()).unwrap();
    let (handle, inbox_at, out_at) = (channel.device_handle(), inbox.ptr(), out.ptr());
    // Threads, trials, mask of the pauses in nanoseconds.
    let shapes: &[(u32, u32, u32)] = match (play.effort, transport) {
        (Effort::Short, _) => &[(64, 30, 63)],
        (Effort::Seeds, _) => &[(32, 4, 7)],
        (Effort::Long, Transport::CudaIpc) => &[(32, 40_000, 0), (256, 40_000, 4095), (128, 40_000, 255)],
        (Effort::Long, _) => &[(32, 10_000, 0), (256, 10_000, 4095)],
    };
    let mut before = 0_u32;
    let mut over = false;
    'seeds: for seed in 0..play.seeds() {
        if rank.me() == 0 {
            play.choose(seed);
        }
        for &(threads, trials, pause) in shapes {
            rank.barrier();
            let args = [
                arg(&handle),
                arg(&inbox_at),
                arg(&out_at),
                arg(&before),
                arg(&trials),
                arg(&seed),
                arg(&pause),
            ];
            // SAFETY: the kernel's parameters; the stream keeps what they lead to, and no Rust reference leads there. The kernel
            // leaves when the communicator is aborted.
            unsafe { kernel.launch(&stream, &LaunchConfig::linear(1, threads), &args) }.unwrap();
            stream.retain_all([local.clone() as _, inbox.clone() as _, out.clone() as _]).unwrap();
            stream.retain_all([channel.keep_alive(), comm.keep_alive()]).unwrap();
            if let Err(error) = stream.synchronize(play.deadline()) {
                play.end(error);
                comm.abort("the litmus ended");
            }
            over = play.is_over(rank);
            if over {
                break 'seeds;
            }
            let mut counts = [0_u32; 3];
            out.download(0, &mut counts, soon()).unwrap();
            out.fill(0, soon()).unwrap();
            let [stale, spoilt, left] = counts;
            if left > 0 {
                play.end("a kernel gave up its wait");
            }
            let forbidden = match tag {
                Tag::Signal => stale,
                Tag::Flushed => spoilt,
            };
            play.count(trials.into(), forbidden.into());
            before += trials;
            over = play.is_over(rank);
            if over {
                break 'seeds;
            }
        }
    }
    // After an abort there is nothing to drain.
    let stopped = service.stop(soon());
    assert!(stopped.is_ok() || over, "{stopped:?}");
    rank.barrier();
}

/// The reader's half of the pair; the writer's is the driver's or the host's.
const LOAD: &[Twin] = &[Twin {
    name: "relaxed load",
    changes: &[("ld.acquire.sys.global.u64 %sw_seen", "ld.relaxed.sys.global.u64 %sw_seen")],
    hangs: false,
}];
const FLUSHED_LOAD: &[Twin] = &[Twin {
    name: "relaxed load",
    changes: &[("ld.acquire.sys.global.u64 %pf_seen", "ld.relaxed.sys.global.u64 %pf_seen")],
    hangs: false,
}];

pub(super) const SIGNAL_IPC: Litmus = Litmus {
    tag: "connection.signal",
    way: " (CudaIpc)",
    ranks: 2,
    run: |rank, play| run(rank, play, Transport::CudaIpc, Tag::Signal),
    twins: LOAD,
};
pub(super) const SIGNAL_ETHERNET: Litmus = Litmus {
    tag: "connection.signal",
    way: " (Ethernet)",
    ranks: 2,
    run: |rank, play| run(rank, play, Transport::Ethernet, Tag::Signal),
    twins: &[],
};
pub(super) const FLUSHED_IPC: Litmus = Litmus {
    tag: "port.flushed",
    way: " (CudaIpc)",
    ranks: 2,
    run: |rank, play| run(rank, play, Transport::CudaIpc, Tag::Flushed),
    twins: FLUSHED_LOAD,
};
pub(super) const FLUSHED_ETHERNET: Litmus = Litmus {
    tag: "port.flushed",
    way: " (Ethernet)",
    ranks: 2,
    run: |rank, play| run(rank, play, Transport::Ethernet, Tag::Flushed),
    twins: &[],
};
