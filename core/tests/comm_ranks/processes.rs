//! Ranks as processes: shared memory handles, killed processes, forks.

use std::sync::Arc;

use aqueduct::ErrorKind;
use aqueduct::comm::{Pending, Registration, Rights, Transport};
use aqueduct::gpu::HandlePolicy;
use aqueduct::internals::share::{HandleTypes, Mapping, PhysicalAllocation};

use crate::support::{Rank, all_succeed, bytes, paint, processes, shortly, soon};

const LEN: usize = 3 << 20;

/// Sends a sub-range both ways, writes into it and signals through it.
fn exchange(rank: &Rank, handles: HandlePolicy) {
    let peer = 1 - rank.me();
    let buffer = rank.buffer(LEN, handles);
    let mine = rank.comm.register_range(&buffer, 4096, LEN - 5000, Transport::CudaIpc).unwrap();
    let whole = rank.comm.register_memory(&buffer, Transport::CudaIpc).unwrap();
    rank.comm.send_memory(&mine, peer, 1).unwrap();
    rank.comm.send_memory(&whole, peer, 2).unwrap();
    let (part, all) = (rank.comm.recv_memory(peer, 1).unwrap(), rank.comm.recv_memory(peer, 2).unwrap());
    let connection = rank.comm.connect(peer, 0, Transport::CudaIpc).unwrap();
    let semaphore = rank.comm.build_semaphore(&connection, 0).unwrap();
    rank.comm.setup(soon()).unwrap();
    let (part, all, connection) = (part.get().unwrap(), all.get().unwrap(), connection.get().unwrap());
    assert_eq!(part.len(), LEN - 5000);
    assert_eq!(part.ptr(), all.ptr() + 4096, "one allocation is mapped once");
    assert_eq!(bytes(&part), paint(LEN, peer)[4096..LEN - 904]);
    assert_ne!(semaphore.get().unwrap().device_handle().remote_inbound, 0);
    rank.barrier();

    let source = rank.registered(1000);
    connection.write(&part, 100, &source, 0, 1000).unwrap();
    connection.update_and_sync(&part, 2048, &mut 0, 0x1122_3344_5566_7788).unwrap();
    connection.flush(soon()).unwrap();
    rank.barrier();
    let mut expected = paint(LEN, rank.me());
    expected[4196..5196].copy_from_slice(&paint(1000, peer));
    expected[6144..6152].copy_from_slice(&0x1122_3344_5566_7788_u64.to_le_bytes());
    assert_eq!(bytes(&whole), expected);
    rank.barrier();
}

#[test]
fn memory_is_shared_by_descriptor() {
    processes(2, "processes::memory_is_shared_by_descriptor", all_succeed, |rank| {
        exchange(&rank, HandlePolicy::Fd)
    });
}

#[test]
fn memory_is_shared_by_legacy_handle_and_held_until_released() {
    const NAME: &str = "processes::memory_is_shared_by_legacy_handle_and_held_until_released";
    processes(2, NAME, all_succeed, |rank| {
        exchange(&rank, HandlePolicy::Legacy);
        if rank.me() == 0 {
            let buffer = rank.buffer(LEN, HandlePolicy::Legacy);
            let memory = rank.comm.register_memory(&buffer, Transport::CudaIpc).unwrap();
            rank.comm.send_memory(&memory, 1, 5).unwrap();
            rank.comm.setup(soon()).unwrap();
            // The owner drops the memory first, and the peer goes on reading.
            drop((memory, buffer));
            rank.barrier();
            rank.barrier();
            rank.comm.close(soon()).unwrap();
        } else {
            let memory = rank.comm.recv_memory(0, 5).unwrap();
            rank.comm.setup(soon()).unwrap();
            rank.barrier();
            assert_eq!(bytes(&memory.get().unwrap()), paint(LEN, 0));
            drop(memory);
            rank.barrier();
        }
    });
}

#[test]
fn an_allocation_of_several_pieces_is_shared_whole_and_one_without_handles_is_refused() {
    const NAME: &str =
        "processes::an_allocation_of_several_pieces_is_shared_whole_and_one_without_handles_is_refused";
    processes(2, NAME, all_succeed, |rank| {
        if rank.me() == 1 {
            let memory = rank.comm.recv_memory(0, 0).unwrap();
            rank.comm.setup(soon()).unwrap();
            let memory = memory.get().unwrap();
            assert_eq!(bytes(&memory), paint(memory.len(), 9));
            return rank.barrier();
        }
        let context = rank.comm.context();
        let pieces = |count, types| {
            let piece = |_| Arc::new(PhysicalAllocation::create(context, 1, types).unwrap());
            Mapping::new(context, (0..count).map(piece).collect()).unwrap()
        };
        let mapping = Arc::new(pieces(3, HandleTypes::FD));
        // From the middle of the first piece to the middle of the last.
        let (start, len) = (mapping.size() / 6, mapping.size() / 3 * 2);
        mapping.slice(start..start + len).unwrap().upload(0, &paint(len, 9), soon()).unwrap();
        // SAFETY: the mapping lives to the end of the test, and the peer reads before the barrier.
        let memory =
            unsafe { rank.comm.register_raw(mapping.ptr() + start as u64, len, Transport::CudaIpc) }.unwrap();
        rank.comm.send_memory(&memory, 1, 0).unwrap();
        rank.comm.setup(soon()).unwrap();

        let private = pieces(1, HandleTypes::NONE);
        // SAFETY: as above; nobody else can open it.
        let memory = unsafe { rank.comm.register_raw(private.ptr(), 64, Transport::CudaIpc) }.unwrap();
        let error = rank.comm.send_memory(&memory, 1, 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.message().contains("GpuBuffer"), "{error}");
        rank.barrier();
    });
}

#[test]
fn all_ranks_name_a_rank_killed_in_setup_in_time() {
    const NAME: &str = "processes::all_ranks_name_a_rank_killed_in_setup_in_time";
    processes(
        3,
        NAME,
        |rank, killed, success| if rank == 1 { killed } else { success },
        |rank| {
            let memory = rank.registered(4096);
            let started = std::time::Instant::now();
            for peer in (0..3).filter(|peer| *peer != rank.me()) {
                rank.comm.send_memory(&memory, peer, 0).unwrap();
                if rank.me() != 1 {
                    rank.comm.recv_memory(peer, 0).unwrap();
                }
            }
            if rank.me() == 1 {
                let _ = rank.comm.setup(shortly());
                // SAFETY: kills this process, as the test wants.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
            // Rank 1 never answers, so this waits until it is lost.
            let error = rank.comm.setup(soon()).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::PeerLost | ErrorKind::Timeout), "{error}");
            while rank.comm.check().is_ok() {
                assert!(started.elapsed().as_secs() < 30, "the loss was not noticed");
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            let error = rank.comm.check().unwrap_err();
            assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(1)), "{error}");
        },
    );
}

/// Number of mappings of software device memory in this process's address space.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:aqueduct-soft")).count()
}

#[test]
fn memory_by_descriptor_outlives_its_process_until_its_last_user() {
    const NAME: &str = "processes::memory_by_descriptor_outlives_its_process_until_its_last_user";
    processes(
        2,
        NAME,
        |rank, killed, success| if rank == 0 { killed } else { success },
        |rank| {
            if rank.me() == 0 {
                let memory = rank
                    .comm
                    .register_memory(&rank.buffer(LEN, HandlePolicy::Fd), Transport::CudaIpc)
                    .unwrap();
                rank.comm.send_memory(&memory, 1, 0).unwrap();
                let window = rank.comm.recv_memory(1, 1).unwrap();
                rank.comm.setup(soon()).unwrap();
                assert_eq!(bytes(&window.get().unwrap()), paint(LEN, 1));
                // SAFETY: kills this process, as the test wants.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
            let context = rank.comm.context().clone();
            // The first copy allocates staging memory, which stays.
            bytes(&rank.registered(LEN));
            context.reap();
            let (free, maps) = (context.memory_info().unwrap().0, mapped());
            let mine = rank.registered(LEN);
            let memory = rank.comm.recv_memory(0, 0).unwrap();
            rank.comm.send_memory(&mine, 0, 1).unwrap();
            // The peer may exit before this rank learns that the peer has finished the setup.
            let result = rank.comm.setup(soon());
            while rank.comm.check().is_ok() {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            assert_eq!(rank.comm.check().unwrap_err().peer(), Some(0));
            if let (Ok(()), Ok(memory)) = (result, memory.get()) {
                assert_eq!(bytes(&memory), paint(LEN, 0));
                assert!(mapped() >= maps + 2, "the dead rank's memory and this rank's are mapped");
            }
            // After the abort, dropping frees everything at once.
            drop((memory, mine));
            context.reap();
            assert_eq!((context.memory_info().unwrap().0, mapped()), (free, maps));
            drop(rank);
        },
    );
}

#[test]
fn a_forked_child_can_neither_use_nor_disturb_the_communicator() {
    const NAME: &str = "processes::a_forked_child_can_neither_use_nor_disturb_the_communicator";
    processes(2, NAME, all_succeed, |rank| {
        let peer = 1 - rank.me();
        rank.barrier();
        if rank.me() == 0 {
            // SAFETY: the child calls the library, which only looks at its process id, and leaves with _exit; no other
            // thread of this process is inside the library.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let refused = rank.comm.check().is_err()
                    && rank.comm.connect(1, 0, Transport::CudaIpc).is_err()
                    && rank.comm.setup(soon()).is_err();
                drop(rank.comm);
                // SAFETY: ends the child without running the parent's destructors.
                unsafe { libc::_exit(if refused { 0 } else { 1 }) };
            }
            assert!(child > 0);
            let mut status = 0;
            // SAFETY: `child` is ours and `status` is a live output.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the child could use the communicator");
        }
        rank.barrier();
        // The child did not send a farewell in the parent's name.
        let connection = rank.comm.connect(peer, 0, Transport::CudaIpc).unwrap();
        rank.comm.setup(soon()).unwrap();
        assert!(connection.is_ready());
        rank.comm.check().unwrap();
        rank.barrier();
    });
}

/// Descriptors that this process has open.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_thousand_memories_cross_at_once_with_few_descriptors_open() {
    const NAME: &str = "processes::a_thousand_memories_cross_at_once_with_few_descriptors_open";
    const COUNT: u64 = 1000;
    processes(2, NAME, all_succeed, |rank| {
        let peer = 1 - rank.me();
        // Fewer than the memories that are sent: what a process has by default.
        let limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
        // SAFETY: `limit` is a live input.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
        let memory = rank.registered(4096);
        let before = descriptors();
        if rank.me() == 0 {
            for tag in 0..COUNT {
                rank.comm.send_memory(&memory, peer, tag).unwrap();
            }
            assert!(descriptors() < before + 8, "descriptors are made when the peer asks");
        }
        let received: Vec<_> = (0..if rank.me() == 1 { COUNT } else { 0 })
            .map(|tag| rank.comm.recv_memory(peer, tag).unwrap())
            .collect();
        rank.barrier();
        let began = std::time::Instant::now();
        rank.comm.setup(soon()).unwrap();
        eprintln!("{COUNT} items in {:?}", began.elapsed());
        assert!(received.iter().all(Pending::is_ready));
        rank.barrier();
    });
}

#[test]
fn memory_that_may_only_be_read_is_mapped_so() {
    const NAME: &str = "processes::memory_that_may_only_be_read_is_mapped_so";
    processes(2, NAME, all_succeed, |rank| {
        let peer = 1 - rank.me();
        let buffer = rank.buffer(LEN, HandlePolicy::Fd);
        let register = |rights| {
            let registration = Registration::new(Transport::CudaIpc).with_rights(rights);
            rank.comm.register_memory(&buffer, registration).unwrap()
        };
        let mine = [register(Rights::REMOTE_READ), register(Rights::READ_WRITE)];
        let received: Vec<_> = (0..)
            .zip(&mine)
            .map(|(tag, mine)| {
                rank.comm.send_memory(mine, peer, tag).unwrap();
                rank.comm.recv_memory(peer, tag).unwrap()
            })
            .collect();
        rank.comm.setup(soon()).unwrap();
        let (readable, writable) = (received[0].get().unwrap(), received[1].get().unwrap());
        assert_ne!(readable.ptr(), writable.ptr(), "one mapping for each right");
        assert_eq!(bytes(&readable), paint(LEN, peer));
        rank.barrier();
        writable.slice().unwrap().upload(0, &[1_u8; 8], soon()).unwrap();
        rank.barrier();
        assert_eq!(bytes(&readable)[..8], [1; 8]);
        // Past all checks of this library: the device refuses it.
        if rank.me() == 0 {
            assert!(readable.slice().unwrap().upload(0, &[2_u8; 8], soon()).is_err());
        }
        rank.barrier();
    });
}
