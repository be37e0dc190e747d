//! The test provider is as strict as a NIC where a caller could come to rely on leniency.

mod standin;

use std::ptr::null_mut;

use rdma_core_sys::*;

/// An open device with a protection domain, a completion queue and a queue pair.
struct Nic {
    table: VerbsTable,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
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
            let cap = ibv_qp_cap { max_send_wr: 4, max_recv_wr: 4, ..Default::default() };
            let mut init = ibv_qp_init_attr { send_cq: cq, recv_cq: cq, cap, ..Default::default() };
            let qp = (table.ibv_create_qp)(pd, &raw mut init);
            Self { table, cq, qp }
        }
    }

    fn fail(&self) {
        let mut attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..Default::default() };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0.cast_signed();
        // SAFETY: the queue pair is live.
        assert_eq!(unsafe { (self.table.ibv_modify_qp)(self.qp, &raw mut attr, mask) }, 0);
    }

    fn completions(&self) -> Vec<(u64, ibv_wc_status)> {
        let mut wc = [ibv_wc::default(); 8];
        // SAFETY: the queue is live, and the array has room for 8 completions.
        let count = unsafe { ibv_poll_cq(self.cq, 8, wc.as_mut_ptr()) };
        wc[..usize::try_from(count).unwrap()].iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }
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
    assert_eq!(nic.completions(), [(1, flushed), (2, flushed)]);
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
    assert_eq!(nic.completions().len(), 4);
}

#[test]
fn acknowledging_an_event_that_never_came_is_a_violation() {
    let nic = Nic::open();
    let before = standin::violations();
    // SAFETY: the queue is live.
    unsafe { (nic.table.ibv_ack_cq_events)(nic.cq, 1) };
    assert_eq!(standin::violations(), before + 1);
}
