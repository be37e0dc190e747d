//! Memory of two ranks that each reach.

use std::sync::Arc;

use aqueduct::comm::{RegisteredMemory, Transport};
use aqueduct::gpu::{Function, GpuBuffer, KernelArg, LaunchConfig, Stream};

use super::rig::Play;
use crate::group::{Rank, soon};

/// A zeroed buffer of each rank, what its kernels need besides, and the counts that they leave.
pub(super) struct Region<'a> {
    pub(super) rank: &'a Rank,
    pub(super) stream: Stream,
    pub(super) buffer: Arc<GpuBuffer>,
    theirs: RegisteredMemory,
    /// Words for this rank's blocks alone.
    pub(super) state: Arc<GpuBuffer>,
    /// Forbidden trials, threads that gave up, blocks that are done.
    pub(super) out: Arc<GpuBuffer>,
}

impl<'a> Region<'a> {
    pub(super) fn new(rank: &'a Rank, bytes: usize) -> Self {
        let (comm, peer) = (&rank.comm, 1 - rank.me());
        let [buffer, state, out] = [bytes, 1 << 20, 4096].map(|bytes| {
            let buffer = rank.buffer(bytes);
            buffer.fill(0, soon()).unwrap();
            buffer
        });
        comm.connect(peer, 0, Transport::CudaIpc).unwrap();
        comm.send_memory(&comm.register_memory(&buffer, Transport::CudaIpc).unwrap(), peer, 0).unwrap();
        let theirs = comm.recv_memory(peer, 0).unwrap();
        comm.setup(soon()).unwrap();
        let stream = Stream::new(comm.context()).unwrap();
        Self { rank, stream, buffer, theirs: theirs.get().unwrap(), state, out }
    }

    /// Address of a rank's buffer, for this rank's kernels.
    pub(super) fn of(&self, rank: u32) -> u64 {
        if rank == self.rank.me() { self.buffer.ptr() } else { self.theirs.ptr() }
    }

    /// Starts a kernel.
    ///
    /// # Safety
    /// As [`Function::launch`]; the region and its buffers are retained here.
    pub(super) unsafe fn launch(&self, kernel: &Function, config: &LaunchConfig, args: &[KernelArg<'_>]) {
        // SAFETY: the caller's promise.
        unsafe { kernel.launch(&self.stream, config, args) }.unwrap();
        self.stream
            .retain_all([self.buffer.clone() as _, self.state.clone() as _, self.out.clone() as _])
            .unwrap();
        self.stream.retain_all([self.theirs.keep_alive(), self.rank.comm.keep_alive()]).unwrap();
    }

    /// Waits for this rank's kernels, and ends the peer's if they failed. Then waits for the peer, and returns whether to go on.
    pub(super) fn done(&self, play: &Play<'_>) -> bool {
        if let Err(error) = self.stream.synchronize(play.deadline()) {
            play.end(error);
            self.rank.comm.abort("the litmus ended");
        }
        !play.is_over(self.rank)
    }

    /// The counts of the last kernel, and zeroes them.
    pub(super) fn counts(&self) -> [u32; 2] {
        let mut counts = [0; 2];
        self.out.download(0, &mut counts, soon()).unwrap();
        self.out.fill(0, soon()).unwrap();
        counts
    }
}
