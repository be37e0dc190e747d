//! The same against a real provider. Ignored: they need an RDMA device, which `ci/rdma-vm` has (soft-RoCE). Where they are
//! asked for, an absent device is a failure, never a pass. `AQUEDUCT_TEST_NICS` names one or two devices, with a comma.

use std::sync::Arc;

use super::rig::{End, Memory, pair};
use crate::rdma::*;

fn nics() -> (Context, Context) {
    let verbs = Verbs::load(None).unwrap();
    let names = std::env::var("AQUEDUCT_TEST_NICS").ok();
    let devices = verbs.devices(names.as_deref()).unwrap();
    let (first, last) = (devices.first().expect("an RDMA device"), devices.last().expect("an RDMA device"));
    (first.open().unwrap(), last.open().unwrap())
}

fn ends(options: &QpOptions) -> (End, End) {
    let (a, b) = nics();
    pair(&a, &b, options)
}

#[test]
#[ignore = "needs an RDMA device"]
fn nic_attributes_are_sane() {
    let (context, _) = nics();
    let attributes = context.attributes();
    assert!(attributes.ports >= 1 && attributes.max_work_requests > 16 && attributes.max_completions > 16);
    assert!(attributes.max_region > 1 << 20);
    let port = context.active_port(&Settings::default()).unwrap();
    assert!(matches!(port.attributes.active_mtu, 256..=4096));
    if port.attributes.link == LinkLayer::Ethernet {
        assert_eq!(port.gid.unwrap().kind, GidKind::ROCE_V2, "the test setup gives the interface an address");
    }
    assert_ne!(context.pkey(port.attributes.number, 0).unwrap(), 0);
    assert_eq!(context.next_event().unwrap(), None);
    assert!(context.port(attributes.ports + 1).is_err());
}

#[test]
#[ignore = "needs an RDMA device"]
fn nic_moves_data_in_order() {
    const SIZE: u64 = 1 << 20;
    let (a, b) = ends(&QpOptions::default());
    let (here, there) = (Memory::new(SIZE as usize, 0x5a), Memory::new(SIZE as usize + 64, 0));
    let local = here.register(&a.pd, Access::DATA);
    let remote = there.register(&b.pd, Access::FLAGS);
    let mut batch = Batch::default();
    batch.write(local.range(0, SIZE).unwrap(), remote.remote().range(0, SIZE).unwrap()).unwrap();
    batch
        .write_inline(&1_u64.to_ne_bytes(), remote.remote().range(SIZE, 8).unwrap())
        .unwrap()
        .id(2)
        .signalled();
    a.qp.post(&mut batch).unwrap();
    // The flag tells that the data is there, without looking at a completion.
    let deadline = crate::Deadline::after(std::time::Duration::from_secs(20));
    while there.word(SIZE as usize / 8) != 1 {
        deadline.check("test", "the flag").unwrap();
        std::thread::yield_now();
    }
    crate::sync::raw::fence(crate::sync::raw::Ordering::Acquire);
    assert_eq!((there.byte(0), there.byte(SIZE as usize - 1)), (0x5a, 0x5a));
    assert_eq!(a.completion().id, 2);
    assert_eq!(a.qp.counters(), QpCounters { requests: 2, doorbells: 1 });
}

#[test]
#[ignore = "needs an RDMA device"]
fn nic_does_every_kind_of_request() {
    let (a, b) = ends(&QpOptions::default().with_max_receive(4));
    let (here, there) = (Memory::new(128, 1), Memory::new(128, 2));
    let (local, remote) = (here.register(&a.pd, Access::FLAGS), there.register(&b.pd, Access::FLAGS));
    let to = |offset, length| remote.remote().range(offset, length).unwrap();
    let from = |offset, length| local.range(offset, length).unwrap();
    b.qp.post_receive(70, None).unwrap();
    b.qp.post_receive(71, Some(remote.range(96, 16).unwrap())).unwrap();
    let mut batch = Batch::default();
    batch.write_inline(&7_u64.to_ne_bytes(), to(16, 8)).unwrap();
    if a.pd.context().attributes().atomics != Atomics::None {
        batch.fetch_add(from(64, 8), to(16, 8), 5).unwrap();
        batch.compare_swap(from(72, 8), to(16, 8), 12, 99).unwrap();
    }
    batch.read(from(80, 8), to(16, 8)).unwrap();
    batch.write_with_immediate(from(0, 8), to(24, 8), 0xdead_beef).unwrap();
    batch.send(from(0, 16)).unwrap().id(9).signalled();
    a.qp.post(&mut batch).unwrap();
    let end = a.completion();
    assert_eq!((end.id, end.result.unwrap().operation), (9, Operation::SEND));
    let first = b.completion();
    assert_eq!((first.id, first.result.unwrap().immediate), (70, Some(0xdead_beef)));
    let second = b.completion();
    assert_eq!((second.id, second.result.unwrap().bytes), (71, 16));
    if a.pd.context().attributes().atomics != Atomics::None {
        assert_eq!((here.word(8), here.word(9), here.word(10), there.word(2)), (7, 12, 99, 99));
    }
    assert_eq!((there.byte(24), there.byte(96), there.byte(112)), (1, 1, 2));
}

/// Of memory windows, which soft-RoCE has since Linux 5.14.
#[test]
#[ignore = "needs an RDMA device"]
fn nic_windows_are_read_until_they_are_invalidated() {
    let (context, _) = nics();
    assert!(context.attributes().max_windows > 0);
    super::windows::a_window_is_read_until_it_is_invalidated(&|| ends(&QpOptions::default()), false);
}

#[test]
#[ignore = "needs an RDMA device"]
fn nic_refuses_a_wrong_key_and_flushes() {
    let (a, b) = ends(&QpOptions::default());
    let region = Memory::new(64, 0).register(&b.pd, Access::FLAGS);
    let forged = RemoteRegion { key: region.remote().key ^ 0x0101_0100, ..region.remote() };
    let mut batch = Batch::default();
    batch.write_inline(&[1; 8], forged.range(0, 8).unwrap()).unwrap().id(1);
    batch.write_inline(&[1; 8], region.remote().range(0, 8).unwrap()).unwrap().id(2);
    a.qp.post(&mut batch).unwrap();
    let (first, second) = (a.completion(), a.completion());
    assert_eq!((first.id, first.result.unwrap_err().status), (1, Status::REMOTE_ACCESS));
    assert_eq!((second.id, second.result.unwrap_err().status), (2, Status::FLUSHED));
}

#[test]
#[ignore = "needs an RDMA device"]
fn nic_notices_a_peer_that_is_gone() {
    let (a, b) = ends(&QpOptions::default());
    let region = Memory::new(64, 0).register(&b.pd, Access::FLAGS);
    drop(b.qp);
    let mut batch = Batch::default();
    batch.write_inline(&[1; 8], region.remote().range(0, 8).unwrap()).unwrap().id(4);
    a.qp.post(&mut batch).unwrap();
    let completion = a.completion();
    assert_eq!((completion.id, completion.result.unwrap_err().status), (4, Status::RETRIES_EXCEEDED));
}

#[test]
#[ignore = "needs an RDMA device"]
fn nic_keeps_up_with_a_window() {
    const TOTAL: u64 = 2048;
    let (a, b) = ends(&QpOptions::default().with_max_send(64));
    let there = Memory::new(8, 0);
    let flag = there.register(&b.pd, Access::FLAGS);
    let mut window = Window::new(64, 16);
    let mut batch = Batch::with_capacity(16);
    let mut completions = 0;
    for value in 1..=TOTAL {
        let (id, signal) = loop {
            if let Some(next) = window.take() {
                break next;
            }
            a.qp.post(&mut batch).unwrap();
            window.complete(a.completion().id);
            completions += 1;
        };
        let to = flag.remote().range(0, 8).unwrap();
        batch.write_inline(&value.to_ne_bytes(), to).unwrap().id(id).signalled_if(signal);
        if batch.len() == 16 {
            a.qp.post(&mut batch).unwrap();
        }
    }
    a.qp.post(&mut batch).unwrap();
    while window.outstanding() > 0 {
        let completion = a.completion();
        assert!(completion.result.is_ok(), "{completion:?}");
        window.complete(completion.id);
        completions += 1;
    }
    assert_eq!(completions, TOTAL / 16);
    assert!(a.qp.counters().doorbells <= TOTAL / 16 + 1);
    let deadline = crate::Deadline::after(std::time::Duration::from_secs(3600));
    while there.word(0) != TOTAL {
        deadline.check("test", "the last value").unwrap();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn nic_abort_flushes_receives() {
    let (a, _b) = ends(&QpOptions::default().with_max_receive(2));
    a.qp.post_receive(1, None).unwrap();
    a.qp.post_receive(2, None).unwrap();
    a.qp.abort().unwrap();
    for id in [1, 2] {
        let completion = a.completion();
        assert_eq!((completion.id, completion.result.unwrap_err().status), (id, Status::FLUSHED));
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn nic_says_what_it_cannot_register() {
    let (context, _) = nics();
    let pd = context.protection_domain().unwrap();
    // SAFETY: the address is not mapped: nothing is registered.
    let nowhere =
        unsafe { pd.register(std::ptr::without_provenance_mut(4096), 4096, Access::DATA, Arc::new(())) };
    let error = nowhere.unwrap_err();
    assert!(matches!(error.code(), libc::EFAULT | libc::EINVAL | libc::ENOMEM), "{error}");
    let file = std::fs::File::open("/dev/null").unwrap();
    // SAFETY: the descriptor is no dma-buf: nothing is registered.
    let no_buffer = unsafe {
        pd.register_dmabuf(std::os::fd::AsFd::as_fd(&file), 0, 4096, 4096, Access::DATA, Arc::new(()))
    };
    assert!(no_buffer.is_err());
}

#[test]
#[ignore = "needs an RDMA device"]
fn nic_refusals_name_the_attribute() {
    let (context, _) = nics();
    let (pd, cq) = (context.protection_domain().unwrap(), context.completion_queue(8).unwrap());
    let port = context.active_port(&Settings::default()).unwrap();
    let create = || pd.queue_pair(&QpOptions::default(), &cq, &cq).unwrap();
    if let Some(gid) = port.gid {
        let gone = Port { gid: Some(GidEntry { index: 250, ..gid }), ..port };
        let qp = create().init(&gone, &Settings::default(), Access::FLAGS).unwrap();
        let peer = qp.address();
        let error = qp.connect(&peer).unwrap_err();
        assert!(error.message().contains("gid_index 250 has no address any more"), "{error}");
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn nic_completion_queue_that_overflows_is_an_event() {
    let (context, _) = nics();
    let (pd, cq) = (context.protection_domain().unwrap(), context.completion_queue(4).unwrap());
    let port = context.active_port(&Settings::default()).unwrap();
    let qp = pd.queue_pair(&QpOptions::default(), &cq, &cq).unwrap();
    let qp = qp.init(&port, &Settings::default(), Access::FLAGS).unwrap();
    let own = qp.address();
    let qp = qp.connect(&own).unwrap().ready_to_send().unwrap();
    let region = Memory::new(8, 0).register(&pd, Access::FLAGS);
    let mut batch = Batch::default();
    for id in 0..u64::from(cq.capacity()) + 16 {
        batch.write_inline(&[1; 8], region.remote().range(0, 8).unwrap()).unwrap().id(id).signalled();
    }
    qp.post(&mut batch).unwrap();
    let event = event(&context);
    assert_eq!((event.kind, event.about), (EventKind::CQ_ERROR, About::CompletionQueue(cq.number())));
    assert!(event.error().is_some());
}

/// The next event; fails after 20 seconds.
fn event(context: &Context) -> AsyncEvent {
    let deadline = crate::Deadline::after(std::time::Duration::from_secs(20));
    loop {
        if let Some(event) = context.next_event().unwrap() {
            return event;
        }
        deadline.check("test", "an event").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// `AQUEDUCT_TEST_LOSE_NIC` is a command that takes the last device away, e.g. `ip link delete r1` with the network interface
/// of a soft-RoCE device. (`rdma link delete` there waits until every process has closed the device, and until then all goes
/// on.)
#[test]
#[ignore = "needs an RDMA device that may be removed"]
fn lost_nic_is_noticed_at_both_ends() {
    let lose = std::env::var("AQUEDUCT_TEST_LOSE_NIC").expect("AQUEDUCT_TEST_LOSE_NIC");
    let (a, b) = ends(&QpOptions::default());
    let region = Memory::new(64, 0).register(&b.pd, Access::FLAGS);
    let to = region.remote().range(0, 8).unwrap();
    let mut batch = Batch::default();
    batch.write_inline(&[1; 8], to).unwrap().signalled();
    a.qp.post(&mut batch).unwrap();
    assert!(a.completion().result.is_ok());

    let mut remover = std::process::Command::new("sh").arg("-c").arg(lose).spawn().unwrap();
    // Depending on the driver: the device failed, the port lost its link, or its addresses are gone.
    let event = event(b.pd.context());
    assert!(matches!(event.about, About::Device | About::Port(_)), "{event}");
    // At its peer the retries run out, if not for a request that was on its way.
    let failure = (2..100).find_map(|id| {
        batch.write_inline(&[1; 8], to).unwrap().id(id).signalled();
        a.qp.post(&mut batch).unwrap();
        a.completion().result.err()
    });
    assert_eq!(failure.map(|failure| failure.status), Some(Status::RETRIES_EXCEEDED));
    // Requests to the lost NIC end, too: at once, or as a failed completion.
    batch.immediate(1);
    if b.qp.post(&mut batch).is_ok() {
        assert!(b.completion().result.is_err());
    }
    drop((region, b));
    assert!(remover.wait().unwrap().success());
}
