//! Resources that blocks of a GPU share: its memory, both directions of its links, and NICs.

use super::machine::Machine;

/// Picoseconds.
pub(super) type Time = u64;

/// Microseconds as a time.
pub(super) fn micros(us: f64) -> Time {
    (us * 1e6).round() as Time
}

/// The time that bytes take at a rate.
pub(super) fn transfer(bytes: u64, gbps: f64) -> Time {
    (bytes as f64 * 1e3 / gbps).round() as Time
}

/// Serves requests one after the other, in the order in which they are made.
#[derive(Clone, Copy, Debug, Default)]
struct Server {
    free: Time,
}

impl Server {
    /// When a request is served that could begin at `from`.
    fn serve(&mut self, from: Time, takes: Time) -> Time {
        self.free = self.free.max(from) + takes;
        self.free
    }
}

/// The servers of a rank.
#[derive(Clone, Debug, Default)]
struct Gpu {
    memory: Server,
    out: Server,
    into: Server,
}

/// The servers of all ranks.
#[derive(Debug)]
pub(super) struct Links<'m> {
    machine: &'m Machine,
    gpus: Vec<Gpu>,
    /// Both directions of each NIC.
    nics: Vec<[Server; 2]>,
}

impl<'m> Links<'m> {
    pub(super) fn new(machine: &'m Machine, ranks: usize) -> Self {
        let last = u32::try_from(ranks.saturating_sub(1)).unwrap_or(0);
        let nics = machine.nic(last) as usize + machine.nics as usize;
        Self { machine, gpus: vec![Gpu::default(); ranks], nics: vec![Default::default(); nics] }
    }

    /// Loads and stores of so many bytes in a rank's own memory.
    pub(super) fn local(&mut self, rank: u32, from: Time, bytes: u64) -> Time {
        self.gpus[rank as usize].memory.serve(from, transfer(bytes, self.machine.local_gbps))
    }

    /// Bytes that go from one GPU to another of the same host: loaded by the taker, or stored by the giver.
    pub(super) fn link(&mut self, giver: u32, taker: u32, from: Time, bytes: u64, loaded: bool) -> Time {
        let machine = self.machine;
        let back = if loaded { machine.link_load_reverse } else { machine.link_store_reverse };
        let back = (bytes as f64 * back) as u64;
        let (out, into) = (machine.link_out_gbps, machine.link_in_gbps);
        let taker = &mut self.gpus[taker as usize];
        let came = taker.into.serve(from, transfer(bytes, into));
        taker.out.serve(from, transfer(back, out));
        let giver = &mut self.gpus[giver as usize];
        giver.into.serve(from, transfer(back, into));
        came.max(giver.out.serve(from, transfer(bytes, out)))
    }

    /// Bytes that go from a rank to one of another host.
    pub(super) fn network(&mut self, giver: u32, taker: u32, from: Time, bytes: u64) -> Time {
        let (giver, taker) = (self.machine.nic(giver) as usize, self.machine.nic(taker) as usize);
        let takes = transfer(bytes, self.machine.nic_gbps);
        let left = self.nics[giver][0].serve(from, takes);
        left.max(self.nics[taker][1].serve(from, takes)) + micros(self.machine.nic_us)
    }
}
