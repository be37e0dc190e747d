//! The table, and its functions for devices, events and memory.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::size_of;
use std::ptr::null_mut;

use rdma_core_sys::*;

use super::devices::ports;
use super::machine::{Events, MAX_SGE, Region, close, fail, machine, pipe, status};
use super::notices::{next_notice, note_acknowledged, object_of};
use super::queues::*;
use super::windows::{alloc_mw, dealloc_mw};
use super::{devices, refused};

/// The table of the provider.
pub fn table() -> VerbsTable {
    VerbsTable {
        ibv_get_device_list: get_device_list,
        ibv_free_device_list: free_device_list,
        ibv_get_device_name: get_device_name,
        ibv_get_device_guid: get_device_guid,
        ibv_open_device: open_device,
        ibv_close_device: close_device,
        ibv_query_device: query_device,
        ibv_query_pkey: query_pkey,
        _ibv_query_gid_table: Some(query_gid_table),
        ibv_get_async_event: get_async_event,
        ibv_ack_async_event: ack_async_event,
        ibv_event_type_str: event_type_str,
        ibv_alloc_pd: alloc_pd,
        ibv_dealloc_pd: dealloc_pd,
        ibv_reg_mr: reg_mr,
        ibv_reg_mr_iova2: Some(reg_mr_iova2),
        ibv_reg_dmabuf_mr: Some(reg_dmabuf_mr),
        ibv_dereg_mr: dereg_mr,
        ibv_create_comp_channel: create_comp_channel,
        ibv_destroy_comp_channel: destroy_comp_channel,
        ibv_create_cq: create_cq,
        ibv_destroy_cq: destroy_cq,
        ibv_get_cq_event: get_cq_event,
        ibv_ack_cq_events: ack_cq_events,
        ibv_create_qp: create_qp,
        ibv_modify_qp: modify_qp,
        ibv_destroy_qp: destroy_qp,
        ibv_fork_init: fork_init,
        ..VerbsTable::not_supported()
    }
}

unsafe extern "C" fn fork_init() -> c_int {
    0
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    if let Some(errno) = refused("ibv_get_device_list") {
        return fail(errno);
    }
    let all = devices::devices();
    let mut list: Vec<*mut ibv_device> = all.iter().map(|d| (&raw const d.raw).cast_mut()).collect();
    list.push(null_mut());
    // SAFETY: the caller passes a valid output pointer.
    unsafe { *count = all.len() as c_int };
    Box::leak(list.into_boxed_slice()).as_mut_ptr()
}

unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    let whole = std::ptr::slice_from_raw_parts_mut(list, devices::devices().len() + 1);
    // SAFETY: `get_device_list` allocated the list with this length.
    drop(unsafe { Box::from_raw(whole) });
}

unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    devices::find(device).raw.name.as_ptr()
}

unsafe extern "C" fn get_device_guid(_: *mut ibv_device) -> u64 {
    0x1122_3344_5566_7788_u64.to_be()
}

unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    if let Some(errno) = refused("ibv_open_device") {
        return fail(errno);
    }
    let mut whole = Box::new(verbs_context { query_port: Some(query_port), ..Default::default() });
    let pipe = pipe();
    whole.sz = size_of::<verbs_context>();
    whole.context.device = device;
    whole.context.async_fd = pipe[0];
    whole.context.num_comp_vectors = 1;
    whole.context.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
    whole.context.ops.post_send = Some(post_send);
    whole.context.ops.post_recv = Some(post_recv);
    whole.context.ops.poll_cq = Some(poll_cq);
    whole.context.ops.req_notify_cq = Some(req_notify_cq);
    whole.context.ops.alloc_mw = Some(alloc_mw);
    whole.context.ops.dealloc_mw = Some(dealloc_mw);
    let whole = Box::into_raw(whole);
    // SAFETY: the box is live; the pointer is derived from a pointer to the whole struct, as `verbs_get_ctx` requires.
    let context = unsafe { &raw mut (*whole).context };
    let events = Events { waiting: VecDeque::new(), pipe, unacknowledged: Vec::new() };
    machine().events.insert(context.addr(), events);
    context
}

unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    if let Some(errno) = refused("ibv_close_device") {
        return errno;
    }
    let mut machine = machine();
    if !machine.is_free(context.cast()) {
        return libc::EBUSY;
    }
    let events = machine.events.remove(&context.addr()).expect("an opened device");
    machine.violations += usize::from(!events.unacknowledged.is_empty());
    close(events.pipe);
    // SAFETY: `open_device` allocated it, and nothing uses it any more.
    drop(unsafe { Box::from_raw(verbs_get_ctx(context).expect("an extended context")) });
    0
}

unsafe extern "C" fn query_device(context: *mut ibv_context, out: *mut ibv_device_attr) -> c_int {
    if let Some(errno) = refused("ibv_query_device") {
        return errno;
    }
    let mut attr = ibv_device_attr {
        max_mr_size: 1 << 40,
        max_qp: 1024,
        max_qp_wr: 4096,
        max_sge: MAX_SGE as c_int,
        max_cq: 1024,
        max_cqe: 1 << 16,
        max_mr: 1 << 20,
        max_mw: 1 << 16,
        device_cap_flags: ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0,
        max_qp_rd_atom: 16,
        max_qp_init_rd_atom: 8,
        atomic_cap: ibv_atomic_cap::IBV_ATOMIC_HCA,
        phys_port_cnt: ports(context).len() as u8,
        ..Default::default()
    };
    for (to, from) in attr.fw_ver.iter_mut().zip(b"1.0") {
        *to = c_char::from_ne_bytes([*from]);
    }
    // SAFETY: the caller passes a valid output pointer.
    unsafe { *out = attr };
    0
}

unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    out: *mut ibv_port_attr,
    _: usize,
) -> c_int {
    if let Some(errno) = refused("ibv_query_port") {
        return errno;
    }
    match ports(context).get(usize::from(port).wrapping_sub(1)) {
        // SAFETY: the caller passes a valid output pointer.
        Some(port) => unsafe { *out = port.attr },
        None => return libc::EINVAL,
    }
    0
}

unsafe extern "C" fn query_pkey(_: *mut ibv_context, _: u8, index: c_int, out: *mut u16) -> c_int {
    // SAFETY: the caller passes a valid output pointer.
    unsafe { *out = if index == 0 { 0xffff } else { 0 } };
    0
}

unsafe extern "C" fn query_gid_table(
    context: *mut ibv_context,
    out: *mut ibv_gid_entry,
    most: usize,
    _: u32,
    size: usize,
) -> isize {
    if let Some(errno) = refused("_ibv_query_gid_table") {
        return -(errno as isize);
    }
    assert_eq!(size, size_of::<ibv_gid_entry>());
    let entries = ports(context).iter().flat_map(|port| &port.gids).take(most);
    let mut count = 0;
    for entry in entries {
        // SAFETY: the caller passes room for `most` entries.
        unsafe { out.add(count).write(*entry) };
        count += 1;
    }
    count as isize
}

unsafe extern "C" fn get_async_event(context: *mut ibv_context, out: *mut ibv_async_event) -> c_int {
    if let Some(errno) = refused("ibv_get_async_event") {
        return status(errno);
    }
    let next = next_notice(|machine| {
        let events = machine.events.get_mut(&context.addr()).expect("an opened device");
        let event = events.waiting.pop_front();
        events.unacknowledged.extend(event.as_ref().map(object_of));
        (events.pipe, event)
    });
    let Some((_machine, event)) = next else { return -1 };
    // SAFETY: the caller passes a valid output pointer.
    unsafe { *out = event };
    0
}

unsafe extern "C" fn ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the caller passes an event that it has read.
    let object = object_of(unsafe { &*event });
    let mut machine = machine();
    let place = machine.events.values_mut().find_map(|events| {
        let index = events.unacknowledged.iter().position(|known| *known == object)?;
        Some((events, index))
    });
    match place {
        Some((events, index)) => drop(events.unacknowledged.swap_remove(index)),
        None => machine.violations += 1,
    }
    note_acknowledged();
}

unsafe extern "C" fn event_type_str(event: ibv_event_type) -> *const c_char {
    match event {
        ibv_event_type::IBV_EVENT_DEVICE_FATAL => c"local catastrophic error",
        ibv_event_type::IBV_EVENT_CQ_ERR => c"CQ error",
        ibv_event_type::IBV_EVENT_PORT_ERR => c"port error",
        _ => c"event",
    }
    .as_ptr()
}

unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    if let Some(errno) = refused("ibv_alloc_pd") {
        return fail(errno);
    }
    machine().adopt(context.cast());
    Box::into_raw(Box::new(ibv_pd { context, handle: 1 }))
}

unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    if let Some(errno) = refused("ibv_dealloc_pd") {
        return errno;
    }
    let mut machine = machine();
    if !machine.is_free(pd.cast()) {
        return libc::EBUSY;
    }
    // SAFETY: `alloc_pd` allocated it, and it is freed once.
    let pd = unsafe { Box::from_raw(pd) };
    machine.release(pd.context.cast());
    0
}

unsafe extern "C" fn reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
    // SAFETY: the contract is the same; the functions differ only in optional flags.
    unsafe { reg_mr_iova2(pd, addr, length, addr.expose_provenance() as u64, access.cast_unsigned()) }
}

unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    match refused("ibv_reg_mr") {
        Some(errno) => fail(errno),
        None => own(pd, addr, length, iova, access, false),
    }
}

/// Registers the memory of a descriptor by mapping it. This works for memfds of this process and of others.
unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    if let Some(errno) = refused("ibv_reg_dmabuf_mr") {
        return fail(errno);
    }
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: creates a new mapping; the caller keeps the descriptor open during the call.
    let map = unsafe { libc::mmap(null_mut(), length, rights, libc::MAP_SHARED, fd, offset.cast_signed()) };
    if map == libc::MAP_FAILED {
        return null_mut();
    }
    own(pd, map, length, iova, access.cast_unsigned(), true)
}

fn own(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    address: u64,
    access: u32,
    mapped: bool,
) -> *mut ibv_mr {
    let mut machine = machine();
    machine.adopt(pd.cast());
    let registrations = &mut machine.registrations;
    *(if mapped { &mut registrations.by_dmabuf } else { &mut registrations.by_address }) += 1;
    // Each region gets a new index and so a new key: the key of a deregistered region stays invalid.
    let key = ((machine.regions.len() as u32) << 8) | 0x5a;
    machine.regions.push(Some(Region {
        address,
        length: length as u64,
        memory: addr.cast(),
        access,
        key,
        pd: pd.addr(),
        mapped,
    }));
    // SAFETY: the protection domain is live.
    let context = unsafe { (*pd).context };
    Box::into_raw(Box::new(ibv_mr { context, pd, addr, length, handle: key >> 8, lkey: key, rkey: key }))
}

unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    if let Some(errno) = refused("ibv_dereg_mr") {
        return errno;
    }
    let mut machine = machine();
    // SAFETY: the region is live.
    if machine.region_has_windows(unsafe { (*mr).handle }) {
        machine.violations += 1;
        return libc::EBUSY;
    }
    // SAFETY: `own` allocated it, and it is freed once.
    let mr = unsafe { Box::from_raw(mr) };
    let region = machine.regions[mr.handle as usize].take().expect("a registered region");
    if region.mapped {
        // SAFETY: `reg_dmabuf_mr` created the mapping, and only this region uses it.
        unsafe { libc::munmap(mr.addr, mr.length) };
    }
    machine.release(mr.pd.cast());
    0
}
