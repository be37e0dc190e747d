//! Devices, ports and objects: what is chosen, what is refused, and that everything goes in order.

use std::os::fd::AsFd;
use std::sync::Arc;

use rdma_core_sys::VerbsTable;

use super::rig::{Memory, open, pair, standin_pair, verbs};
use super::standin;
use crate::ErrorKind;
use crate::rdma::*;

#[test]
fn devices_are_counted_by_name_or_as_asked_for() {
    let names = |names: Option<&str>| {
        verbs().devices(names).map(|all| all.iter().map(|d| d.name().to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(names(None).unwrap(), ["bare0", "dark0", "null0", "null1", "warp0"]);
    assert_eq!(names(Some("null1, null0")).unwrap(), ["null1", "null0"]);
    let error = names(Some("null0,mlx5_0")).unwrap_err();
    assert!(error.message().contains("no RDMA device `mlx5_0`: there are bare0, dark0, null0"), "{error}");
}

#[test]
fn a_host_without_a_nic_or_without_support_says_so() {
    let error = Verbs::from_table(standin::without_devices(), "empty").device("mlx5_0").unwrap_err();
    assert!(error.message().contains("this host has none"), "{error}");
    standin::refuse("ibv_get_device_list", libc::ENOSYS);
    let error = verbs().devices(None).unwrap_err();
    assert!(error.message().contains("modprobe ib_uverbs"), "{error}");
    let error = Verbs::from_table(VerbsTable::not_supported(), "nothing").devices(None).unwrap_err();
    assert_eq!((error.kind(), error.op()), (ErrorKind::Unsupported, "ibv_get_device_list"));
    let error = Verbs::load(Some("/nonexistent/libibverbs.so.1")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("install rdma-core"), "{error}");
}

#[test]
fn what_cannot_be_opened_says_why() {
    let error = verbs().device("warp0").unwrap().open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    for (errno, hint) in [(libc::EACCES, "may this user open"), (libc::ENODEV, "in a container")] {
        standin::refuse("ibv_open_device", errno);
        let error = verbs().device("null0").unwrap().open().unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Verbs, errno));
        assert!(error.message().contains(hint), "{error}");
    }
}

#[test]
fn the_active_port_and_the_best_gid_are_taken() {
    let context = open("null0");
    let port = context.active_port(&Settings::default()).unwrap();
    assert_eq!((port.attributes.number, port.attributes.link), (1, LinkLayer::Ethernet));
    let gid = port.gid.unwrap();
    assert_eq!((gid.index, gid.kind, gid.gid.to_string().as_str()), (3, GidKind::ROCE_V2, "::ffff:10.0.0.1"));
    let by_hand = context.active_port(&Settings { gid_index: Some(1), ..Settings::default() }).unwrap();
    assert_eq!(by_hand.gid.unwrap().index, 1);

    let port = open("null1").active_port(&Settings::default()).unwrap();
    assert_eq!((port.attributes.number, port.attributes.lid, port.gid), (2, 7, None));
    assert_eq!(port.attributes.active_mtu, 4096);
}

#[test]
fn ports_and_tables_that_cannot_be_used_are_errors() {
    let error = open("dark0").active_port(&Settings::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("device dark0 has no active port: port 1 is down"), "{error}");
    let error = open("null1").active_port(&Settings { port: Some(1), ..Settings::default() }).unwrap_err();
    assert!(error.message().contains("port 1 is down"), "{error}");
    let error = open("null1").active_port(&Settings { port: Some(3), ..Settings::default() }).unwrap_err();
    assert!(error.message().contains("no port 3: its ports are 1 to 2"), "{error}");
    let error = open("bare0").active_port(&Settings::default()).unwrap_err();
    assert!(error.message().contains("no RoCE address: it is empty"), "{error}");
}

#[test]
fn memory_is_kept_exactly_as_long_as_the_nic_may_reach_it() {
    let pd = open("null0").protection_domain().unwrap();
    let memory = Memory::new(4096, 0);
    let region = memory.register(&pd, Access::DATA);
    let clone = region.clone();
    drop(region);
    assert_eq!((memory.holders(), clone.len()), (1, 4096));
    drop(clone);
    assert_eq!(memory.holders(), 0);
    // A region that cannot be deregistered keeps its memory for good.
    let region = memory.register(&pd, Access::DATA);
    standin::refuse("ibv_dereg_mr", libc::EBUSY);
    drop(region);
    assert_eq!(memory.holders(), 1);
    std::mem::forget(pd);
}

#[test]
fn what_cannot_be_registered_says_what_to_change() {
    let pd = open("null0").protection_domain().unwrap();
    let memory = Memory::new(64, 0);
    for (errno, kind, hint) in [
        (libc::ENOMEM, ErrorKind::Verbs, if unlimited() { "out of resources" } else { "ulimit -l" }),
        (libc::EFAULT, ErrorKind::Verbs, "nvidia_peermem"),
        (libc::EOPNOTSUPP, ErrorKind::Unsupported, "cannot register this kind"),
    ] {
        standin::refuse("ibv_reg_mr", errno);
        let error = memory.try_register(&pd, Access::DATA.without(Access::RELAXED_ORDERING)).unwrap_err();
        assert_eq!((error.kind(), error.code()), (kind, errno));
        assert!(error.message().contains(hint), "{error}");
    }
    let error = memory.try_register(&pd, Access::REMOTE_WRITE).unwrap_err();
    assert!(error.message().contains("needs local write"), "{error}");
    for (address, length) in [(0x1000, 0), (usize::MAX, 8), (0x1000, 1 << 41)] {
        let address = std::ptr::without_provenance_mut(address);
        // SAFETY: refused before the memory is looked at.
        let error = unsafe { pd.register(address, length, Access::DATA, Arc::new(())) }.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage);
    }
}

fn unlimited() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a live output.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    limit.rlim_cur == libc::RLIM_INFINITY
}

#[test]
fn sizes_beyond_the_nics_are_refused_with_the_limit() {
    let context = open("null0");
    let error = context.completion_queue(1 << 17).unwrap_err();
    assert!(error.message().contains("1 to 65536"), "{error}");
    let (pd, cq) = (context.protection_domain().unwrap(), context.completion_queue(16).unwrap());
    let error = pd.queue_pair(&QpOptions::default().with_max_send(5000), &cq, &cq).unwrap_err();
    assert!(error.message().contains("max_send is 5000: device null0 takes 1 to 4096"), "{error}");
    let other = open("null0").completion_queue(16).unwrap();
    let error = pd.queue_pair(&QpOptions::default(), &cq, &other).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidUsage);
    for (most, given) in [(64, 64), (40, 32), (31, 16), (15, 8), (7, 0), (0, 0)] {
        standin::limit_inline(most);
        let qp = pd.queue_pair(&QpOptions::default(), &cq, &cq).unwrap();
        assert!((given..=most).contains(&qp.max_inline()), "{} of {most}", qp.max_inline());
    }
}

#[test]
fn any_order_of_drops_is_right() {
    let before = standin::violations();
    let (a, b) = standin_pair();
    let memory = Memory::new(64, 0);
    let region = memory.register(&a.pd, Access::DATA);
    let context = a.pd.context().clone();
    drop(a.pd);
    drop(a.cq);
    drop(context);
    drop(region);
    drop(a.qp);
    drop((b.pd, b.qp, b.cq));
    let context = open("null0");
    let channel = context.completion_channel().unwrap();
    let cq = context.completion_queue_with(8, &channel).unwrap();
    let pd = context.protection_domain().unwrap();
    let other = context.completion_queue(8).unwrap();
    let qp = pd.queue_pair(&QpOptions::default(), &cq, &other).unwrap();
    drop((context, channel, cq, other, pd, qp));
    assert_eq!(standin::violations(), before);
}

#[test]
fn ends_that_cannot_reach_each_other_are_told_which_setting_to_change() {
    let (one, two) = (open("null0"), open("null0"));
    let prepared = |context: &Context, settings: &Settings| {
        let cq = context.completion_queue(8).unwrap();
        let qp = context.protection_domain().unwrap().queue_pair(&QpOptions::default(), &cq, &cq).unwrap();
        qp.init(&context.active_port(settings).unwrap(), settings, Access::FLAGS).unwrap()
    };
    let v1 = prepared(&one, &Settings { gid_index: Some(2), ..Settings::default() });
    let error = prepared(&two, &Settings::default()).connect(&v1.address()).unwrap_err();
    assert!(error.message().contains("RoCE v2 here, RoCE v1 at the peer; set gid_index"), "{error}");
    let by_lid = prepared(&open("null1"), &Settings::default());
    let error = prepared(&two, &Settings::default()).connect(&by_lid.address()).unwrap_err();
    assert!(error.message().contains("a LID only at the peer"), "{error}");
}

#[test]
fn a_refused_transition_names_the_attribute() {
    let context = open("null0");
    let (pd, cq) = (context.protection_domain().unwrap(), context.completion_queue(8).unwrap());
    let port = context.active_port(&Settings::default()).unwrap();
    let create = || pd.queue_pair(&QpOptions::default(), &cq, &cq).unwrap();

    let bad = Settings { pkey_index: 5, ..Settings::default() };
    let error = create().init(&port, &bad, Access::FLAGS).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidUsage);
    assert!(error.message().contains("pkey_index 5 is outside the partition key table"), "{error}");
    // An entry without a key, in a table that claims to have it.
    let mut two = port;
    two.attributes.pkey_table_length = 2;
    let empty = Settings { pkey_index: 1, ..Settings::default() };
    let error = create().init(&two, &empty, Access::FLAGS).unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Verbs, libc::EINVAL));
    assert!(error.message().contains("cannot become init: pkey_index 1 has no partition key"), "{error}");

    // The GID was taken away between choosing and connecting.
    let mut gone = port;
    gone.gid = gone.gid.map(|gid| GidEntry { index: 9, ..gid });
    let qp = create().init(&gone, &Settings::default(), Access::FLAGS).unwrap();
    let peer = qp.address();
    let error = qp.connect(&peer).unwrap_err();
    assert!(error.message().contains("gid_index 9 has no address any more"), "{error}");

    let ready = || create().init(&port, &Settings::default(), Access::FLAGS).unwrap();
    for (errno, hint) in [
        (libc::EINVAL, "may not suit the path to ::ffff:10.0.0.1 (RoCE v2)"),
        (libc::ETIMEDOUT, "no way to ::ffff:10.0.0.1"),
        (libc::ENODEV, "is gone"),
    ] {
        let qp = ready();
        standin::refuse("ibv_modify_qp", errno);
        let error = qp.connect(&peer).unwrap_err();
        assert!(error.message().contains(hint), "{error}");
    }
    let error = ready().connect(&peer).and_then(|qp| {
        standin::refuse("ibv_modify_qp", libc::EINVAL);
        qp.ready_to_send()
    });
    assert!(error.unwrap_err().message().contains("cannot become ready to send"));
    let bad = Settings { retry_count: 9, ..Settings::default() };
    assert_eq!(create().init(&port, &bad, Access::FLAGS).unwrap_err().kind(), ErrorKind::InvalidUsage);
}

#[test]
fn every_setting_reaches_the_nic() {
    let context = open("null0");
    let (pd, cq) = (context.protection_domain().unwrap(), context.completion_queue(8).unwrap());
    let settings = Settings {
        mtu: Some(512),
        service_level: 3,
        traffic_class: 104,
        hop_limit: 9,
        timeout: 10,
        retry_count: 2,
        rnr_retry: 1,
        min_rnr_timer: 20,
        max_read_atomic: 7,
        ..Settings::default()
    };
    let port = context.active_port(&settings).unwrap();
    let create = |settings: &Settings| {
        pd.queue_pair(&QpOptions::default(), &cq, &cq).unwrap().init(&port, settings, Access::DATA).unwrap()
    };
    let peer = create(&Settings { max_read_atomic: 5, ..Settings::default() }).address();
    let qp = create(&settings);
    let own = qp.address();
    let qp = qp.connect(&peer).unwrap().ready_to_send().unwrap();
    let [init, rtr, rts] = standin::moves(qp.number())[..] else { panic!("three transitions") };
    assert_eq!((init.port_num, init.pkey_index), (1, 0));
    assert_eq!(
        init.qp_access_flags,
        (Access::REMOTE_READ | Access::REMOTE_WRITE | Access::LOCAL_WRITE).bits()
    );
    assert_eq!((rtr.path_mtu.0, rtr.dest_qp_num, rtr.rq_psn), (2, peer.qp_number, peer.psn));
    assert_eq!((rtr.max_dest_rd_atomic, rtr.min_rnr_timer, rtr.ah_attr.sl), (7, 20, 3));
    let grh = rtr.ah_attr.grh;
    assert_eq!((grh.traffic_class, grh.hop_limit, grh.sgid_index), (104, 9, 3));
    assert_eq!((rts.timeout, rts.retry_cnt, rts.rnr_retry), (10, 2, 1));
    assert_eq!((rts.max_rd_atomic, qp.max_reads()), (5, 5), "what the peer can serve");
    assert_eq!((rts.sq_psn, own.mtu), (own.psn, 512));
}

/// Packets that are longer than either port can take would be dropped.
#[test]
fn the_path_mtu_is_the_smaller_one_of_both_ends() {
    let context = open("null0");
    let (pd, cq) = (context.protection_domain().unwrap(), context.completion_queue(8).unwrap());
    let create = |mtu| {
        let settings = Settings { mtu: Some(mtu), ..Settings::default() };
        let port = context.active_port(&settings).unwrap();
        pd.queue_pair(&QpOptions::default(), &cq, &cq).unwrap().init(&port, &settings, Access::DATA).unwrap()
    };
    // In the units of the driver: 1 for 256 bytes, 2 for 512, 3 for 1,024.
    for (own, theirs, agreed) in [(1024, 256, 1), (512, 1024, 2), (1024, 1024, 3)] {
        let peer = create(theirs).address();
        assert_eq!(peer.mtu, theirs);
        let qp = create(own).connect(&peer).unwrap();
        let [_, rtr] = standin::moves(qp.number())[..] else { panic!("two transitions") };
        assert_eq!(rtr.path_mtu.0, agreed, "{own} here, {theirs} there");
    }
}

/// The device serves 16 reads at once, and has 8 outstanding.
#[test]
fn the_depth_of_reads_is_the_least_of_both_ends() {
    let context = open("null0");
    let (pd, cq) = (context.protection_domain().unwrap(), context.completion_queue(8).unwrap());
    let create = |reads| {
        let settings = Settings { max_read_atomic: reads, ..Settings::default() };
        let port = context.active_port(&settings).unwrap();
        pd.queue_pair(&QpOptions::default(), &cq, &cq).unwrap().init(&port, &settings, Access::DATA).unwrap()
    };
    for (own, theirs, agreed) in [(16, 16, 8), (4, 16, 4), (16, 3, 3), (0, 16, 0), (16, 0, 0)] {
        let peer = create(theirs).address();
        assert_eq!(peer.max_read_atomic, theirs);
        let qp = create(own).connect(&peer).unwrap().ready_to_send().unwrap();
        let [_, rtr, rts] = standin::moves(qp.number())[..] else { panic!("three transitions") };
        assert_eq!((qp.max_reads(), rts.max_rd_atomic, rtr.max_dest_rd_atomic), (agreed, agreed, own));
        let mut batch = Batch::default();
        let memory = Memory::new(8, 0).register(&pd, Access::DATA);
        batch.read(memory.range(0, 8).unwrap(), memory.remote().range(0, 8).unwrap()).unwrap();
        assert_eq!(qp.post(&mut batch).is_ok(), agreed > 0);
    }
}

#[test]
fn infiniband_connects_by_lid() {
    let (a, _b) = pair(&open("null1"), &open("null1"), &QpOptions::default());
    assert_eq!(a.qp.counters(), QpCounters::default());
    assert!(format!("{:?}", a.qp).contains("ready to send"));
}

#[test]
fn in_a_forked_child_calls_fail_and_drop_does_nothing() {
    let (a, _b) = standin_pair();
    let context = a.pd.context().clone();
    // SAFETY: the child makes no call of the provider, allocates (glibc allows it after fork), and leaves with _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut batch = Batch::with_capacity(1);
        batch.immediate(1);
        let refused = a.qp.post(&mut batch).is_err_and(|e| e.error.message().contains("before fork"))
            && context.port(1).is_err()
            && context.device().open().is_err();
        // Were it called, the refusal would be used up.
        standin::refuse("ibv_destroy_qp", libc::EBUSY);
        drop(a);
        let refused = refused && standin::not_called() == 1;
        // SAFETY: _exit is async-signal-safe.
        unsafe { libc::_exit(if refused { 7 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: `child` is ours and `status` is a live output.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 7);
    assert!(context.port(1).is_ok());
    assert!(context.as_fd().try_clone_to_owned().is_ok());
}
