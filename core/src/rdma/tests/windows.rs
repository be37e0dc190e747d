//! Memory windows on the stand-in, which refuses what a NIC refuses.

use super::rig::{End, Memory, pair, standin_pair};
use super::standin;
use crate::rdma::*;

const READ: Access = Access::REMOTE_READ;

/// Registers 128 bytes for windows, under made-up addresses with the same place within a page.
fn region(end: &End, memory: &Memory) -> MemoryRegion {
    memory.register_as(&end.pd, 0x5_0000_0000 + memory.place_in_page(), Access::BIND).unwrap()
}

fn bind(end: &End, window: &mut MemoryWindow, region: &MemoryRegion, range: (u64, u64)) -> RemoteRegion {
    let remote = end.qp.bind(window, region, range, READ, 1).unwrap();
    assert_eq!(end.completion().result.unwrap().operation, Operation::BIND);
    remote
}

/// Reads 8 bytes at `from`; how that ended.
fn read(end: &End, into: &MemoryRegion, from: RemoteRange) -> Option<Status> {
    let mut batch = Batch::default();
    batch.read(into.range(0, 8).unwrap(), from).unwrap().signalled();
    end.qp.post(&mut batch).unwrap();
    end.completion().result.err().map(|failure| failure.status)
}

/// A peer reads the bound range and no more: nothing beside it, nothing through the region, nothing once it is invalidated.
/// A device that does not check ranges, as soft-RoCE of Linux 6.1, lets the peer read all of the region.
pub(super) fn a_window_is_read_until_it_is_invalidated(make: &dyn Fn() -> (End, End), checks_ranges: bool) {
    for attempt in (0..4).filter(|attempt| *attempt != 1 || checks_ranges) {
        let (reader, owner) = make();
        let (here, there) = (Memory::new(8, 0), Memory::new(128, 7));
        let into = here.register(&reader.pd, Access::LOCAL_WRITE);
        let region = region(&owner, &there);
        let mut window = owner.pd.window().unwrap();
        let shown = bind(&owner, &mut window, &region, (32, 64));
        assert_eq!(read(&reader, &into, shown.range(56, 8).unwrap()), None);
        assert_eq!(here.byte(7), 7);
        let refused = match attempt {
            // The region itself gives no right to read.
            0 => read(&reader, &into, region.remote().range(0, 8).unwrap()),
            1 => {
                let beside = RemoteRegion { address: shown.address - 8, ..shown };
                read(&reader, &into, beside.range(0, 8).unwrap())
            }
            _ => {
                owner.qp.invalidate(&window, 2).unwrap();
                assert_eq!(owner.completion().result.unwrap().operation, Operation::INVALIDATE);
                window.invalidated();
                if attempt == 3 {
                    let again = bind(&owner, &mut window, &region, (32, 64));
                    assert_ne!(again.key(), shown.key());
                    assert_eq!(read(&reader, &into, again.range(0, 8).unwrap()), None);
                }
                read(&reader, &into, shown.range(0, 8).unwrap())
            }
        };
        assert_eq!(refused, Some(Status::REMOTE_ACCESS), "{attempt}");
        drop((window, owner, reader));
        drop(region);
        assert_eq!(there.holders(), 0);
    }
}

#[test]
fn a_window_is_read_until_it_is_invalidated_on_the_stand_in() {
    a_window_is_read_until_it_is_invalidated(&standin_pair, true);
}

/// The key is of no use to another peer of the same process.
#[test]
fn only_the_peer_of_the_queue_pair_reads() {
    let (reader, owner) = standin_pair();
    let there = Memory::new(128, 7);
    let region = region(&owner, &there);
    let mut window = owner.pd.window().unwrap();
    let shown = bind(&owner, &mut window, &region, (0, 128));
    let (other, _kept) = standin_pair();
    for (end, expected) in [(&other, Some(Status::REMOTE_ACCESS)), (&reader, None)] {
        let into = Memory::new(8, 0).register(&end.pd, Access::LOCAL_WRITE);
        assert_eq!(read(end, &into, shown.range(0, 8).unwrap()), expected);
    }
    drop(window);
}

/// A window that goes while it is bound takes the rights with it, and the region stays until then.
#[test]
fn a_window_that_is_dropped_gives_no_right() {
    let (reader, owner) = standin_pair();
    let (here, there) = (Memory::new(8, 0), Memory::new(128, 7));
    let into = here.register(&reader.pd, Access::LOCAL_WRITE);
    let region = region(&owner, &there);
    let mut window = owner.pd.window().unwrap();
    let shown = bind(&owner, &mut window, &region, (0, 128));
    drop(region);
    assert_eq!((there.holders(), read(&reader, &into, shown.range(0, 8).unwrap())), (1, None));
    drop(window);
    assert_eq!(there.holders(), 0);
    assert_eq!(read(&reader, &into, shown.range(0, 8).unwrap()), Some(Status::REMOTE_ACCESS));
}

#[test]
fn bindings_that_cannot_be_are_refused() {
    let (_reader, owner) = standin_pair();
    let there = Memory::new(128, 7);
    let (good, plain) = (region(&owner, &there), there.register(&owner.pd, Access::REMOTE_READ));
    let mut window = owner.pd.window().unwrap();
    for (region, range) in [(&good, (0, 129)), (&good, (8, 0)), (&good, (u64::MAX, 2)), (&plain, (0, 8))] {
        let error = owner.qp.bind(&mut window, region, range, READ, 1).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::InvalidUsage, "{range:?}");
    }
    bind(&owner, &mut window, &good, (0, 8));
    assert!(owner.qp.bind(&mut window, &good, (0, 8), READ, 1).is_err(), "it is bound");
    drop(window);
    // The NIC refuses rights that the region cannot give, and regions of another domain; that ends the queue pair.
    let mut window = owner.pd.window().unwrap();
    owner.qp.bind(&mut window, &good, (0, 8), Access::REMOTE_WRITE, 1).unwrap();
    let failure = owner.completion().result.unwrap_err();
    assert_eq!(failure.status.0, rdma_core_sys::ibv_wc_status::IBV_WC_MW_BIND_ERR.0);
    let (_other, second) = standin_pair();
    let mut foreign = second.pd.window().unwrap();
    second.qp.bind(&mut foreign, &good, (0, 8), READ, 1).unwrap();
    assert!(second.completion().result.is_err());
}

#[test]
fn a_nic_without_windows_says_so() {
    let verbs = Verbs::from_table(standin::without_windows(), "old");
    let context = verbs.device("null0").unwrap().open().unwrap();
    assert_eq!(context.attributes().max_windows, 0);
    let (_reader, owner) = pair(&context, &context, &QpOptions::default());
    assert_eq!(owner.pd.window().unwrap_err().kind(), crate::ErrorKind::Unsupported);
    standin::refuse("ibv_alloc_mw", libc::ENOMEM);
    assert_eq!(standin_pair().1.pd.window().unwrap_err().kind(), crate::ErrorKind::Verbs);
}
