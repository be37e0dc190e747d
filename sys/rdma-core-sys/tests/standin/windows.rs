//! Memory windows of type 2B: bound and invalidated by requests of one queue pair, whose peer alone can use them.

use std::ffi::c_int;

use rdma_core_sys::{
    ibv_access_flags as flags, ibv_mw, ibv_mw_type, ibv_pd, ibv_send_wr, ibv_wc_status as wc,
    ibv_wr_opcode as op,
};

use super::machine::{Machine, fail, machine};
use super::refused;

/// Indices of windows begin here, those of regions below, so that no key is of both.
pub(super) const FIRST: u32 = 1 << 23;

#[derive(Default)]
pub(super) struct Window {
    key: u32,
    pd: usize,
    bound: Option<Bound>,
}

#[derive(Clone, Copy)]
pub(super) struct Bound {
    region: usize,
    qp: u32,
    address: u64,
    length: u64,
    access: u32,
}

/// A request for a window, with what a NIC copies when it is posted.
#[derive(Clone, Copy)]
pub(super) enum Change {
    Bind { old: u32, new: u32, region: u32, address: u64, length: u64, access: u32 },
    Invalidate { key: u32 },
}

impl Change {
    /// # Safety
    /// `wr` and the objects that it names are live.
    pub(super) unsafe fn of(wr: &ibv_send_wr) -> Option<Self> {
        match wr.opcode {
            op::IBV_WR_BIND_MW => {
                // SAFETY: the opcode chooses this member of the union; the caller vouches for window and region.
                let (bind, old, region) = unsafe {
                    let bind = wr.__bindgen_anon_2.bind_mw;
                    (bind, (*bind.mw).rkey, (*bind.bind_info.mr).lkey)
                };
                let info = bind.bind_info;
                let (new, address, length) = (bind.rkey, info.addr, info.length);
                Some(Self::Bind { old, new, region, address, length, access: info.mw_access_flags })
            }
            op::IBV_WR_LOCAL_INV => {
                // SAFETY: the opcode chooses this member of the union.
                let key = unsafe { wr.__bindgen_anon_1.invalidate_rkey };
                Some(Self::Invalidate { key })
            }
            _ => None,
        }
    }
}

pub(super) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    if let Some(errno) = refused("ibv_alloc_mw") {
        return fail(errno);
    }
    if kind != ibv_mw_type::IBV_MW_TYPE_2 {
        return fail(libc::EOPNOTSUPP);
    }
    let mut machine = machine();
    machine.adopt(pd.cast());
    let handle = machine.windows.len() as u32;
    let rkey = (FIRST + handle) << 8;
    machine.windows.push(Some(Window { key: rkey, pd: pd.addr(), bound: None }));
    // SAFETY: the protection domain is live.
    let context = unsafe { (*pd).context };
    Box::into_raw(Box::new(ibv_mw { context, pd, rkey, handle, type_: kind }))
}

pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    if let Some(errno) = refused("ibv_dealloc_mw") {
        return errno;
    }
    // SAFETY: `alloc_mw` allocated it, and it is freed once.
    let mw = unsafe { Box::from_raw(mw) };
    let mut machine = machine();
    machine.windows[mw.handle as usize].take().expect("a window");
    machine.release(mw.pd.cast());
    0
}

impl Machine {
    /// Whether a window that is bound satisfies `of`: its region or queue pair must not go then.
    fn any_bound(&self, of: impl Fn(&Bound) -> bool) -> bool {
        self.windows.iter().flatten().filter_map(|window| window.bound.as_ref()).any(of)
    }

    pub(super) fn region_has_windows(&self, handle: u32) -> bool {
        self.any_bound(|bound| bound.region == handle as usize)
    }

    pub(super) fn qp_has_windows(&self, number: u32) -> bool {
        self.any_bound(|bound| bound.qp == number)
    }

    fn window(&mut self, key: u32) -> Option<&mut Window> {
        let index = (key >> 8).checked_sub(FIRST)?;
        self.windows.get_mut(index as usize)?.as_mut().filter(|window| window.key == key)
    }

    /// Carries out `change` for queue pair `number`.
    pub(super) fn change_window(&mut self, number: u32, change: Change) -> wc {
        match change {
            Change::Bind { old, new, region, address, length, access } => {
                let bound = Bound { region: (region >> 8) as usize, qp: number, address, length, access };
                let may = old != new && old >> 8 == new >> 8 && self.may_bind(number, region, &bound);
                let pd = self.pd_of(number);
                match self.window(old) {
                    Some(window) if may && window.bound.is_none() && window.pd == pd => {
                        (window.key, window.bound) = (new, Some(bound));
                        self.registrations.binds += 1;
                        wc::IBV_WC_SUCCESS
                    }
                    _ => wc::IBV_WC_MW_BIND_ERR,
                }
            }
            Change::Invalidate { key } => match self.window(key) {
                Some(window) if window.bound.is_some_and(|bound| bound.qp == number) => {
                    window.bound = None;
                    wc::IBV_WC_SUCCESS
                }
                _ => wc::IBV_WC_MW_BIND_ERR,
            },
        }
    }

    fn pd_of(&mut self, number: u32) -> usize {
        // SAFETY: the queue pair is live under the lock.
        unsafe { (*self.qp(number).raw).pd.addr() }
    }

    fn may_bind(&mut self, number: u32, key: u32, bound: &Bound) -> bool {
        let pd = self.pd_of(number);
        let Some(Some(region)) = self.regions.get(bound.region) else { return false };
        let writes = flags::IBV_ACCESS_REMOTE_WRITE.0 | flags::IBV_ACCESS_REMOTE_ATOMIC.0;
        let rights = writes | flags::IBV_ACCESS_REMOTE_READ.0;
        let has = |right: flags| region.access & right.0 != 0;
        let end = bound.address.checked_add(bound.length);
        region.key == key
            && region.pd == pd
            && has(flags::IBV_ACCESS_MW_BIND)
            && bound.access & !rights == 0
            && (bound.access & writes == 0 || has(flags::IBV_ACCESS_LOCAL_WRITE))
            && bound.length > 0
            && bound.address >= region.address
            && end.is_some_and(|end| end <= region.address + region.length)
    }

    /// The address of memory that window `key` shows to the peer of queue pair `number`.
    pub(super) fn through_window(
        &mut self,
        number: u32,
        key: u32,
        address: u64,
        length: u32,
        needed: u32,
    ) -> Option<*mut u8> {
        let bound = self.window(key)?.bound?;
        let offset = address.checked_sub(bound.address)?;
        let inside = offset.checked_add(length.into())? <= bound.length;
        let allowed = bound.qp == number && bound.access & needed == needed;
        let region = self.regions[bound.region].as_ref().filter(|_| inside && allowed)?;
        Some(region.memory.wrapping_add((address - region.address) as usize))
    }
}
