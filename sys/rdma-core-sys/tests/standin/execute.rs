//! Executes posted requests.

use std::sync::atomic::{AtomicU64, Ordering};

use rdma_core_sys::{
    ibv_access_flags as access, ibv_qp_state as state, ibv_send_flags as flags, ibv_send_wr, ibv_sge,
    ibv_wc as Wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status as wc, ibv_wr_opcode as op,
};

use super::late::Posted;
use super::machine::{Entry, Machine, Receive};
use super::windows::{Change, FIRST};

impl Machine {
    /// Takes one request of queue pair `number`. An `Err` is the errno with which the request is refused.
    ///
    /// # Safety
    /// `wr`, its list and its inline data are live. Regions name live memory without exclusive references.
    pub(super) unsafe fn request(&mut self, number: u32, wr: &ibv_send_wr) -> Result<(), i32> {
        let swallows = self.swallows;
        let (unkind, refusal) = (self.unkind.is_some(), self.refusal());
        let qp = self.qp(number);
        let is_atomic = matches!(wr.opcode, op::IBV_WR_ATOMIC_FETCH_AND_ADD | op::IBV_WR_ATOMIC_CMP_AND_SWP);
        // SAFETY: atomic operations use this member of the union, and every member is plain data.
        if is_atomic && unsafe { wr.wr.atomic.remote_addr } % 8 != 0 {
            return Err(libc::EINVAL);
        }
        let sge = match wr.num_sge {
            0 => ibv_sge::default(),
            // SAFETY: the list has an entry.
            _ => unsafe { *wr.sg_list },
        };
        let is_inline = wr.send_flags & flags::IBV_SEND_INLINE.0 != 0;
        let fits = !is_inline || sge.length <= qp.cap.max_inline_data;
        if !fits || wr.num_sge < 0 || wr.num_sge.cast_unsigned() > qp.cap.max_send_sge {
            return Err(refusal);
        }
        let reads = is_atomic || wr.opcode == op::IBV_WR_RDMA_READ;
        if reads && qp.moves.last().is_none_or(|to| to.max_rd_atomic == 0) {
            return Err(libc::EINVAL);
        }
        if qp.used == qp.cap.max_send_wr {
            return Err(libc::ENOMEM);
        }
        qp.used += 1;
        qp.uncovered += 1;
        qp.counts.requests += 1;
        qp.counts.inline += u64::from(is_inline);
        qp.counts.fenced += u64::from(wr.send_flags & flags::IBV_SEND_FENCE.0 != 0);
        if qp.state == state::IBV_QPS_ERR {
            self.end(number, wr.wr_id, wr.opcode, wc::IBV_WC_WR_FLUSH_ERR);
            return Ok(());
        }
        let inline = is_inline.then(|| {
            let from = std::ptr::with_exposed_provenance::<u8>(sge.addr as usize);
            let mut data = vec![0; sge.length as usize].into_boxed_slice();
            // SAFETY: the caller's inline data are live; the length is that of both. No bytes need no address.
            unsafe {
                std::ptr::copy(
                    if data.is_empty() { data.as_ptr() } else { from },
                    data.as_mut_ptr(),
                    data.len(),
                )
            };
            data
        });
        // SAFETY: the caller's request is live, and so is what it names.
        let change = unsafe { Change::of(wr) };
        let forced = qp.fail_next.take().or(swallows.then_some(wc::IBV_WC_SUCCESS));
        let posted = Posted { wr: *wr, sge, change, inline, forced, held: qp.held };
        if posted.held || unkind {
            qp.pending.push_back(posted);
            if unkind {
                self.wake_nic();
            }
        } else {
            // SAFETY: the caller keeps the contract.
            unsafe { self.carry_out(number, &posted) };
        }
        Ok(())
    }

    /// The errno for a request that the queue pair is not made for. Drivers differ: mlx5 has one, rxe the other.
    fn refusal(&mut self) -> i32 {
        let invalid = self.unkind.as_mut().is_some_and(|unkind| unkind.below(2) == 0);
        if invalid { libc::EINVAL } else { libc::ENOMEM }
    }

    /// Executes a request of queue pair `number` and completes it.
    ///
    /// # Safety
    /// Regions name live memory without exclusive references.
    pub(super) unsafe fn carry_out(&mut self, number: u32, posted: &Posted) {
        let result = match posted.forced {
            Some(status) => status,
            // SAFETY: the caller keeps the contract.
            None => unsafe { self.execute(number, posted) },
        };
        let wr = &posted.wr;
        if result != wc::IBV_WC_SUCCESS || wr.send_flags & flags::IBV_SEND_SIGNALED.0 != 0 {
            self.end(number, wr.wr_id, wr.opcode, result);
        }
        if result != wc::IBV_WC_SUCCESS {
            self.break_down(number);
        }
    }

    /// Moves a queue pair to the error state and flushes its requests and receives.
    pub(super) fn break_down(&mut self, number: u32) {
        let qp = self.qp(number);
        qp.state = state::IBV_QPS_ERR;
        let (pending, receives) = (std::mem::take(&mut qp.pending), std::mem::take(&mut qp.receives));
        for posted in pending {
            self.end(number, posted.wr.wr_id, posted.wr.opcode, wc::IBV_WC_WR_FLUSH_ERR);
        }
        for receive in receives {
            self.received(number, receive, wc::IBV_WC_WR_FLUSH_ERR, 0, None, false);
        }
    }

    fn end(&mut self, number: u32, wr_id: u64, opcode: op, status: wc) {
        let opcode = match opcode {
            op::IBV_WR_RDMA_READ => ibv_wc_opcode::IBV_WC_RDMA_READ,
            op::IBV_WR_SEND => ibv_wc_opcode::IBV_WC_SEND,
            op::IBV_WR_ATOMIC_FETCH_AND_ADD => ibv_wc_opcode::IBV_WC_FETCH_ADD,
            op::IBV_WR_ATOMIC_CMP_AND_SWP => ibv_wc_opcode::IBV_WC_COMP_SWAP,
            op::IBV_WR_BIND_MW => ibv_wc_opcode::IBV_WC_BIND_MW,
            op::IBV_WR_LOCAL_INV => ibv_wc_opcode::IBV_WC_LOCAL_INV,
            _ => ibv_wc_opcode::IBV_WC_RDMA_WRITE,
        };
        let qp = self.qp(number);
        let frees = std::mem::take(&mut qp.uncovered);
        qp.counts.completions += 1;
        let queue = qp.send_cq;
        let end =
            Wc { wr_id, status, opcode, vendor_err: status.0 << 4, qp_num: number, ..Default::default() };
        self.complete(queue, Entry { wc: end, qp: number, received: false, frees });
    }

    /// # Safety
    /// As for `request`.
    unsafe fn execute(&mut self, number: u32, posted: &Posted) -> wc {
        let (wr, sge) = (&posted.wr, posted.sge);
        if let Some(change) = posted.change {
            return self.change_window(number, change);
        }
        let peer = self.qp(number).peer;
        let ready =
            matches!(self.find_qp(peer).map(|qp| qp.state), Some(state::IBV_QPS_RTR | state::IBV_QPS_RTS));
        if !ready {
            return wc::IBV_WC_RETRY_EXC_ERR;
        }
        let writes_here =
            !matches!(wr.opcode, op::IBV_WR_RDMA_WRITE | op::IBV_WR_RDMA_WRITE_WITH_IMM | op::IBV_WR_SEND);
        let here = if let Some(inline) = &posted.inline {
            inline.as_ptr().cast_mut()
        } else {
            let needed = if writes_here { access::IBV_ACCESS_LOCAL_WRITE.0 } else { 0 };
            match self.reach(sge.lkey, sge.addr, sge.length, needed) {
                Some(here) => here,
                None => return wc::IBV_WC_LOC_PROT_ERR,
            }
        };
        // SAFETY: `here` points to `length` bytes of live memory.
        unsafe { self.move_data(number, peer, wr, here, sge.length) }
    }

    /// # Safety
    /// `here` is `length` bytes of live memory.
    unsafe fn move_data(
        &mut self,
        number: u32,
        peer: u32,
        wr: &ibv_send_wr,
        here: *mut u8,
        length: u32,
    ) -> wc {
        // SAFETY: every member of these unions is plain data; the opcode selects the member.
        let (rdma, atomic, immediate) = unsafe { (wr.wr.rdma, wr.wr.atomic, wr.__bindgen_anon_1.imm_data) };
        let size = length as usize;
        match wr.opcode {
            op::IBV_WR_RDMA_WRITE | op::IBV_WR_RDMA_WRITE_WITH_IMM => {
                let needed = access::IBV_ACCESS_REMOTE_WRITE.0;
                let Some(there) = self.remote(peer, rdma.rkey, rdma.remote_addr, length, needed) else {
                    return self.refuse(peer);
                };
                if size == 8 && (there as usize).is_multiple_of(8) {
                    // Like a NIC, stores an aligned word as a whole and after earlier writes, so that a thread that
                    // polls the word sees them.
                    // SAFETY: both are 8 bytes of live memory, `there` is aligned, and other threads access it
                    // atomically.
                    unsafe {
                        let word = here.cast::<u64>().read_unaligned();
                        AtomicU64::from_ptr(there.cast()).store(word, Ordering::Release);
                    }
                } else {
                    // SAFETY: both are `size` bytes of live memory, which may overlap.
                    unsafe { std::ptr::copy(here, there, size) };
                }
                if wr.opcode == op::IBV_WR_RDMA_WRITE {
                    return wc::IBV_WC_SUCCESS;
                }
                let Some(receive) = self.qp(peer).receives.pop_front() else {
                    return wc::IBV_WC_RNR_RETRY_EXC_ERR;
                };
                self.received(peer, receive, wc::IBV_WC_SUCCESS, length, Some(immediate), true);
            }
            op::IBV_WR_RDMA_READ => {
                let needed = access::IBV_ACCESS_REMOTE_READ.0;
                let Some(there) = self.remote(peer, rdma.rkey, rdma.remote_addr, length, needed) else {
                    return self.refuse(peer);
                };
                // SAFETY: as above.
                unsafe { std::ptr::copy(there, here, size) };
            }
            op::IBV_WR_ATOMIC_FETCH_AND_ADD | op::IBV_WR_ATOMIC_CMP_AND_SWP => {
                let needed = access::IBV_ACCESS_REMOTE_ATOMIC.0;
                let Some(there) = self.remote(peer, atomic.rkey, atomic.remote_addr, 8, needed) else {
                    return self.refuse(peer);
                };
                // SAFETY: 8 bytes of live memory at a multiple of 8 (checked when posted). The machine's lock makes the
                // update atomic with respect to other requests.
                unsafe {
                    let old = there.cast::<u64>().read();
                    let new = match wr.opcode {
                        op::IBV_WR_ATOMIC_FETCH_AND_ADD => old.wrapping_add(atomic.compare_add),
                        _ if old == atomic.compare_add => atomic.swap,
                        _ => old,
                    };
                    there.cast::<u64>().write(new);
                    here.cast::<u64>().write_unaligned(old);
                }
            }
            op::IBV_WR_SEND => {
                let Some(receive) = self.qp(peer).receives.pop_front() else {
                    return wc::IBV_WC_RNR_RETRY_EXC_ERR;
                };
                let fits = receive.length >= length;
                let needed = access::IBV_ACCESS_LOCAL_WRITE.0;
                let Some(there) = self.reach(receive.key, receive.address, length, needed).filter(|_| fits)
                else {
                    self.received(peer, receive, wc::IBV_WC_LOC_LEN_ERR, 0, None, false);
                    self.break_down(peer);
                    return wc::IBV_WC_REM_INV_REQ_ERR;
                };
                // SAFETY: as above.
                unsafe { std::ptr::copy(here, there, size) };
                self.received(peer, receive, wc::IBV_WC_SUCCESS, length, None, false);
            }
            other => panic!("queue pair {number}: the provider does not implement opcode {}", other.0),
        }
        wc::IBV_WC_SUCCESS
    }

    fn refuse(&mut self, peer: u32) -> wc {
        self.break_down(peer);
        wc::IBV_WC_REM_ACCESS_ERR
    }

    fn received(
        &mut self,
        number: u32,
        receive: Receive,
        status: wc,
        byte_len: u32,
        immediate: Option<u32>,
        by_write: bool,
    ) {
        let mut end = Wc { wr_id: receive.id, status, byte_len, qp_num: number, ..Default::default() };
        end.opcode =
            if by_write { ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM } else { ibv_wc_opcode::IBV_WC_RECV };
        if let Some(immediate) = immediate {
            end.wc_flags = ibv_wc_flags::IBV_WC_WITH_IMM.0;
            end.__bindgen_anon_1.imm_data = immediate;
        }
        let queue = self.qp(number).receive_cq;
        self.complete(queue, Entry { wc: end, qp: number, received: true, frees: 0 });
    }

    /// The address of the peer's memory, if key, range and the rights of region and queue pair allow the access. An
    /// access of length 0 is always allowed.
    fn remote(&mut self, peer: u32, key: u32, address: u64, length: u32, needed: u32) -> Option<*mut u8> {
        if self.qp(peer).access & needed != needed {
            return None;
        }
        if key >> 8 >= FIRST && length > 0 {
            return self.through_window(peer, key, address, length, needed);
        }
        self.reach(key, address, length, needed)
    }

    fn reach(&self, key: u32, address: u64, length: u32, needed: u32) -> Option<*mut u8> {
        if length == 0 {
            return Some(std::ptr::dangling_mut());
        }
        let region = self.regions.get((key >> 8) as usize)?.as_ref()?;
        let offset = address.checked_sub(region.address)?;
        let inside = offset.checked_add(length.into())? <= region.length;
        let allowed = region.key == key && region.access & needed == needed;
        (inside && allowed).then(|| region.memory.wrapping_add(offset as usize))
    }
}
