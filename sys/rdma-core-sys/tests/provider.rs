//! The test provider is as strict as a NIC where a caller could come to rely on leniency.

mod standin;

use std::ptr::null_mut;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use rdma_core_sys::*;

/// An open device with a protection domain, a completion queue and a queue pair.
struct Nic {
    table: VerbsTable,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
    pd: *mut ibv_pd,
}

impl Nic {
    fn open() -> Self {
        let table = standin::table();
        let mut count = 0;
        // SAFETY: outputs are locals; each object is created from the live one before it.
        unsafe {
            let list = (table.ibv_get_device_list)(&raw mut count);
            let context = (table.ibv_open_device)(*list);
            (table.ibv_free_device_list)(list);
            let pd = (table.ibv_alloc_pd)(context);
            let cq = (table.ibv_create_cq)(context, 16, null_mut(), null_mut(), 0);
            let mut nic = Self { table, pd, cq, qp: null_mut() };
            nic.qp = nic.queue_pair(8).0;
            nic
        }
    }

    /// A queue pair more, and what it can do. Null if the NIC cannot.
    fn queue_pair(&self, max_inline_data: u32) -> (*mut ibv_qp, ibv_qp_cap) {
        let (cq, cap) = (
            self.cq,
            ibv_qp_cap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data },
        );
        let mut init = ibv_qp_init_attr { send_cq: cq, recv_cq: cq, cap, ..Default::default() };
        // SAFETY: domain and queue are live.
        let qp = unsafe { (self.table.ibv_create_qp)(self.pd, &raw mut init) };
        (qp, init.cap)
    }

    fn fail(&self) {
        let mut attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..Default::default() };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0.cast_signed();
        // SAFETY: the queue pair is live.
        assert_eq!(unsafe { (self.table.ibv_modify_qp)(self.qp, &raw mut attr, mask) }, 0);
    }

    /// The next completions, as many as there will be.
    fn completions(&self, count: usize) -> Vec<(u64, ibv_wc_status)> {
        let mut all = Vec::new();
        let until = Instant::now() + Duration::from_secs(20);
        while all.len() < count && Instant::now() < until {
            all.extend(self.completions_now());
        }
        all
    }

    fn completions_now(&self) -> Vec<(u64, ibv_wc_status)> {
        let mut wc = [ibv_wc::default(); 8];
        // SAFETY: the queue is live, and the array has room for 8 completions.
        let count = unsafe { ibv_poll_cq(self.cq, 8, wc.as_mut_ptr()) };
        wc[..usize::try_from(count).unwrap()].iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// Connects two of its queue pairs with each other.
    fn connect(&self, pair: [*mut ibv_qp; 2]) {
        use ibv_qp_attr_mask as m;
        // SAFETY: the queue pairs are live.
        let [one, other] = pair.map(|qp| unsafe { (*qp).qp_num });
        for (qp, peer) in pair.into_iter().zip([other, one]) {
            let access = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
            let init = m::IBV_QP_PKEY_INDEX | m::IBV_QP_PORT | m::IBV_QP_ACCESS_FLAGS;
            let receive = m::IBV_QP_AV | m::IBV_QP_PATH_MTU | m::IBV_QP_DEST_QPN | m::IBV_QP_RQ_PSN;
            let receive = receive | m::IBV_QP_MAX_DEST_RD_ATOMIC | m::IBV_QP_MIN_RNR_TIMER;
            let send = m::IBV_QP_TIMEOUT | m::IBV_QP_RETRY_CNT | m::IBV_QP_RNR_RETRY;
            let send = send | m::IBV_QP_SQ_PSN | m::IBV_QP_MAX_QP_RD_ATOMIC;
            let states = [
                (ibv_qp_state::IBV_QPS_INIT, init),
                (ibv_qp_state::IBV_QPS_RTR, receive),
                (ibv_qp_state::IBV_QPS_RTS, send),
            ];
            for (qp_state, mask) in states {
                let mut attr = ibv_qp_attr {
                    qp_state,
                    qp_access_flags: access,
                    dest_qp_num: peer,
                    ..Default::default()
                };
                (attr.port_num, attr.ah_attr.port_num) = (1, 1);
                let mask = (mask | m::IBV_QP_STATE).0.cast_signed();
                // SAFETY: the queue pair is live.
                assert_eq!(unsafe { (self.table.ibv_modify_qp)(qp, &raw mut attr, mask) }, 0);
            }
        }
    }

    fn register(&self, memory: &[AtomicU8]) -> (u64, u32) {
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        let at = memory.as_ptr().cast_mut();
        // SAFETY: tests leak registered memory.
        let region =
            unsafe { (self.table.ibv_reg_mr)(self.pd, at.cast(), memory.len(), access.0.cast_signed()) };
        // SAFETY: just made.
        (at.expose_provenance() as u64, unsafe { (*region).lkey })
    }
}

/// Posts a signalled write of the byte at `from` to `to`. Returns the errno.
fn write(
    qp: *mut ibv_qp,
    wr_id: u64,
    from: (u64, u32),
    to: (u64, u32),
    length: u32,
    inline: bool,
    num_sge: i32,
) -> i32 {
    let mut sge = [ibv_sge { addr: from.0, length, lkey: from.1 }; 2];
    let mut wr = ibv_send_wr { wr_id, sg_list: sge.as_mut_ptr(), num_sge, ..Default::default() };
    wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
    wr.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
    if inline {
        wr.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
    }
    wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: to.0, rkey: to.1 };
    let mut bad = null_mut();
    // SAFETY: queue pair, list and memory are live.
    unsafe { ibv_post_send(qp, &raw mut wr, &raw mut bad) }
}

#[test]
fn requests_that_the_queue_pair_is_not_made_for_are_refused() {
    let nic = Nic::open();
    let (qp, cap) = nic.queue_pair(8);
    assert!(cap.max_inline_data >= 8);
    nic.connect([nic.qp, qp]);
    let memory: &[AtomicU8] = Box::leak((0..4096).map(|_| AtomicU8::new(0)).collect());
    let here = nic.register(memory);
    let too_long = cap.max_inline_data + 1;
    let refused = [libc::ENOMEM, libc::EINVAL];
    assert!(refused.contains(&write(qp, 1, here, here, too_long, true, 1)), "inline data");
    assert!(refused.contains(&write(qp, 1, here, here, 8, false, 2)), "entries of the list");
    assert_eq!(write(qp, 2, here, here, cap.max_inline_data, true, 1), 0);
    assert_eq!(write(qp, 3, here, here, too_long, false, 1), 0);
    assert_eq!(nic.completions(2), [(2, ibv_wc_status::IBV_WC_SUCCESS), (3, ibv_wc_status::IBV_WC_SUCCESS)]);
    assert!(nic.queue_pair(1 << 20).0.is_null());
}

/// Writes of one queue pair come in order and those of another whenever they like; a completion comes behind its data.
#[test]
fn an_unkind_nic_orders_nothing_but_the_requests_of_one_queue_pair() {
    let by_hand = standin::ByHand::unkind(7);
    let (mut overtaken, mut early) = (false, false);
    let nic = Nic::open();
    for _ in 0..200 {
        let pairs = [nic.queue_pair(8).0, nic.queue_pair(8).0];
        let others = [nic.queue_pair(8).0, nic.queue_pair(8).0];
        (0..2).for_each(|i| nic.connect([pairs[i], others[i]]));
        let words: &[AtomicU8] = Box::leak((0..3).map(|_| AtomicU8::new(0)).collect());
        let one: &[AtomicU8] = Box::leak([AtomicU8::new(1)].into());
        let (at, from) = (nic.register(words), nic.register(one));
        let to = |i: u64| (at.0 + i, at.1);
        // The first queue pair writes 0 and 1, then the other one writes 2.
        for (i, qp) in [(0, pairs[0]), (1, pairs[0]), (2, pairs[1])] {
            assert_eq!(write(qp, i, from, to(i), 1, false, 1), 0);
        }
        let mut ended = Vec::new();
        while ended.len() < 3 {
            by_hand.step();
            let [second, first, other] = [1, 0, 2].map(|i: usize| words[i].load(Ordering::Acquire) == 1);
            assert!(first || !second, "a queue pair is out of order");
            overtaken |= other && !first;
            let polled = nic.completions_now();
            early |= polled.is_empty() && ended.is_empty() && first && second && other;
            for (id, status) in polled {
                assert_eq!(
                    (status, words[id as usize].load(Ordering::Acquire)),
                    (ibv_wc_status::IBV_WC_SUCCESS, 1)
                );
                ended.push(id);
            }
        }
        let place = |id| ended.iter().position(|ended| *ended == id);
        assert!(place(0) < place(1), "{ended:?}");
    }
    assert!(overtaken && early, "overtaken: {overtaken}, data long before the completion: {early}");
}

#[test]
fn a_list_of_receives_is_posted_as_a_whole() {
    let nic = Nic::open();
    let mut second = ibv_recv_wr { wr_id: 2, ..Default::default() };
    let mut first = ibv_recv_wr { wr_id: 1, next: &raw mut second, ..Default::default() };
    let mut bad = null_mut();
    // SAFETY: the queue pair and the list are live.
    assert_eq!(unsafe { ibv_post_recv(nic.qp, &raw mut first, &raw mut bad) }, 0);
    nic.fail();
    let flushed = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
    assert_eq!(nic.completions(2), [(1, flushed), (2, flushed)]);
}

#[test]
fn the_receive_that_does_not_fit_is_the_bad_one() {
    let nic = Nic::open();
    let mut list: Vec<ibv_recv_wr> =
        (1..=5).map(|wr_id| ibv_recv_wr { wr_id, ..Default::default() }).collect();
    for i in 0..4 {
        list[i].next = &raw mut list[i + 1];
    }
    let mut bad = null_mut();
    // SAFETY: the queue pair and the list are live.
    assert_eq!(unsafe { ibv_post_recv(nic.qp, list.as_mut_ptr(), &raw mut bad) }, libc::ENOMEM);
    assert_eq!(bad.cast_const(), &raw const list[4], "the queue has room for four");
    nic.fail();
    assert_eq!(nic.completions(4).len(), 4);
}

#[test]
fn acknowledging_an_event_that_never_came_is_a_violation() {
    let nic = Nic::open();
    let before = standin::violations();
    // SAFETY: the queue is live.
    unsafe { (nic.table.ibv_ack_cq_events)(nic.cq, 1) };
    assert_eq!(standin::violations(), before + 1);
}

/// Runs `destroy` on another thread, which must not return before `acknowledge` was called.
fn waits_for(destroy: impl FnOnce() + Send, acknowledge: impl FnOnce()) {
    let before = standin::violations();
    std::thread::scope(|scope| {
        let destroying = scope.spawn(destroy);
        std::thread::sleep(Duration::from_millis(50));
        assert!(!destroying.is_finished(), "an event that was read is not acknowledged");
        acknowledge();
    });
    assert_eq!(standin::violations(), before);
}

/// For raw pointers of objects that the provider lets any thread use.
struct Any<T>(*mut T);
// SAFETY: libibverbs lets any thread use its objects.
unsafe impl<T> Send for Any<T> {}

impl<T> Any<T> {
    fn get(self) -> *mut T {
        self.0
    }
}

/// A thread that reads the events of a channel may not know that another one destroys the queue.
#[test]
fn destroying_a_queue_waits_for_the_acknowledgement_of_its_events() {
    let nic = Nic::open();
    let table = &nic.table;
    // SAFETY: the context is live, and each object is made from the one before.
    let (channel, cq) = unsafe {
        let channel = (table.ibv_create_comp_channel)((*nic.qp).context);
        (channel, (table.ibv_create_cq)((*nic.qp).context, 16, null_mut(), channel, 0))
    };
    let cap = ibv_qp_cap { max_recv_wr: 4, max_recv_sge: 1, ..Default::default() };
    let mut init = ibv_qp_init_attr { send_cq: cq, recv_cq: cq, cap, ..Default::default() };
    let (mut bad, mut woken, mut context) = (null_mut(), null_mut(), null_mut());
    let mut receive = ibv_recv_wr::default();
    let mut attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..Default::default() };
    // SAFETY: all objects and outputs are live.
    unsafe {
        let qp = (table.ibv_create_qp)(nic.pd, &raw mut init);
        assert_eq!(ibv_req_notify_cq(cq, 0), 0);
        assert_eq!(ibv_post_recv(qp, &raw mut receive, &raw mut bad), 0);
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0.cast_signed();
        assert_eq!((table.ibv_modify_qp)(qp, &raw mut attr, mask), 0);
        assert_eq!((table.ibv_get_cq_event)(channel, &raw mut woken, &raw mut context), 0);
        assert_eq!(woken, cq);
        assert_eq!((table.ibv_destroy_qp)(qp), 0);
    }
    let gone = Any(cq);
    // SAFETY: nothing uses the queue any more but the acknowledgement, for which this waits.
    let destroy = move || assert_eq!(unsafe { (table.ibv_destroy_cq)(gone.get()) }, 0);
    // SAFETY: the queue is live until then.
    waits_for(destroy, || unsafe { (table.ibv_ack_cq_events)(woken, 1) });
}

/// Nobody may read of an object that is gone.
#[test]
fn destroying_a_queue_pair_waits_for_its_events_and_takes_the_unread_ones_along() {
    let nic = Nic::open();
    let table = &nic.table;
    // SAFETY: the queue pair is live.
    let (context, number) = unsafe { ((*nic.qp).context, (*nic.qp).qp_num) };
    let mut event = ibv_async_event::default();
    standin::raise(number, ibv_event_type::IBV_EVENT_QP_FATAL);
    standin::raise(number, ibv_event_type::IBV_EVENT_QP_ACCESS_ERR);
    // SAFETY: the context and the output are live.
    assert_eq!(unsafe { (table.ibv_get_async_event)(context, &raw mut event) }, 0);
    let gone = Any(nic.qp);
    // SAFETY: nothing uses the queue pair any more.
    let destroy = move || assert_eq!(unsafe { (table.ibv_destroy_qp)(gone.get()) }, 0);
    // SAFETY: the event was read, and is acknowledged once.
    waits_for(destroy, || unsafe { (table.ibv_ack_async_event)(&raw mut event) });
    // SAFETY: the context is live, and the flag keeps the call below from waiting.
    unsafe { libc::fcntl((*context).async_fd, libc::F_SETFL, libc::O_NONBLOCK) };
    // SAFETY: as above.
    assert_eq!(unsafe { (table.ibv_get_async_event)(context, &raw mut event) }, -1);
}
