//! Data through the stand-in: every kind of request, batches, windows, receives.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use rdma_core_sys::VerbsTable;

use super::rig::{Memory, open, pair, standin_pair};
use super::standin;
use crate::rdma::*;

#[test]
fn every_kind_of_request_moves_what_it_should() {
    let (a, b) = pair(&open("null0"), &open("null0"), &QpOptions::default().with_max_receive(4));
    let (here, there) = (Memory::new(128, 1), Memory::new(128, 2));
    let local = here.register(&a.pd, Access::FLAGS);
    let remote = there.register(&b.pd, Access::FLAGS);
    let to = |offset, length| remote.remote().range(offset, length).unwrap();
    let from = |offset, length| local.range(offset, length).unwrap();
    b.qp.post_receive(70, None).unwrap();
    b.qp.post_receive(71, None).unwrap();
    b.qp.post_receive(72, Some(remote.range(96, 16).unwrap())).unwrap();

    let mut batch = Batch::default();
    batch.write(from(0, 16), to(0, 16)).unwrap();
    batch.write_inline(&7_u64.to_ne_bytes(), to(16, 8)).unwrap();
    batch.fetch_add(from(64, 8), to(16, 8), 5).unwrap();
    batch.compare_swap(from(72, 8), to(16, 8), 12, 99).unwrap().fence();
    batch.read(from(80, 8), to(16, 8)).unwrap();
    batch.write_with_immediate(from(0, 8), to(24, 8), 0xdead_beef).unwrap();
    batch.immediate(3);
    batch.send(from(0, 16)).unwrap().id(9).signalled();
    batch.write(from(0, 0), to(128, 0)).unwrap().id(10).signalled();
    assert_eq!(batch.len(), 9);
    a.qp.post(&mut batch).unwrap();
    assert!(batch.is_empty());
    standin::settle();

    assert_eq!((there.byte(0), there.byte(15), there.byte(32)), (1, 1, 2));
    assert_eq!((there.word(2), here.word(8), here.word(9), here.word(10)), (99, 7, 12, 99));
    assert_eq!((there.byte(31), there.byte(96), there.byte(112)), (1, 1, 2));
    assert_eq!(a.qp.counters(), QpCounters { requests: 9, doorbells: 1 });
    assert_eq!(standin::counts(a.qp.number()).doorbells, 1);

    let ends: Vec<_> = a.completions().iter().map(|c| (c.id, c.result.unwrap().operation)).collect();
    assert_eq!(ends, [(9, Operation::SEND), (10, Operation::WRITE)]);
    let receives: Vec<_> =
        b.completions().into_iter().map(|c| (c.id, c.qp_number, c.result.unwrap())).collect();
    let number = b.qp.number();
    let done = |operation, bytes, immediate| Done { operation, bytes, immediate };
    assert_eq!(
        receives,
        [
            (70, number, done(Operation::RECEIVE_WRITE, 8, Some(0xdead_beef))),
            (71, number, done(Operation::RECEIVE_WRITE, 0, Some(3))),
            (72, number, done(Operation::RECEIVE, 16, None)),
        ]
    );
}

#[test]
fn a_dma_buf_is_named_by_its_device_address() {
    let (a, b) = standin_pair();
    let size = 1 << 16;
    // SAFETY: the name is a C string; the result is checked.
    let fd = unsafe { libc::memfd_create(c"dma-buf".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: just made, owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let file = std::fs::File::from(fd);
    file.set_len(size).unwrap();
    let device = 0x7f00_0000_0000;
    // SAFETY: the memory is that of the descriptor, which the stand-in maps itself.
    let region = unsafe {
        b.pd.register_dmabuf(
            file.as_fd(),
            4096,
            8192,
            device + 4096,
            Access::DATA,
            Arc::new(file.try_clone().unwrap()),
        )
    }
    .unwrap();
    assert_eq!((region.address(), region.len()), (device + 4096, 8192));
    let mut batch = Batch::default();
    batch.write_inline(b"here", region.remote().range(100, 4).unwrap()).unwrap().signalled();
    a.qp.post(&mut batch).unwrap();
    assert!(a.completion().result.is_ok());
    let mut found = [0; 4];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut found, 4096 + 100).unwrap();
    assert_eq!(&found, b"here");

    standin::refuse("ibv_reg_dmabuf_mr", libc::EOPNOTSUPP);
    // SAFETY: refused.
    let refused = unsafe { b.pd.register_dmabuf(file.as_fd(), 0, 4096, device, Access::DATA, Arc::new(())) };
    assert_eq!(refused.unwrap_err().kind(), crate::ErrorKind::Unsupported);
    assert!(file.as_raw_fd() >= 0);
}

/// Memory that is registered under other addresses, for reads only.
#[test]
fn memory_is_read_by_the_name_that_it_was_given() {
    let named = 0x1234_5678_9000_u64;
    let read = |spoil: fn(RemoteRegion) -> RemoteRegion| {
        let (a, b) = standin_pair();
        let (here, there) = (Memory::new(64, 0), Memory::new(64, 7));
        let into = here.register(&a.pd, Access::LOCAL_WRITE);
        let region = there.register_as(&b.pd, named, Access::REMOTE_READ).unwrap();
        assert_eq!((region.address(), region.len(), region.access()), (named, 64, Access::REMOTE_READ));
        let mut batch = Batch::default();
        let from = spoil(region.remote()).range(8, 16).unwrap();
        batch.read(into.range(0, 16).unwrap(), from).unwrap().signalled();
        a.qp.post(&mut batch).unwrap();
        let end = a.completion().result.map(|done| done.operation);
        assert_eq!(here.byte(15) == 7, end.is_ok());
        drop(region);
        assert_eq!(there.holders(), 0);
        end.map_err(|failure| failure.status)
    };
    assert_eq!(read(|region| region), Ok(Operation::READ));
    let refused = Err(Status::REMOTE_ACCESS);
    assert_eq!(read(|region| RemoteRegion { address: region.address + (1 << 30), ..region }), refused);
    assert_eq!(read(|region| RemoteRegion { address: region.address + 41, ..region }), refused);
    let (a, b) = standin_pair();
    let there = Memory::new(64, 7);
    let region = there.register_as(&b.pd, named, Access::REMOTE_READ).unwrap();
    let mut batch = Batch::default();
    batch.write_inline(&[1; 8], region.remote().range(0, 8).unwrap()).unwrap();
    a.qp.post(&mut batch).unwrap();
    assert_eq!(a.completion().result.unwrap_err().status, Status::REMOTE_ACCESS, "no right to write");
    assert_eq!(there.byte(0), 7);
    assert!(there.register_as(&b.pd, u64::MAX - 8, Access::REMOTE_READ).is_err(), "it wraps around");
    let old = Verbs::from_table(VerbsTable { ibv_reg_mr_iova2: None, ..standin::table() }, "old");
    let pd = old.device("null0").unwrap().open().unwrap().protection_domain().unwrap();
    let error = there.register_as(&pd, named, Access::REMOTE_READ).unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::Unsupported);
}

#[test]
fn requests_that_cannot_be_are_refused_when_they_are_made() {
    let (a, b) = standin_pair();
    let (here, there) = (Memory::new(256, 0), Memory::new(256, 0));
    let (local, remote) =
        (here.register(&a.pd, Access::FLAGS), there.register(&b.pd, Access::FLAGS).remote());
    let mut batch = Batch::default();
    let range = |length| (local.range(0, length).unwrap(), remote.range(0, length).unwrap());
    assert!(batch.write(range(8).0, range(16).1).is_err());
    let wide = Memory::new(2 * INLINE_BYTES, 0);
    let all = wide.register(&b.pd, Access::FLAGS).remote().range(0, INLINE_BYTES as u64 + 1).unwrap();
    assert!(batch.write_inline(&[0; INLINE_BYTES + 1], all).is_err());
    assert!(batch.fetch_add(range(16).0, range(8).1, 1).is_err());
    assert!(batch.fetch_add(range(8).0, remote.range(4, 8).unwrap(), 1).is_err());
    assert!(local.range(250, 7).is_err() && remote.range(257, 0).is_err());
    assert!(batch.is_empty());
    let long = RemoteRegion { address: 0, length: 1 << 40, key: 1 }.range(0, (1 << 31) + 1).unwrap();
    let length = long.len();
    assert!(batch.read(LocalRange { address: 0, length, key: 1 }, long).is_err());
    // A queue pair without inline data says so before the NIC does.
    standin::limit_inline(0);
    let (c, _d) = pair(&open("null0"), &open("null0"), &QpOptions::default());
    batch.write_inline(&[1; 8], range(8).1).unwrap();
    let error = c.qp.post(&mut batch).unwrap_err();
    assert!(error.error.message().contains("8 bytes inline: this queue pair takes 0"), "{error}");
    assert_eq!((error.accepted, batch.len()), (0, 1));
}

#[test]
fn a_window_posts_thousands_with_a_doorbell_and_a_completion_per_16() {
    const TOTAL: u64 = 4096;
    let options = QpOptions::default().with_max_send(64);
    let (a, b) = pair(&open("null0"), &open("null0"), &options);
    let there = Memory::new(8, 0);
    let flag = there.register(&b.pd, Access::FLAGS);
    let target = flag.remote().range(0, 8).unwrap();
    let mut window = Window::new(a.qp.max_send(), 16);
    let mut batch = Batch::with_capacity(16);
    for value in 0..TOTAL {
        let (id, signal) = loop {
            match window.take() {
                Some(next) => break next,
                None => {
                    a.qp.post(&mut batch).unwrap();
                    a.completions().iter().for_each(|c| window.complete(c.id));
                }
            }
        };
        batch.write_inline(&(value + 1).to_ne_bytes(), target).unwrap().id(id).signalled_if(signal);
        if batch.len() == 16 {
            a.qp.post(&mut batch).unwrap();
            a.completions().iter().for_each(|c| window.complete(c.id));
        }
    }
    a.qp.post(&mut batch).unwrap();
    a.completions().iter().for_each(|c| window.complete(c.id));
    assert_eq!((there.word(0), window.outstanding()), (TOTAL, 0));
    let counts = standin::counts(a.qp.number());
    assert_eq!((counts.requests, counts.doorbells, counts.completions), (TOTAL, TOTAL / 16, TOTAL / 16));
}

#[test]
fn a_request_whose_bytes_could_not_be_made_is_none() {
    let (a, b) = standin_pair();
    let there = Memory::new(16, 2);
    let remote = there.register(&b.pd, Access::FLAGS);
    let to = |offset| remote.remote().range(offset, 8).unwrap();
    let mut batch = Batch::default();
    batch.write_inline(&7_u64.to_ne_bytes(), to(0)).unwrap();
    let refused = batch.write_inline_with(to(8), |bytes| {
        bytes.fill(9);
        Err(crate::Error::usage("test", "on purpose"))
    });
    assert_eq!(refused.map(drop).unwrap_err().message(), "on purpose");
    assert_eq!(batch.len(), 1);
    a.qp.post(&mut batch).unwrap();
    standin::settle();
    assert_eq!((there.word(0), there.byte(8)), (7, 2));
}
