//! Hand ports of the inline functions and macros of verbs.h, which no library exports.
//!
//! The fast path calls the function pointers in [`ibv_context::ops`]. Newer operations are in a [`verbs_context`],
//! which a provider allocates *around* the `ibv_context`: the context is its last field, newer fields are added at
//! lower addresses, and `sz`, directly before the context, is the size that the library knows. An operation may be
//! called only if the context is extended (`abi_compat` is all ones), `sz` is large enough to include the field, and
//! the field is not null.
//!
//! Each function has the contract of the C function with the same name. If a provider does not have an operation, the
//! result is `EOPNOTSUPP`, as in the header.

use std::ffi::{c_int, c_uint};
use std::mem::{offset_of, size_of};

use libc::{EINVAL, ENOSYS, EOPNOTSUPP};

use crate::api::VerbsTable;
use crate::bindings::*;

/// The optional access flags. A kernel or provider ignores those that it does not know.
pub const IBV_ACCESS_OPTIONAL_RANGE: u32 = 0x3ff0_0000;

/// The value of `ibv_context::abi_compat` if a [`verbs_context`] surrounds the context.
const ABI_IS_EXTENDED: usize = usize::MAX;

// The layout that the ports below rely on. Unlike the generated assertions these are checked on all architectures.
const _: () = {
    assert!(offset_of!(verbs_context, context) == offset_of!(verbs_context, sz) + size_of::<usize>());
    assert!(offset_of!(verbs_context, context) + size_of::<ibv_context>() == size_of::<verbs_context>());
    assert!(offset_of!(verbs_context, query_port) == 0);
    assert!(offset_of!(ibv_context, ops) == size_of::<usize>());
    assert!(offset_of!(ibv_context_ops, poll_cq) == 11 * size_of::<usize>());
    assert!(offset_of!(ibv_context_ops, req_notify_cq) == 12 * size_of::<usize>());
    assert!(offset_of!(ibv_context_ops, post_send) == 25 * size_of::<usize>());
    assert!(offset_of!(ibv_context_ops, post_recv) == 26 * size_of::<usize>());
    assert!(offset_of!(ibv_qp, context) == 0 && offset_of!(ibv_cq, context) == 0);
    assert!(size_of::<Option<unsafe extern "C" fn()>>() == size_of::<usize>());
};

/// Returns the extended context around `context`, if there is one.
///
/// # Safety
/// `context` is live, and was opened through libibverbs or a test provider that follows the rules above.
pub unsafe fn verbs_get_ctx(context: *mut ibv_context) -> Option<*mut verbs_context> {
    // SAFETY: the context is live.
    let extended = unsafe { (*context).abi_compat }.addr() == ABI_IS_EXTENDED;
    // SAFETY: an extended context is the last field of a `verbs_context`.
    extended.then(|| unsafe { context.byte_sub(offset_of!(verbs_context, context)).cast() })
}

/// Returns the operation `$op` of the extended context, if the provider has it.
macro_rules! extended_op {
    ($context:expr, $op:ident) => {
        // SAFETY: the caller's context is live. `sz` is checked before the field is read.
        unsafe {
            verbs_get_ctx($context).and_then(|extended| {
                let reach = size_of::<verbs_context>() - offset_of!(verbs_context, $op);
                if (*extended).sz < reach { None } else { (*extended).$op }
            })
        }
    };
}

/// Posts the list of work requests at `wr` with one call to the provider, which rings one doorbell.
///
/// # Safety
/// As for ibv_post_send(3): `qp` and the list are live, `bad_wr` is valid for writes, and the memory that the requests
/// name stays registered until they complete.
#[inline]
pub unsafe fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the caller keeps the contract; the provider's function has the same one.
    unsafe {
        match (*(*qp).context).ops.post_send {
            Some(post) => post(qp, wr, bad_wr),
            None => EOPNOTSUPP,
        }
    }
}

/// Posts the list of receive requests at `wr`.
///
/// # Safety
/// As for ibv_post_recv(3): like [`ibv_post_send`].
#[inline]
pub unsafe fn ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: as for `ibv_post_send`.
    unsafe {
        match (*(*qp).context).ops.post_recv {
            Some(post) => post(qp, wr, bad_wr),
            None => EOPNOTSUPP,
        }
    }
}

/// Takes up to `num_entries` completions from `cq`. Returns their number, or a negative value on failure.
///
/// # Safety
/// As for ibv_poll_cq(3): `cq` is live, and `wc` has room for `num_entries` completions.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: as for `ibv_post_send`.
    unsafe {
        match (*(*cq).context).ops.poll_cq {
            Some(poll) => poll(cq, num_entries, wc),
            None => -EOPNOTSUPP,
        }
    }
}

/// Requests an event on the completion channel for the next completion.
///
/// # Safety
/// As for ibv_req_notify_cq(3): `cq` is live.
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: as for `ibv_post_send`.
    unsafe {
        match (*(*cq).context).ops.req_notify_cq {
            Some(request) => request(cq, solicited_only),
            None => EOPNOTSUPP,
        }
    }
}

/// Queries the attributes of a port. Uses the extended operation if there is one, because the old call does not fill
/// all fields.
///
/// # Safety
/// As for ibv_query_port(3): `context` is live.
pub unsafe fn ibv_query_port(
    table: &VerbsTable,
    context: *mut ibv_context,
    port_num: u8,
    attr: &mut ibv_port_attr,
) -> c_int {
    match extended_op!(context, query_port) {
        // SAFETY: the provider writes at most the size that it is given.
        Some(query) => unsafe { query(context, port_num, attr, size_of::<ibv_port_attr>()) },
        None => {
            *attr = ibv_port_attr::default();
            // SAFETY: the old struct, which the call fills, is a prefix of the new one.
            unsafe { (table.ibv_query_port)(context, port_num, std::ptr::from_mut(attr).cast()) }
        }
    }
}

/// Queries the attributes of a device, including the extended ones; those that the provider does not know stay zero.
///
/// # Safety
/// As for ibv_query_device_ex(3): `context` is live.
pub unsafe fn ibv_query_device_ex(
    table: &VerbsTable,
    context: *mut ibv_context,
    input: Option<&ibv_query_device_ex_input>,
    attr: &mut ibv_device_attr_ex,
) -> c_int {
    if input.is_some_and(|input| input.comp_mask != 0) {
        return EINVAL;
    }
    if let Some(query) = extended_op!(context, query_device_ex) {
        let input = input.map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the provider writes at most the size that it is given.
        let result = unsafe { query(context, input, attr, size_of::<ibv_device_attr_ex>()) };
        if result != EOPNOTSUPP && result != ENOSYS {
            return result;
        }
    }
    *attr = ibv_device_attr_ex::default();
    // SAFETY: `context` is live, and `attr` is valid for writes.
    unsafe { (table.ibv_query_device)(context, &raw mut attr.orig_attr) }
}

/// Queries one entry of a port's GID table, with its type. Returns `EOPNOTSUPP` if the library is older than rdma-core
/// 34.
///
/// # Safety
/// As for ibv_query_gid_ex(3): `context` is live.
pub unsafe fn ibv_query_gid_ex(
    table: &VerbsTable,
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: &mut ibv_gid_entry,
    flags: u32,
) -> c_int {
    match table._ibv_query_gid_ex {
        // SAFETY: the library writes at most the size that it is given.
        Some(query) => unsafe {
            query(context, port_num, gid_index, entry, flags, size_of::<ibv_gid_entry>())
        },
        None => EOPNOTSUPP,
    }
}

/// Queries the valid entries of all GID tables of the device. Returns their number, or a negative errno.
///
/// # Safety
/// As for ibv_query_gid_table(3): `context` is live.
pub unsafe fn ibv_query_gid_table(
    table: &VerbsTable,
    context: *mut ibv_context,
    entries: &mut [ibv_gid_entry],
    flags: u32,
) -> isize {
    match table._ibv_query_gid_table {
        // SAFETY: the library writes at most the given number of entries of the given size.
        Some(query) => unsafe {
            query(context, entries.as_mut_ptr(), entries.len(), flags, size_of::<ibv_gid_entry>())
        },
        None => -(EOPNOTSUPP as isize),
    }
}

/// Registers memory, with its own addresses as remote addresses. Optional flags need a newer function; if the library
/// does not have it, the flags are dropped, as they are optional.
///
/// # Safety
/// As for ibv_reg_mr(3): `pd` is live, and the memory stays mapped until it is deregistered.
pub unsafe fn ibv_reg_mr(
    table: &VerbsTable,
    pd: *mut ibv_pd,
    addr: *mut core::ffi::c_void,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    let optional = access & IBV_ACCESS_OPTIONAL_RANGE != 0;
    // SAFETY: the caller keeps the contract.
    unsafe {
        match table.ibv_reg_mr_iova2 {
            Some(register) if optional => register(pd, addr, length, addr.addr() as u64, access),
            _ => (table.ibv_reg_mr)(pd, addr, length, (access & !IBV_ACCESS_OPTIONAL_RANGE) as c_int),
        }
    }
}

/// Allocates a memory window. Returns null and sets errno on failure.
///
/// # Safety
/// As for ibv_alloc_mw(3): `pd` is live.
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: as for `ibv_post_send`.
    unsafe {
        match (*(*pd).context).ops.alloc_mw {
            Some(alloc) => alloc(pd, kind),
            None => {
                *libc::__errno_location() = EOPNOTSUPP;
                std::ptr::null_mut()
            }
        }
    }
}

/// Frees a memory window; one that is bound gives no access any more.
///
/// # Safety
/// As for ibv_dealloc_mw(3): `mw` is live, and not used afterwards.
pub unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: as for `ibv_post_send`.
    unsafe {
        match (*(*mw).context).ops.dealloc_mw {
            Some(dealloc) => dealloc(mw),
            None => EOPNOTSUPP,
        }
    }
}

/// The next key of a window: another one in the lowest byte, which belongs to the program.
pub fn ibv_inc_rkey(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn query_port(
        _: *mut ibv_context,
        _: u8,
        attr: *mut ibv_port_attr,
        length: usize,
    ) -> c_int {
        assert_eq!(length, size_of::<ibv_port_attr>());
        // SAFETY: the caller passes a live struct.
        unsafe { (*attr).flags = 7 };
        0
    }

    unsafe extern "C" fn old_query_port(
        _: *mut ibv_context,
        _: u8,
        attr: *mut _compat_ibv_port_attr,
    ) -> c_int {
        // SAFETY: the caller passes the new struct, which is larger than the old one.
        unsafe { (*attr.cast::<ibv_port_attr>()).lid = 9 };
        0
    }

    /// Queries a port through a context with this `abi_compat` and `sz`, and with an extended `query_port`.
    fn ask(abi_compat: usize, sz: usize) -> ibv_port_attr {
        let mut extended = Box::new(verbs_context::default());
        extended.query_port = Some(query_port);
        extended.sz = sz;
        extended.context.abi_compat = std::ptr::without_provenance_mut(abi_compat);
        let table = VerbsTable { ibv_query_port: old_query_port, ..VerbsTable::not_supported() };
        let whole = Box::into_raw(extended);
        let mut attr = ibv_port_attr { flags: 1, ..Default::default() };
        // SAFETY: the context is a field of a live extended context, reached through a pointer to the whole.
        let result = unsafe { ibv_query_port(&table, &raw mut (*whole).context, 1, &mut attr) };
        assert_eq!(result, 0);
        // SAFETY: from `into_raw` above.
        drop(unsafe { Box::from_raw(whole) });
        attr
    }

    #[test]
    fn an_extended_operation_is_used_only_if_it_is_there() {
        let all = size_of::<verbs_context>();
        assert_eq!(ask(ABI_IS_EXTENDED, all).flags, 7);
        for (abi_compat, sz) in [(0, all), (1, all), (ABI_IS_EXTENDED, all - 1), (ABI_IS_EXTENDED, 0)] {
            let attr = ask(abi_compat, sz);
            assert_eq!((attr.flags, attr.lid), (0, 9), "the old call, in a cleared struct");
        }
    }

    #[test]
    fn the_optional_range_is_the_headers() {
        assert_eq!(
            IBV_ACCESS_OPTIONAL_RANGE & ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0,
            IBV_ACCESS_OPTIONAL_FIRST
        );
    }

    #[test]
    fn a_context_without_operations_answers_not_supported() {
        let mut context = ibv_context::default();
        let mut qp = ibv_qp { context: &raw mut context, ..Default::default() };
        let mut bad = std::ptr::null_mut();
        // SAFETY: context and queue pair are live, and no operation is called.
        assert_eq!(unsafe { ibv_post_send(&raw mut qp, std::ptr::null_mut(), &raw mut bad) }, EOPNOTSUPP);
        let mut cq = ibv_cq { context: &raw mut context, ..Default::default() };
        // SAFETY: as above.
        assert_eq!(unsafe { ibv_poll_cq(&raw mut cq, 0, std::ptr::null_mut()) }, -EOPNOTSUPP);
        let mut pd = ibv_pd { context: &raw mut context, ..Default::default() };
        // SAFETY: as above.
        assert!(unsafe { ibv_alloc_mw(&raw mut pd, ibv_mw_type::IBV_MW_TYPE_2) }.is_null());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(EOPNOTSUPP));
        let mut mw = ibv_mw { context: &raw mut context, ..Default::default() };
        // SAFETY: as above.
        assert_eq!(unsafe { ibv_dealloc_mw(&raw mut mw) }, EOPNOTSUPP);
    }

    #[test]
    fn the_next_key_of_a_window_differs_in_its_byte_only() {
        assert_eq!((ibv_inc_rkey(0x1234_5600), ibv_inc_rkey(0xffff_ffff)), (0x1234_5601, 0xffff_ff00));
    }
}
