//! Memory that other ranks describe falsely.

use std::sync::Arc;

use super::registered::Origin;
use super::wire::{MAX_CHUNKS, MemoryWire, Way};
use super::{HostBuffer, RegisteredMemory, Registration, Rights, export, import, registry};
use crate::bootstrap::{self, Bootstrap as _};
use crate::comm::{Communicator, CommunicatorConfig, Transport, Transports};
use crate::deadline::Deadline;
use crate::error::ErrorKind;
use crate::gpu::vmm::{HandleTypes, Mapping, PhysicalAllocation};
use crate::gpu::{BufferOptions, Context, Device, Driver, GpuBuffer, HandlePolicy, Stream};
use crate::ledger::receipt::Receipt;
use crate::setup::message::Offer;

fn communicators() -> Vec<Communicator> {
    communicators_of(|_, config| config)
}

/// The same with what `change` makes of each rank's settings.
fn communicators_of(
    change: impl Fn(u32, CommunicatorConfig) -> CommunicatorConfig + Sync,
) -> Vec<Communicator> {
    let (driver, change) = (Driver::software(cuda_soft::driver_table()).unwrap(), &change);
    let soon = || Deadline::after(std::time::Duration::from_secs(60));
    std::thread::scope(|scope| {
        let ranks = bootstrap::local(3).into_iter().map(|bootstrap| {
            let driver = driver.clone();
            scope.spawn(move || {
                let context = Context::new(&Device::new(&driver, bootstrap.rank()).unwrap()).unwrap();
                let config =
                    CommunicatorConfig::default().with_local_address(std::net::Ipv4Addr::LOCALHOST.into());
                let config = change(bootstrap.rank(), config);
                Communicator::new(&bootstrap, &context, config, soon()).unwrap()
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The memory that `to` makes of the description of `from`'s, which `from` keeps meanwhile.
fn sent(
    from: &Communicator,
    to: &Communicator,
    memory: &RegisteredMemory,
) -> crate::Result<RegisteredMemory> {
    let Offer { body, fds, .. } = export(from.exchange(), memory, to.rank())?.offer(from.exchange())?;
    import(to.exchange(), from.rank(), Offer { body, fds, holds: Vec::new() })
}

#[test]
fn a_rank_cannot_pass_its_memory_off_as_that_of_another() {
    let ranks = communicators();
    let exchange = ranks[0].exchange();
    let describe = |byte: u8| -> Offer<Receipt> {
        let buffer = Arc::new(HostBuffer::new(&exchange.context, 4096).unwrap());
        buffer.memory().fill(byte);
        let wire = MemoryWire {
            transports: Transports::CUDA_IPC,
            rights: Rights::READ_WRITE,
            process: 77,
            allocation: 1,
            total: 4096,
            offset: 0,
            len: 4096,
            way: Way::Host,
            region: None,
            keys: Vec::new(),
        };
        Offer { body: wire.encode(), fds: vec![buffer.fd().unwrap()], holds: Vec::new() }
    };
    // Rank 2 claims process and number of rank 1's allocation.
    let theirs = import(exchange, 1, describe(1)).unwrap();
    let claimed = import(exchange, 2, describe(2)).unwrap();
    let first = |memory: &RegisteredMemory| {
        let mut byte = [0];
        memory.host().unwrap().read(0, &mut byte).unwrap();
        byte[0]
    };
    assert_eq!((first(&theirs), first(&claimed)), (1, 2));
}

/// The mapping that is there has the size of the first description. A range of the second could lie outside it.
#[test]
fn an_allocation_that_is_mapped_is_not_described_again_with_another_size() {
    let ranks = communicators();
    let exchange = ranks[0].exchange();
    let buffer = HostBuffer::new(&exchange.context, 8192).unwrap();
    let describe = |total: u64| {
        let wire = MemoryWire {
            transports: Transports::CUDA_IPC,
            rights: Rights::READ_WRITE,
            process: 77,
            allocation: 1,
            total,
            offset: total - 64,
            len: 64,
            way: Way::Host,
            region: None,
            keys: Vec::new(),
        };
        Offer { body: wire.encode(), fds: vec![buffer.fd().unwrap()], holds: Vec::new() }
    };
    let first = import(exchange, 1, describe(8192)).unwrap();
    for total in [4096, 8256] {
        let error = import(exchange, 1, describe(total)).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::Remote, Some(1)), "{error}");
        assert!(error.message().contains("one allocation with two sizes"), "{error}");
    }
    let again = import(exchange, 1, describe(8192)).unwrap();
    assert_eq!(first.host().unwrap().as_ptr(), again.host().unwrap().as_ptr(), "mapped once");
}

/// One allocation, received for reading and for writing: neither mapping serves for the other.
#[test]
fn what_may_only_be_read_does_not_share_a_mapping_with_what_may_be_written() {
    let ranks = communicators();
    let exchange = ranks[0].exchange();
    let buffer = GpuBuffer::new(&exchange.context, 4096).unwrap();
    let piece = buffer.allocation().expect("it has a descriptor");
    let size = piece.size() as u64;
    let received_at = |offset, rights| {
        let wire = MemoryWire {
            transports: Transports::CUDA_IPC,
            rights,
            process: 77,
            allocation: 1,
            total: size,
            offset,
            len: 1024,
            way: Way::Fds(vec![size]),
            region: None,
            keys: Vec::new(),
        };
        let offer = Offer { body: wire.encode(), fds: vec![piece.export_fd().unwrap()], holds: Vec::new() };
        import(exchange, 1, offer).unwrap()
    };
    let received = |rights| received_at(0, rights);
    let [read, write, again] = [Rights::REMOTE_READ, Rights::READ_WRITE, Rights::REMOTE_READ].map(received);
    assert_ne!(read.ptr(), write.ptr());
    assert_eq!(read.ptr(), again.ptr(), "mapped once");
    assert_eq!(received_at(256, Rights::REMOTE_READ).ptr(), read.ptr() + 256);
    // A mapping that is gone is forgotten when another one is made.
    drop((read, again));
    assert_eq!(exchange.imports.live.lock().unwrap().len(), 2);
    let read = received(Rights::REMOTE_READ);
    drop((read, write));
    let _read = received(Rights::REMOTE_READ);
    assert_eq!(exchange.imports.live.lock().unwrap().len(), 1);
}

#[test]
fn a_registration_is_the_range_that_was_asked_for() {
    let ranks = communicators();
    let (rank, context) = (&ranks[0], ranks[0].context());
    let buffer = Arc::new(GpuBuffer::new(context, 4096).unwrap());
    let pages = Arc::new(HostBuffer::new(context, 4096).unwrap());
    let device = |offset, len| rank.register_range(&buffer, offset, len, Transport::CudaIpc);
    let host = |offset, len| rank.register_host_range(&pages, offset, len, Transport::CudaIpc);
    for (offset, len) in [(0, 4096), (1024, 3072), (4095, 1)] {
        let memory = device(offset, len).unwrap();
        assert_eq!((memory.ptr(), memory.len()), (buffer.ptr() + offset as u64, len));
        assert!(memory.buffer().is_some_and(|known| Arc::ptr_eq(known, &buffer)));
        let memory = host(offset, len).unwrap();
        assert_eq!(memory.host().unwrap().as_ptr(), pages.memory().as_ptr().wrapping_add(offset));
        assert!(memory.buffer().is_none());
    }
    for (offset, len) in [(0, 0), (0, 4097), (4096, 1), (4095, 2), (usize::MAX, 2)] {
        for result in [device(offset, len), host(offset, len)] {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidUsage, "{len} bytes at {offset}");
        }
    }
}

#[test]
fn a_buffer_is_one_allocation_however_often_it_is_registered() {
    let ranks = communicators();
    let (rank, context) = (&ranks[0], ranks[0].context());
    let number = |memory: &RegisteredMemory| match &memory.origin {
        Origin::Local { allocation, .. } => allocation.number(),
        Origin::Received { .. } => panic!("it was registered here"),
    };
    let buffers = [1, 2].map(|_| Arc::new(GpuBuffer::new(context, 4096).unwrap()));
    let pages = Arc::new(HostBuffer::new(context, 4096).unwrap());
    let device = |buffer| rank.register_memory(buffer, Transports::ETHERNET).unwrap();
    let host = || rank.register_host(&pages, Transports::ETHERNET).unwrap();
    let memories = [device(&buffers[0]), device(&buffers[0]), device(&buffers[1]), host(), host()];
    let [first, same, second, third, again] = memories.each_ref().map(number);
    assert_eq!((first, third), (same, again));
    assert!(first != second && second != third && first != third);
    assert!([first, second, third].iter().all(|number| registry::find(*number).is_some()));
    drop(memories);
    assert!([first, second, third].iter().all(|number| registry::find(*number).is_none()));
    let next = device(&buffers[0]);
    assert!(registry::is_known(number(&next)) && !registry::is_known(first), "the dead are forgotten");
}

#[test]
fn a_memory_says_what_may_be_done_with_it() {
    let ranks = communicators();
    let exchange = ranks[0].exchange();
    let buffer = HostBuffer::new(&exchange.context, 4096).unwrap();
    let wire = MemoryWire {
        transports: Transports::CUDA_IPC,
        rights: Rights::REMOTE_READ,
        process: 77,
        allocation: 1,
        total: 4096,
        offset: 0,
        len: 4096,
        way: Way::Host,
        region: None,
        keys: Vec::new(),
    };
    let offer = Offer { body: wire.encode(), fds: vec![buffer.fd().unwrap()], holds: Vec::new() };
    let memory = import(exchange, 1, offer).unwrap();
    let usage = |result: crate::Result<()>| result.is_err_and(|e| e.kind() == ErrorKind::InvalidUsage);
    assert!(memory.check_rights("read", Rights::REMOTE_READ).is_ok());
    assert!(usage(memory.check_rights("write", Rights::REMOTE_WRITE)));
    assert!(memory.check_transport("read", Transport::CudaIpc).is_ok());
    assert!(usage(memory.check_transport("read", Transport::Ethernet)));
    assert!(memory.check_range("read", 4095, 1).is_ok() && memory.check_range("read", 4096, 0).is_ok());
    assert!(usage(memory.check_range("read", 4095, 2)) && usage(memory.check_range("read", usize::MAX, 2)));
    let part = memory.range(64, 128).unwrap();
    assert_eq!((part.ptr(), part.len(), part.remote().unwrap().1), (memory.ptr() + 64, 128, 64));
    assert_eq!(part.range(8, 8).unwrap().remote().unwrap().1, 72);
    assert!(!part.is_empty() && part.range(8, 0).unwrap().is_empty() && !buffer.is_empty());
    // A rank may do everything with its own.
    let registration = Registration::new(Transports::ETHERNET).with_rights(Rights::LOCAL_ONLY);
    let own = ranks[0].register_host(&Arc::new(buffer), registration).unwrap();
    assert!(own.check_rights("write", Rights::REMOTE_WRITE).is_ok());
}

#[test]
fn a_rank_cannot_pass_as_one_of_this_process_by_saying_so() {
    let mut ranks = communicators();
    let exchange = ranks[0].exchange().clone();
    let buffer = Arc::new(HostBuffer::new(&exchange.context, 4096).unwrap());
    let memory = ranks[0].register_host(&buffer, Transports::ETHERNET).unwrap();
    let Origin::Local { allocation, .. } = &memory.origin else { panic!("it was registered here") };
    let describe = || {
        let wire = MemoryWire {
            transports: Transports::CUDA_IPC,
            rights: Rights::READ_WRITE,
            process: registry::process_number().unwrap(),
            allocation: allocation.number(),
            total: 4096,
            offset: 0,
            len: 4096,
            way: Way::Process,
            region: None,
            keys: Vec::new(),
        };
        Offer { body: wire.encode(), ..Offer::default() }
    };
    import(&exchange, 2, describe()).expect("a rank of this process");
    // Rank 2 goes on saying that it is of this process, where it is not.
    drop(ranks.pop());
    let error = import(&exchange, 2, describe()).unwrap_err();
    assert_eq!(error.peer(), Some(2), "{error}");
    assert!(error.message().contains("as if it were of this process"), "{error}");
}

/// The child inherits the number together with everything else. With it, it would pass for its parent.
#[test]
fn a_forked_child_has_a_process_number_of_its_own() {
    let number = registry::process_number().unwrap();
    assert_eq!(registry::process_number().unwrap(), number);
    let held = registry::hold();
    // SAFETY: the child unlocks what its only thread has locked, draws a number, and leaves with _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(held);
        let own = registry::process_number().ok();
        let stays = own.is_some() && own == registry::process_number().ok();
        // SAFETY: _exit is async-signal-safe.
        unsafe { libc::_exit(if stays && own != Some(number) { 7 } else { 1 }) };
    }
    drop(held);
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: `child` is ours and `status` is a live output.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 7);
    assert_eq!(registry::process_number().unwrap(), number, "the parent keeps its own");
}

#[test]
fn who_sends_memory_learns_whether_the_peer_has_it() {
    let ranks = communicators();
    let buffer = Arc::new(HostBuffer::new(&ranks[0].exchange().context, 4096).unwrap());
    let memory = ranks[0].register_host(&buffer, Transports::ETHERNET).unwrap();
    let sent = ranks[0].send_memory(&memory, 1, 0).unwrap();
    let received = ranks[1].recv_memory(0, 0).unwrap();
    assert!(!sent.is_ready() && sent.get().is_err(), "nothing was set up");
    let soon = || Deadline::after(std::time::Duration::from_secs(60));
    std::thread::scope(|scope| {
        let peer = scope.spawn(|| ranks[1].setup(soon()));
        ranks[0].setup(soon()).unwrap();
        peer.join().unwrap().unwrap();
    });
    sent.get().unwrap();
    received.get().unwrap();
    // Rank 2 asks for nothing.
    let sent = ranks[0].send_memory(&memory, 2, 0).unwrap();
    let error = ranks[0].setup(Deadline::after(std::time::Duration::ZERO)).unwrap_err();
    assert_eq!((error.kind(), sent.get().unwrap_err().kind()), (ErrorKind::Timeout, ErrorKind::Timeout));
}

#[test]
fn a_memory_belongs_to_the_group_that_received_it() {
    let [ranks, others] = [communicators(), communicators()];
    let buffer = Arc::new(HostBuffer::new(ranks[1].context(), 4096).unwrap());
    let memory = ranks[1].register_host(&buffer, Transports::ETHERNET).unwrap();
    let received = sent(&ranks[1], &ranks[0], &memory).unwrap();
    assert_eq!((memory.received_from(), received.received_from()), (None, Some(1)));
    let [group, other] = [&ranks[0], &others[0]].map(|rank| &rank.exchange().group);
    assert_eq!((received.owner_in(group), received.owner_in(other)), (Some(1), None));
    assert_eq!(memory.whose(group), "it is this rank's own");
    assert_eq!(received.whose(group), "it was received from rank 1");
    assert!(received.whose(other).contains("rank 1 of another communicator"));
}

/// Memory of each kind on `rank`'s device, registered for `transports`: host memory, memory with a descriptor, a plain allocation.
fn of_each_kind(rank: &Communicator, transports: Transports) -> [RegisteredMemory; 3] {
    let context = rank.context();
    let plain = BufferOptions { zeroed: true, handles: HandlePolicy::Legacy };
    let pages = Arc::new(HostBuffer::new(context, 4096).unwrap());
    let shared = Arc::new(GpuBuffer::new(context, 4096).unwrap());
    let plain = Arc::new(GpuBuffer::with_options(context, 4096, plain).unwrap());
    let [shared, plain] = [shared, plain].map(|buffer| rank.register_memory(&buffer, transports).unwrap());
    [rank.register_host(&pages, transports).unwrap(), shared, plain]
}

#[test]
fn memory_for_another_host_goes_by_message_or_not_at_all() {
    let ranks = communicators_of(|rank, config| config.with_host_id(format!("host {rank}")));
    let unsupported = |memory: &RegisteredMemory, words: &str| {
        let error = sent(&ranks[0], &ranks[1], memory).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::Unsupported, Some(1)), "{error}");
        assert!(error.message().contains(words), "{error}");
    };
    for memory in of_each_kind(&ranks[0], Transports::CUDA_IPC) {
        unsupported(&memory, "is on another host");
    }
    for memory in of_each_kind(&ranks[0], Transports::CUDA_IPC | Transports::ETHERNET) {
        let received = sent(&ranks[0], &ranks[1], &memory).unwrap();
        assert_eq!((received.transports(), received.ptr()), (Transports::ETHERNET, 0));
    }
    // As many pieces as a message has room for, and one more.
    let context = ranks[0].context();
    let piece = |_| Arc::new(PhysicalAllocation::create(context, 1, HandleTypes::FD).unwrap());
    let mapping = Mapping::new(context, (0..=MAX_CHUNKS).map(piece).collect()).unwrap();
    let size = mapping.size() / (MAX_CHUNKS + 1);
    for (pieces, words) in
        [(MAX_CHUNKS, "is on another host"), (MAX_CHUNKS + 1, "17 separately allocated pieces")]
    {
        // SAFETY: the mapping outlives the registration.
        let memory = unsafe { ranks[0].register_raw(mapping.ptr(), pieces * size, Transport::CudaIpc) };
        unsupported(&memory.unwrap(), words);
    }
}

#[test]
fn devices_of_one_process_share_memory_that_can_be_opened_to_them() {
    let ranks = communicators();
    let soon = || Deadline::after(std::time::Duration::from_secs(60));
    let both = Transports::CUDA_IPC | Transports::ETHERNET;
    let own = Arc::new(GpuBuffer::new(ranks[1].context(), 64).unwrap());
    let own_memory = ranks[1].register_memory(&own, both).unwrap();
    assert_eq!(sent(&ranks[1], &ranks[1], &own_memory).unwrap().ptr(), own.ptr(), "the device's own");
    let stream = Stream::new(ranks[1].context()).unwrap();
    let reads = |memory: &RegisteredMemory| {
        let received = sent(&ranks[0], &ranks[1], memory).unwrap();
        assert_eq!(received.transports(), both);
        memory.slice().unwrap().upload(0, &[7_u64; 8], soon()).unwrap();
        stream.copy(&own.slice(..).unwrap(), received.range(0, 64).unwrap().slice().unwrap()).unwrap();
        stream.synchronize(soon()).unwrap();
        let mut seen = [0_u64; 8];
        own.download(0, &mut seen, soon()).unwrap();
        assert_eq!(seen, [7; 8]);
        own.fill(0, soon()).unwrap();
    };
    let [pages, shared, plain] = of_each_kind(&ranks[0], both);
    [&pages, &shared, &plain].into_iter().for_each(reads);
    // SAFETY: the memories above outlive the registrations.
    let [shared, plain] =
        [&shared, &plain].map(|memory| unsafe { ranks[0].register_raw(memory.ptr(), 4096, both) }.unwrap());
    reads(&plain);
    let error = sent(&ranks[0], &ranks[1], &shared).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

/// Of its owner's addresses, which are none of this process: it may be mapped elsewhere, or nowhere.
#[test]
fn a_place_in_a_peers_memory_is_aligned_as_it_is_for_the_peer() {
    let ranks = communicators();
    let exchange = ranks[0].exchange();
    for begin in [0, 4, 8, 20] {
        let wire = MemoryWire {
            transports: Transports::CUDA_IPC,
            rights: Rights::READ_WRITE,
            process: 77,
            allocation: 1,
            total: 4096,
            offset: begin,
            len: 64,
            way: Way::Unmapped,
            region: None,
            keys: Vec::new(),
        };
        let offer = Offer { body: wire.encode(), fds: Vec::new(), holds: Vec::new() };
        let memory = import(exchange, 1, offer).unwrap();
        let remote = memory.remote().unwrap().0;
        let aligned = |offset| remote.is_aligned(offset);
        assert_eq!([0, 4, 8].map(aligned), [begin % 8 == 0, begin % 8 == 4, begin % 8 == 0], "{begin}");
    }
}
