//! Connections whose requests the NIC refuses: what no peer does that uses this library. On the stand-in, and on a NIC where
//! there is one (ignored; `ci/rdma-vm` has soft-RoCE): the tests `nic_*`.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use crate::bootstrap::{self, Bootstrap as _, LocalBootstrap};
use crate::comm::{
    Communicator, CommunicatorConfig, Connection, EndpointConfig, Host2HostSemaphore, HostBuffer,
    RegisteredMemory, Transport,
};
use crate::deadline::Deadline;
use crate::error::{ErrorKind, Result};
use crate::gpu::{Context, Device, Driver, Event};
use crate::rdma::{RemoteRegion, Settings, Verbs, standin};
use crate::wire::{Reader, Writer};

const LEN: usize = 1 << 20;

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// The verbs that the ranks use; it decides the number of the NIC.
#[derive(Clone, Copy)]
enum Nic {
    StandIn,
    Real,
}

impl Nic {
    fn config(self) -> CommunicatorConfig {
        let config = CommunicatorConfig::default()
            .with_local_address(Ipv4Addr::LOCALHOST.into())
            .with_max_semaphores(8);
        match self {
            Self::StandIn => config.with_verbs(Verbs::from_table(standin::table(), "stand-in")),
            Self::Real => config,
        }
    }

    fn number(self) -> u8 {
        match self {
            // After bare0 and dark0.
            Self::StandIn => 2,
            Self::Real => 0,
        }
    }

    /// An end whose lost peers are noticed soon.
    fn endpoint(self) -> EndpointConfig {
        let settings = Settings { timeout: 14, retry_count: 3, ..Settings::default() };
        EndpointConfig::new(Transport::Ib(self.number())).with_ib(settings)
    }
}

struct Rank {
    comm: Communicator,
    bootstrap: LocalBootstrap,
    nic: Nic,
}

struct Way {
    context: Context,
    source: RegisteredMemory,
    target: RegisteredMemory,
    connection: Connection,
    semaphore: Host2HostSemaphore,
}

/// Three ranks as threads, of which the first is connected with the others.
fn ranks(nic: Nic, run: impl Fn(&Rank) + Sync) {
    std::thread::scope(|scope| {
        for bootstrap in bootstrap::local(3) {
            let run = &run;
            scope.spawn(move || {
                let driver = Driver::software(cuda_soft::driver_table()).unwrap();
                let context = Context::new(&Device::new(&driver, bootstrap.rank()).unwrap()).unwrap();
                let comm = Communicator::new(&bootstrap, &context, nic.config(), soon()).unwrap();
                run(&Rank { comm, bootstrap, nic });
            });
        }
    });
}

impl Rank {
    fn barrier(&self) {
        self.bootstrap.barrier(soon()).unwrap();
    }

    fn memory(&self) -> RegisteredMemory {
        let buffer = Arc::new(HostBuffer::new(self.comm.context(), LEN).unwrap());
        self.comm.register_host(&buffer, self.nic.endpoint().transport).unwrap()
    }

    fn way(&self, peer: u32) -> Way {
        let [source, inbox] = [(); 2].map(|()| self.memory());
        self.comm.send_memory(&inbox, peer, 0).unwrap();
        let target = self.comm.recv_memory(peer, 0).unwrap();
        let connection = self.comm.connect(peer, 0, self.nic.endpoint()).unwrap();
        let semaphore = self.comm.build_host2host_semaphore(&connection, 0).unwrap();
        self.comm.setup(soon()).unwrap();
        let (target, connection, semaphore) =
            (target.get().unwrap(), connection.get().unwrap(), semaphore.get().unwrap());
        Way { context: self.comm.context().clone(), source, target, connection, semaphore }
    }

    /// Gathers `said` of all ranks; returns rank 1's.
    fn hear(&self, said: &[u8]) -> Vec<u8> {
        self.bootstrap.all_gather(said, soon()).unwrap().swap_remove(1)
    }
}

impl Way {
    fn write(&self, target: &RegisteredMemory) -> Result<()> {
        self.connection.write(target, 0, &self.source, 0, 4096)
    }

    fn works(&self) {
        self.write(&self.target).unwrap();
        self.semaphore.signal().unwrap();
        self.semaphore.wait(soon()).unwrap();
        self.connection.flush(soon()).unwrap();
    }

    /// `cause` makes it fail: everything outstanding ends, whoever waits already is told, and what comes later ends, all with
    /// the same reason: nothing waits until its deadline, whose reason would be another.
    #[track_caller]
    fn fails(&self, words: &str, cause: impl FnOnce()) {
        let event = Event::new(&self.context).unwrap();
        let error = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| self.semaphore.wait(soon()));
            cause();
            // It may be known already; where it is not, the event is behind work that fails.
            let recorded = self.connection.record_event(&event).is_ok();
            let error = self.connection.flush(soon()).unwrap_err();
            assert_eq!(waiting.join().unwrap().unwrap_err().to_string(), error.to_string());
            if recorded {
                event.synchronize(soon()).expect("no stream waits for ever");
            }
            error
        });
        println!("{error}");
        assert_eq!((error.kind(), error.peer()), (ErrorKind::Verbs, Some(self.connection.peer())), "{error}");
        assert!(error.to_string().contains(words), "{words}: {error}");
        let later = [self.write(&self.target), self.semaphore.signal(), self.semaphore.wait(soon())];
        for again in later {
            assert_eq!(again.unwrap_err().to_string(), error.to_string());
        }
    }
}

/// Rank 0 writes to what `region` makes of the memory of rank 1, with good writes before and behind it. What it makes besides
/// lives on until then.
fn refused_access<K>(nic: Nic, region: impl Fn(&Rank) -> (RemoteRegion, K) + Sync) {
    ranks(nic, |rank| {
        let first = (rank.comm.rank() < 2).then(|| rank.way(1 - rank.comm.rank()));
        let second = [Some(2), None, Some(0)][rank.comm.rank() as usize].map(|peer| rank.way(peer));
        second.iter().for_each(Way::works);
        let made = (rank.comm.rank() == 1).then(|| region(rank));
        let mut w = Writer::new();
        made.iter().for_each(|(region, _)| region.encode(&mut w));
        let region = rank.hear(w.as_bytes());
        match (rank.comm.rank(), first) {
            (0, Some(way)) => {
                let region = RemoteRegion::decode(&mut Reader::new(&region)).unwrap();
                let forged = way.target.with_key(rank.nic.number(), region);
                way.fails("refused the access: wrong key, range or rights", || {
                    way.write(&way.target).unwrap();
                    way.write(&forged).unwrap();
                    // It may be known already.
                    let _ = (0..100).try_for_each(|_| way.write(&way.target));
                });
                rank.barrier();
            }
            (_, Some(way)) => {
                rank.barrier();
                // This end learns of it with its next request.
                way.fails("the verbs connection to rank 0 has failed", || drop(way.write(&way.target)));
            }
            _ => rank.barrier(),
        }
        second.iter().for_each(Way::works);
        rank.comm.check().unwrap();
        rank.barrier();
    });
}

/// A key that nobody gave.
fn wrong_key(nic: Nic) {
    refused_access(nic, |rank| {
        let memory = rank.memory();
        let (region, _) = memory.on_nic(rank.nic.number()).unwrap();
        let mut w = Writer::new();
        region.remote().encode(&mut w);
        // Address, length, key: the memory is there, and stays.
        let mut forged = w.as_bytes().to_vec();
        forged[17] ^= 0x15;
        (RemoteRegion::decode(&mut Reader::new(&forged)).unwrap(), memory)
    });
}

/// The key of memory that was deregistered meanwhile.
fn stale_key(nic: Nic) {
    refused_access(nic, |rank| {
        let memory = rank.memory();
        let (region, _) = memory.on_nic(rank.nic.number()).unwrap();
        (region.remote(), ())
    });
}

/// More completions than the queue has room for, while nobody polls.
fn full_queue(nic: Nic) {
    ranks(nic, |rank| {
        let me = rank.comm.rank();
        if me == 0 {
            super::CAPACITY.set(Some(4));
        }
        let first = (me < 2).then(|| rank.way(1 - me));
        super::CAPACITY.set(None);
        let second = [Some(2), None, Some(0)][me as usize].map(|peer| rank.way(peer));
        second.iter().for_each(Way::works);
        // Rank 1 keeps its end to the barrier: without it, the NIC would report a missing peer first.
        if let (0, Some(way)) = (me, &first) {
            way.fails("completion queue", || {
                {
                    let _batch = way.connection.batch();
                    // It may be known before the last one is asked for.
                    let _ = (0..super::QUEUE - 16)
                        .try_for_each(|_| way.connection.write(&way.target, 0, &way.source, 0, 8));
                }
                // Longer than it takes to execute them.
                std::thread::sleep(Duration::from_millis(500));
            });
        }
        second.iter().for_each(Way::works);
        rank.comm.check().unwrap();
        rank.barrier();
    });
}

/// Runs on the first two of three ranks on the stand-in; the second does nothing.
fn alone(run: impl Fn(&Rank, &Way) + Sync) {
    ranks(Nic::StandIn, |rank| {
        let me = rank.comm.rank();
        if let Some(way) = (me < 2).then(|| rank.way(1 - me)) {
            if me == 0 {
                run(rank, &way);
            }
            rank.barrier();
        } else {
            rank.barrier();
        }
    });
}

/// A flush has a request of its own to wait for, whatever was asked for before it.
#[test]
fn a_nic_that_can_do_little_inline_data_signals_all_the_same() {
    ranks(Nic::StandIn, |rank| {
        standin::limit_inline(8);
        let peers = if rank.comm.rank() == 0 { vec![1, 2] } else { vec![0] };
        let ways: Vec<Way> = peers.into_iter().map(|peer| rank.way(peer)).collect();
        ways.iter().for_each(Way::works);
        rank.barrier();
        // One that can do less has no word for a signal.
        standin::limit_inline(7);
        let error = (rank.comm.rank() < 2).then(|| {
            let _never = rank.comm.connect(1 - rank.comm.rank(), 1, rank.nic.endpoint()).unwrap();
            rank.comm.setup(soon()).unwrap_err()
        });
        // A rank that left would be the reason for others.
        rank.barrier();
        if let Some(error) = error {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("use IbSignal::Atomic"), "{error}");
        }
        rank.comm.close(soon()).unwrap();
    });
}

#[test]
fn reads_alone_can_be_flushed() {
    alone(|_, way| {
        for count in [1, 20] {
            for _ in 0..count {
                way.connection.read(&way.source, 0, &way.target, 0, 8).unwrap();
            }
            way.connection.flush(Duration::from_secs(20)).unwrap();
        }
    });
}

/// Memory that its owner drops is kept until the NIC has read it, and no longer.
#[test]
fn memory_is_kept_until_its_requests_are_done() {
    alone(|rank, way| {
        let buffer = Arc::new(HostBuffer::new(rank.comm.context(), LEN).unwrap());
        let memory = rank.comm.register_host(&buffer, rank.nic.endpoint().transport).unwrap();
        let buffer = {
            let weak = Arc::downgrade(&buffer);
            drop(buffer);
            weak
        };
        {
            let _batch = way.connection.batch();
            way.connection.write(&way.target, 0, &memory, 0, 4096).unwrap();
            drop(memory);
            // Short of what the queue pair holds: nothing is posted before the batch ends.
            for _ in 0..100 {
                way.write(&way.target).unwrap();
                way.connection.write(&way.target, 0, &way.source, 0, 8).unwrap();
            }
            assert!(buffer.upgrade().is_some(), "the NIC has not read it");
        }
        way.connection.flush(soon()).unwrap();
        assert!(buffer.upgrade().is_none(), "it is kept for nothing");
    });
}

#[test]
fn a_wrong_key_fails_one_connection() {
    wrong_key(Nic::StandIn);
}

#[test]
fn memory_that_was_deregistered_fails_one_connection() {
    stale_key(Nic::StandIn);
}

#[test]
fn a_full_completion_queue_fails_one_connection() {
    full_queue(Nic::StandIn);
}

#[test]
#[ignore = "needs an RDMA device"]
fn nic_a_wrong_key_fails_one_connection() {
    wrong_key(Nic::Real);
}

#[test]
#[ignore = "needs an RDMA device"]
fn nic_memory_that_was_deregistered_fails_one_connection() {
    stale_key(Nic::Real);
}

#[test]
#[ignore = "needs an RDMA device"]
fn nic_a_full_completion_queue_fails_one_connection() {
    full_queue(Nic::Real);
}
