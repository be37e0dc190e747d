//! Memory windows: rights of one peer to a part of a region, given and taken away by requests of a queue pair.

use std::fmt;
use std::ptr::{NonNull, null_mut};

use rdma_core_sys::{
    ibv_mw, ibv_mw_bind_info, ibv_mw_type, ibv_send_flags as flags, ibv_send_wr,
    ibv_send_wr__bindgen_ty_4__bindgen_ty_1, ibv_wr_opcode as op,
};

use super::access::Access;
use super::context::ProtectionDomain;
use super::mr::MemoryRegion;
use super::qp::{QueuePair, ReadyToSend};
use super::region::{RemoteRegion, inside};
use super::status::{failed, last_errno};
use crate::error::{Error, ErrorKind, Result};

/// A window of type 2. While it is bound, the peer of the queue pair that bound it, and nobody else, reaches the part of the region that it
/// shows. The region stays registered as long as it may be bound. Soft-RoCE of Linux 6.1 checks all but the range: the peer reaches all of the
/// region there, so do not show parts of one region to different peers.
///
/// Drop windows before the queue pair that has bound them: some NICs keep a queue pair until its windows are gone. Dropping a
/// bound one takes the peer's rights away, by a call of the kernel instead of a request.
pub struct MemoryWindow {
    domain: ProtectionDomain,
    raw: NonNull<ibv_mw>,
    /// Given up only when the window is not bound any more.
    region: Option<MemoryRegion>,
}

// SAFETY: the window is changed through `&mut` only, except by the NIC; libibverbs frees it from any thread.
unsafe impl Send for MemoryWindow {}
// SAFETY: as above.
unsafe impl Sync for MemoryWindow {}

impl ProtectionDomain {
    /// A window, which is not bound.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the NIC has none of type 2; otherwise its error, for instance that there are too many.
    pub fn window(&self) -> Result<MemoryWindow> {
        const OP: &str = "ibv_alloc_mw";
        self.verbs().check(OP)?;
        let name = self.context().device().name();
        if self.context().attributes().max_windows == 0 {
            let text = format!("device {name} has no memory windows of type 2");
            return Err(Error::new(ErrorKind::Unsupported, OP, text));
        }
        // SAFETY: the domain is live.
        let raw = unsafe { rdma_core_sys::ibv_alloc_mw(self.as_ptr(), ibv_mw_type::IBV_MW_TYPE_2) };
        let Some(raw) = NonNull::new(raw) else {
            return Err(failed(OP, last_errno(), format!("device {name} gives no memory window")));
        };
        Ok(MemoryWindow { domain: self.clone(), raw, region: None })
    }
}

impl MemoryWindow {
    /// Notes that the request of [`QueuePair::invalidate`] for it has succeeded: it can be bound again, and holds its region no longer.
    pub fn invalidated(&mut self) {
        self.region = None;
    }

    fn key(&self) -> u32 {
        // SAFETY: the window is live, and its key changes only in `bind`, through `&mut`.
        unsafe { (*self.raw.as_ptr()).rkey }
    }
}

impl QueuePair<ReadyToSend> {
    /// Binds `window` to `length` bytes at `offset` of `region`, which has [`Access::BIND`], and gives the peer `access` to them once the
    /// request, whose completion has this `id`, has succeeded. Returns how the peer names them.
    ///
    /// # Errors
    /// `InvalidUsage` for a window that is bound, a range that is not inside or empty, and a region without the right; otherwise the NIC's
    /// error. A window whose request has failed can only be dropped.
    pub fn bind(
        &self,
        window: &mut MemoryWindow,
        region: &MemoryRegion,
        (offset, length): (u64, u64),
        access: Access,
        id: u64,
    ) -> Result<RemoteRegion> {
        const OP: &str = "ibv_post_send";
        let address = inside(region.address(), region.len(), offset, length)?;
        if window.region.is_some() || length == 0 || !region.access().contains(Access::BIND) {
            let text = "a window that is not bound shows one byte or more of a region with the right to bind";
            return Err(Error::usage(OP, text));
        }
        let next = rdma_core_sys::ibv_inc_rkey(window.key());
        let bind_info =
            ibv_mw_bind_info { mr: region.as_ptr(), addr: address, length, mw_access_flags: access.bits() };
        let bind = ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw: window.raw.as_ptr(), rkey: next, bind_info };
        let mut wr = ibv_send_wr { opcode: op::IBV_WR_BIND_MW, ..signalled(id) };
        wr.__bindgen_anon_2.bind_mw = bind;
        // Held from before the NIC knows, so that the region outlives every use of it.
        window.region = Some(region.clone());
        if let Err(error) = self.post_one(&mut wr) {
            window.region = None;
            return Err(error);
        }
        // SAFETY: the window is live and borrowed exclusively; the NIC's library has read the key. The program keeps it (ibv_post_send(3)).
        unsafe { (*window.raw.as_ptr()).rkey = next };
        Ok(RemoteRegion { address, length, key: next })
    }

    /// Takes the peer's rights away: once the request, whose completion has this `id`, has succeeded, the peer reaches nothing through
    /// `window`. Then call [`MemoryWindow::invalidated`].
    ///
    /// # Errors
    /// The NIC's.
    pub fn invalidate(&self, window: &MemoryWindow, id: u64) -> Result<()> {
        let mut wr = ibv_send_wr { opcode: op::IBV_WR_LOCAL_INV, ..signalled(id) };
        wr.__bindgen_anon_1.invalidate_rkey = window.key();
        self.post_one(&mut wr)
    }
}

fn signalled(id: u64) -> ibv_send_wr {
    ibv_send_wr {
        wr_id: id,
        next: null_mut(),
        sg_list: null_mut(),
        num_sge: 0,
        send_flags: flags::IBV_SEND_SIGNALED.0,
        ..Default::default()
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        let raw = self.raw.as_ptr();
        // SAFETY: allocated by this domain, freed once, and before the region that it may be bound to.
        let free = |_: &rdma_core_sys::VerbsTable| unsafe { rdma_core_sys::ibv_dealloc_mw(raw) };
        if !self.domain.verbs().destroy("a memory window", free) {
            // It may still be bound: the region stays, for the rest of the process.
            std::mem::forget(self.region.take());
        }
    }
}

impl fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryWindow").field("region", &self.region).finish_non_exhaustive()
    }
}
