//! The functions of the table for completion queues and queue pairs.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};

use rdma_core_sys::*;

use super::devices::ports;
use super::machine::{
    Channel, Cq, FIRST_QP, MAX_SGE, Machine, Qp, Receive, close, fail, machine, pipe, status,
};
use super::notices::{acknowledged, next_notice, note_acknowledged, take_wake};
use super::refused;

pub(super) unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    if let Some(errno) = refused("ibv_create_comp_channel") {
        return fail(errno);
    }
    let pipe = pipe();
    let channel = Box::into_raw(Box::new(ibv_comp_channel { context, fd: pipe[0], refcnt: 0 }));
    let mut machine = machine();
    machine.adopt(context.cast());
    machine.channels.insert(channel.addr(), Channel { waiting: VecDeque::new(), pipe });
    channel
}

pub(super) unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    if let Some(errno) = refused("ibv_destroy_comp_channel") {
        return errno;
    }
    let mut machine = machine();
    if !machine.is_free(channel.cast()) {
        return libc::EBUSY;
    }
    close(machine.channels.remove(&channel.addr()).expect("a channel").pipe);
    // SAFETY: `create_comp_channel` allocated it, and it is freed once.
    let channel = unsafe { Box::from_raw(channel) };
    machine.release(channel.context.cast());
    0
}

pub(super) unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    if let Some(errno) = refused("ibv_create_cq") {
        return fail(errno);
    }
    let mut machine = machine();
    let handle = machine.cqs.len() as u32;
    let raw =
        Box::into_raw(Box::new(ibv_cq { context, channel, cq_context, handle, cqe, ..Default::default() }));
    machine.adopt(context.cast());
    if !channel.is_null() {
        machine.adopt(channel.cast());
    }
    let (channel, room) = (channel.addr(), cqe as usize);
    let ready = VecDeque::with_capacity(room.min(4096));
    let cq = Cq {
        raw,
        channel,
        room,
        ready,
        late: VecDeque::new(),
        lost: false,
        notify: false,
        unacknowledged: 0,
        once_empty: None,
    };
    machine.cqs.push(Some(cq));
    raw
}

pub(super) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    if let Some(errno) = refused("ibv_destroy_cq") {
        return errno;
    }
    let mut machine = machine();
    if !machine.is_free(cq.cast()) {
        return libc::EBUSY;
    }
    // SAFETY: the queue is live.
    let (context, handle, channel) = unsafe { ((*cq).context, (*cq).handle, (*cq).channel) };
    // Events that nobody has read go with the queue, as in the kernel.
    if let Some(channel) = machine.channels.get_mut(&channel.addr()) {
        let before = channel.waiting.len();
        channel.waiting.retain(|waiting| !std::ptr::eq(*waiting, cq));
        for _ in channel.waiting.len()..before {
            take_wake(channel.pipe);
        }
    }
    machine.forget_events(context, cq.addr());
    let all_acknowledged = |machine: &mut Machine| {
        machine.cq(handle).unacknowledged == 0 && !machine.has_unacknowledged(context, cq.addr())
    };
    let mut machine = acknowledged(machine, all_acknowledged);
    machine.cqs[handle as usize].take().expect("a completion queue");
    // SAFETY: `create_cq` allocated it, and it is freed once.
    let cq = unsafe { Box::from_raw(cq) };
    if !cq.channel.is_null() {
        machine.release(cq.channel.cast());
    }
    machine.release(cq.context.cast());
    0
}

pub(super) unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    if let Some(errno) = refused("ibv_get_cq_event") {
        return status(errno);
    }
    let next = next_notice(|machine| {
        let channel = machine.channels.get_mut(&channel.addr()).expect("a channel");
        (channel.pipe, channel.waiting.pop_front())
    });
    let Some((mut machine, queue)) = next else { return -1 };
    // SAFETY: the caller passes valid output pointers, and the queue is live.
    unsafe {
        machine.cq((*queue).handle).unacknowledged += 1;
        *cq = queue;
        *cq_context = (*queue).cq_context;
    }
    0
}

pub(super) unsafe extern "C" fn ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    // SAFETY: the queue is live.
    let handle = unsafe { (*cq).handle };
    let mut machine = machine();
    let queue = machine.cq(handle);
    match queue.unacknowledged.checked_sub(count) {
        Some(rest) => queue.unacknowledged = rest,
        None => machine.violations += 1,
    }
    note_acknowledged();
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, _: c_int) -> c_int {
    if let Some(errno) = refused("ibv_req_notify_cq") {
        return errno;
    }
    // SAFETY: the queue is live.
    machine().cq(unsafe { (*cq).handle }).notify = true;
    0
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, most: c_int, out: *mut ibv_wc) -> c_int {
    if let Some(errno) = refused("ibv_poll_cq") {
        return -errno;
    }
    let mut machine = machine();
    let Machine { cqs, qps, .. } = &mut *machine;
    // SAFETY: the queue is live.
    let handle = unsafe { (*cq).handle };
    let queue = cqs[handle as usize].as_mut().expect("a completion queue");
    if queue.lost {
        return -1;
    }
    let count = queue.ready.len().min(most as usize);
    for (i, entry) in queue.ready.drain(..count).enumerate() {
        if entry.frees > 0
            && let Some(qp) = &mut qps[(entry.qp - FIRST_QP) as usize]
        {
            qp.used -= entry.frees;
        }
        // SAFETY: the caller passes room for `most` entries.
        unsafe { out.add(i).write(entry.wc) };
    }
    if count == 0
        && let Some(then) = queue.once_empty.take()
    {
        // It may post and poll.
        drop(machine);
        then();
    }
    count as c_int
}

pub(super) unsafe extern "C" fn create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    if let Some(errno) = refused("ibv_create_qp") {
        return fail(errno);
    }
    // SAFETY: the caller's attributes are live.
    let init = unsafe { &mut *init };
    // SAFETY: the protection domain is live.
    let context = unsafe { (*pd).context };
    let mut machine = machine();
    let cap = &mut init.cap;
    let sges = cap.max_send_sge.max(cap.max_recv_sge);
    if cap.max_inline_data > machine.max_inline() || sges > MAX_SGE {
        return fail(libc::EINVAL);
    }
    // A NIC may give more than it was asked for.
    cap.max_inline_data = machine.granted(cap.max_inline_data);
    cap.max_send_wr *= super::SENDS.get();
    for owner in [pd.cast::<c_void>(), init.send_cq.cast(), init.recv_cq.cast()] {
        machine.adopt(owner);
    }
    let number = machine.qps.len() as u32 + FIRST_QP;
    // SAFETY: the queues are live.
    let handle = |queue: *mut ibv_cq| unsafe { (*queue).handle };
    let raw = ibv_qp {
        context,
        pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        qp_num: number,
        qp_type: init.qp_type,
        ..Default::default()
    };
    let raw = Box::into_raw(Box::new(raw));
    let qp = Qp {
        raw,
        cap: init.cap,
        state: ibv_qp_state::IBV_QPS_RESET,
        access: 0,
        peer: 0,
        send_cq: handle(init.send_cq),
        receive_cq: handle(init.recv_cq),
        used: 0,
        uncovered: 0,
        receives: VecDeque::new(),
        held: false,
        pending: VecDeque::new(),
        fail_next: None,
        moves: Vec::new(),
        counts: Default::default(),
    };
    machine.qps.push(Some(qp));
    raw
}

pub(super) unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, set: c_int) -> c_int {
    use ibv_qp_attr_mask as m;
    if let Some(errno) = refused("ibv_modify_qp") {
        return errno;
    }
    // SAFETY: queue pair and attributes are live.
    let (number, context, attr) = unsafe { ((*qp).qp_num, (*qp).context, &*attr) };
    let mut machine = machine();
    let has = |needed: m| m(set.cast_unsigned()) == m::IBV_QP_STATE | needed;
    let port = |number: u8| ports(context).get(usize::from(number).wrapping_sub(1));
    let record = machine.qp(number);
    let valid = match (record.state, attr.qp_state) {
        (_, ibv_qp_state::IBV_QPS_ERR) => {
            machine.break_down(number);
            return 0;
        }
        (ibv_qp_state::IBV_QPS_RESET, ibv_qp_state::IBV_QPS_INIT) => {
            record.access = attr.qp_access_flags;
            has(m::IBV_QP_PKEY_INDEX | m::IBV_QP_PORT | m::IBV_QP_ACCESS_FLAGS)
                && attr.qp_access_flags < ibv_access_flags::IBV_ACCESS_MW_BIND.0
                && port(attr.port_num).is_some_and(|port| attr.pkey_index < port.attr.pkey_tbl_len)
        }
        (ibv_qp_state::IBV_QPS_INIT, ibv_qp_state::IBV_QPS_RTR) => {
            record.peer = attr.dest_qp_num;
            let address = &attr.ah_attr;
            let index = u32::from(address.grh.sgid_index);
            let masks = m::IBV_QP_AV
                | m::IBV_QP_PATH_MTU
                | m::IBV_QP_DEST_QPN
                | m::IBV_QP_RQ_PSN
                | m::IBV_QP_MAX_DEST_RD_ATOMIC
                | m::IBV_QP_MIN_RNR_TIMER;
            has(masks)
                && attr.max_dest_rd_atomic <= 16
                && port(address.port_num).is_some_and(|port| {
                    attr.path_mtu.0 <= port.attr.active_mtu.0
                        && (address.is_global == 0 || port.gids.iter().any(|entry| entry.gid_index == index))
                })
        }
        (ibv_qp_state::IBV_QPS_RTR, ibv_qp_state::IBV_QPS_RTS) => {
            let masks = m::IBV_QP_TIMEOUT
                | m::IBV_QP_RETRY_CNT
                | m::IBV_QP_RNR_RETRY
                | m::IBV_QP_SQ_PSN
                | m::IBV_QP_MAX_QP_RD_ATOMIC;
            has(masks) && attr.max_rd_atomic <= 8
        }
        _ => false,
    };
    if !valid {
        return libc::EINVAL;
    }
    let record = machine.qp(number);
    record.state = attr.qp_state;
    record.moves.push(*attr);
    0
}

pub(super) unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    if let Some(errno) = refused("ibv_destroy_qp") {
        return errno;
    }
    let mut machine = machine();
    // soft-RoCE would wait for the windows, for ever.
    // SAFETY: the queue pair is live.
    if machine.qp_has_windows(unsafe { (*qp).qp_num }) {
        machine.violations += 1;
        return libc::EBUSY;
    }
    // SAFETY: the queue pair is live.
    let context = unsafe { (*qp).context };
    machine.forget_events(context, qp.addr());
    let mut machine = acknowledged(machine, |machine| !machine.has_unacknowledged(context, qp.addr()));
    // SAFETY: `create_qp` allocated it, and it is freed once.
    let qp = unsafe { Box::from_raw(qp) };
    machine.qps[(qp.qp_num - FIRST_QP) as usize].take().expect("a queue pair");
    for queue in machine.cqs.iter_mut().flatten() {
        queue.ready.retain(|entry| entry.qp != qp.qp_num);
        queue.late.retain(|entry| entry.qp != qp.qp_num);
    }
    for owner in [qp.pd.cast::<c_void>(), qp.send_cq.cast(), qp.recv_cq.cast()] {
        machine.release(owner);
    }
    0
}

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the queue pair is live.
    let number = unsafe { (*qp).qp_num };
    if let Some(errno) = refused("ibv_post_send") {
        // SAFETY: the caller passes a valid output pointer.
        unsafe { *bad = first };
        return errno;
    }
    let mut machine = machine();
    let record = machine.qp(number);
    record.counts.doorbells += 1;
    let ready = matches!(record.state, ibv_qp_state::IBV_QPS_RTS | ibv_qp_state::IBV_QPS_ERR);
    let mut wr = first;
    while !wr.is_null() {
        // SAFETY: the caller's list is live.
        let request = unsafe { &*wr };
        let result = match ready {
            // SAFETY: the caller keeps the contract of ibv_post_send(3).
            true => unsafe { machine.request(number, request) },
            false => Err(libc::EINVAL),
        };
        if let Err(errno) = result {
            // SAFETY: the caller passes a valid output pointer.
            unsafe { *bad = wr };
            return errno;
        }
        wr = request.next;
    }
    0
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the queue pair is live.
    let number = unsafe { (*qp).qp_num };
    if let Some(errno) = refused("ibv_post_recv") {
        // SAFETY: the caller passes a valid output pointer.
        unsafe { *bad = first };
        return errno;
    }
    let mut machine = machine();
    let record = machine.qp(number);
    let mut result = 0;
    let mut wr = first;
    while !wr.is_null() {
        if record.receives.len() == record.cap.max_recv_wr as usize {
            // SAFETY: the caller passes a valid output pointer.
            unsafe { *bad = wr };
            result = libc::ENOMEM;
            break;
        }
        // SAFETY: the caller's list is live.
        let request = unsafe { &*wr };
        if request.num_sge < 0 || request.num_sge.cast_unsigned() > record.cap.max_recv_sge {
            // SAFETY: the caller passes a valid output pointer.
            unsafe { *bad = wr };
            result = libc::EINVAL;
            break;
        }
        let sge = match request.num_sge {
            0 => ibv_sge::default(),
            // SAFETY: the request has an entry.
            _ => unsafe { *request.sg_list },
        };
        let receive = Receive { id: request.wr_id, address: sge.addr, length: sge.length, key: sge.lkey };
        record.receives.push_back(receive);
        wr = request.next;
    }
    if record.state == ibv_qp_state::IBV_QPS_ERR {
        machine.break_down(number);
    }
    result
}
