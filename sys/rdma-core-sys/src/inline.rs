//! What verbs.h defines as inline functions and macros, ported by hand: no library exports these.
//!
//! The fast path goes through the function pointers in [`ibv_context::ops`]. Later operations stand in a
//! [`verbs_context`], which a provider allocates *around* the `ibv_context`: its last field is the context, its fields grow
//! towards lower addresses, and `sz` right before the context says how much of it the library knows. An operation may only
//! be read if the context is extended at all (`abi_compat` is all ones), if `sz` reaches back to the field, and if the
//! field is not null.
//!
//! Each function here has the contract of the C function of that name. Where a provider lacks an operation the result is
//! `EOPNOTSUPP`, as in the header.

use std::ffi::{c_int, c_uint};
use std::mem::{offset_of, size_of};

use libc::{EINVAL, ENOSYS, EOPNOTSUPP};

use crate::api::VerbsTable;
use crate::bindings::*;

/// The optional access flags: a kernel or provider that does not know one of these ignores it.
pub const IBV_ACCESS_OPTIONAL_RANGE: u32 = 0x3ff0_0000;

/// What `ibv_context::abi_compat` holds if a [`verbs_context`] surrounds the context.
const ABI_IS_EXTENDED: usize = usize::MAX;

// What the ports below rely on, beyond the generated assertions (which hold on one architecture).
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

/// The extended context around `context`, if there is one.
///
/// # Safety
/// `context` is a live context, opened through libibverbs or a stand-in that keeps the rules above.
pub unsafe fn verbs_get_ctx(context: *mut ibv_context) -> Option<*mut verbs_context> {
    // SAFETY: the context is live.
    let extended = unsafe { (*context).abi_compat }.addr() == ABI_IS_EXTENDED;
    // SAFETY: an extended context is the last field of a `verbs_context`.
    extended.then(|| unsafe { context.byte_sub(offset_of!(verbs_context, context)).cast() })
}

/// The operation `$op` of the extended context, if the provider has it.
macro_rules! extended_op {
    ($context:expr, $op:ident) => {
        // SAFETY: the caller's context is live; `sz` says that the field is there before it is read.
        unsafe {
            verbs_get_ctx($context).and_then(|extended| {
                let reach = size_of::<verbs_context>() - offset_of!(verbs_context, $op);
                if (*extended).sz < reach { None } else { (*extended).$op }
            })
        }
    };
}

/// Posts the list of work requests at `wr` with one call of the provider: one doorbell.
///
/// # Safety
/// As ibv_post_send(3): `qp` and the list are live, `bad_wr` is a live output; the memory that the requests name stays
/// registered until they complete.
#[inline]
pub unsafe fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the caller's contract; the provider's function is called with what it takes.
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
/// As ibv_post_recv(3): like [`ibv_post_send`].
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

/// Takes up to `num_entries` completions from `cq`; the number taken, or a negative value.
///
/// # Safety
/// As ibv_poll_cq(3): `cq` is live, `wc` has room for `num_entries`.
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

/// Asks for an event on the completion channel at the next completion.
///
/// # Safety
/// As ibv_req_notify_cq(3): `cq` is live.
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: as for `ibv_post_send`.
    unsafe {
        match (*(*cq).context).ops.req_notify_cq {
            Some(request) => request(cq, solicited_only),
            None => EOPNOTSUPP,
        }
    }
}

/// Attributes of a port, by the extended operation where there is one, so that the fields the old call lacks are filled.
///
/// # Safety
/// As ibv_query_port(3): `context` is live, `attr` is a live output.
pub unsafe fn ibv_query_port(
    table: &VerbsTable,
    context: *mut ibv_context,
    port_num: u8,
    attr: &mut ibv_port_attr,
) -> c_int {
    match extended_op!(context, query_port) {
        // SAFETY: the provider fills at most the size it is given.
        Some(query) => unsafe { query(context, port_num, attr, size_of::<ibv_port_attr>()) },
        None => {
            *attr = ibv_port_attr::default();
            // SAFETY: the old struct is a prefix of the new one.
            unsafe { (table.ibv_query_port)(context, port_num, std::ptr::from_mut(attr).cast()) }
        }
    }
}

/// Attributes of a device with the extended ones, which stay zero where the provider does not know them.
///
/// # Safety
/// As ibv_query_device_ex(3): `context` is live, `attr` is a live output.
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
        // SAFETY: the provider fills at most the size it is given.
        let result = unsafe { query(context, input, attr, size_of::<ibv_device_attr_ex>()) };
        if result != EOPNOTSUPP && result != ENOSYS {
            return result;
        }
    }
    *attr = ibv_device_attr_ex::default();
    // SAFETY: `context` is live and the output is a field of ours.
    unsafe { (table.ibv_query_device)(context, &raw mut attr.orig_attr) }
}

/// One entry of a port's GID table with its type. `EOPNOTSUPP` if the library is older than rdma-core 34.
///
/// # Safety
/// As ibv_query_gid_ex(3): `context` is live.
pub unsafe fn ibv_query_gid_ex(
    table: &VerbsTable,
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: &mut ibv_gid_entry,
    flags: u32,
) -> c_int {
    match table._ibv_query_gid_ex {
        // SAFETY: the library fills at most the size it is given.
        Some(query) => unsafe {
            query(context, port_num, gid_index, entry, flags, size_of::<ibv_gid_entry>())
        },
        None => EOPNOTSUPP,
    }
}

/// All valid entries of all GID tables of the device: how many, or a negative errno.
///
/// # Safety
/// As ibv_query_gid_table(3): `context` is live.
pub unsafe fn ibv_query_gid_table(
    table: &VerbsTable,
    context: *mut ibv_context,
    entries: &mut [ibv_gid_entry],
    flags: u32,
) -> isize {
    match table._ibv_query_gid_table {
        // SAFETY: the library fills at most as many entries of the size that it is given.
        Some(query) => unsafe {
            query(context, entries.as_mut_ptr(), entries.len(), flags, size_of::<ibv_gid_entry>())
        },
        None => -(EOPNOTSUPP as isize),
    }
}

/// Registers memory under the addresses it has here. Optional flags need the newer entry point; a library without it gets
/// the call without them, since they are optional.
///
/// # Safety
/// As ibv_reg_mr(3): `pd` is live, and the memory stays mapped until it is deregistered.
pub unsafe fn ibv_reg_mr(
    table: &VerbsTable,
    pd: *mut ibv_pd,
    addr: *mut core::ffi::c_void,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    let optional = access & IBV_ACCESS_OPTIONAL_RANGE != 0;
    // SAFETY: the caller's contract.
    unsafe {
        match table.ibv_reg_mr_iova2 {
            Some(register) if optional => register(pd, addr, length, addr.addr() as u64, access),
            _ => (table.ibv_reg_mr)(pd, addr, length, (access & !IBV_ACCESS_OPTIONAL_RANGE) as c_int),
        }
    }
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
        // SAFETY: the caller gives a live output.
        unsafe { (*attr).flags = 7 };
        0
    }

    unsafe extern "C" fn old_query_port(
        _: *mut ibv_context,
        _: u8,
        attr: *mut _compat_ibv_port_attr,
    ) -> c_int {
        // SAFETY: the caller gives a live output, larger than the old struct.
        unsafe { (*attr.cast::<ibv_port_attr>()).lid = 9 };
        0
    }

    /// `abi_compat` and `sz` as given, `query_port` set.
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
    }
}
