//! Lists the RDMA devices of this host from a program that has libibverbs and a provider linked into it statically.
//!
//! ```text
//! RUSTFLAGS='-C link-arg=-Wl,--start-group -C link-arg=-l:libibverbs.a -C link-arg=-l:librxe-rdmav34.a
//!   -C link-arg=-Wl,--end-group -C link-arg=-lnl-route-3 -C link-arg=-lnl-3' \
//!   cargo run -p aqueduct-rdma-core-sys --features linked --example linked
//! ```
//!
//! The archives are in Debian's libibverbs-dev; the provider's name ends in the version of the provider ABI.

use std::ffi::CStr;

use rdma_core_sys::{VerbsTable, static_providers};

fn main() {
    static_providers!(rxe);
    let table = VerbsTable::linked();
    let mut count = 0;
    // SAFETY: `count` is valid for writes.
    let list = unsafe { (table.ibv_get_device_list)(&raw mut count) };
    if list.is_null() {
        println!("no RDMA support: {}", std::io::Error::last_os_error());
        return;
    }
    println!("{count} RDMA devices");
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` devices, and the name of a device is a C string that lives as long as it.
        let name = unsafe { CStr::from_ptr((table.ibv_get_device_name)(*list.add(index))) };
        println!("{}", name.to_string_lossy());
    }
    // SAFETY: the list came from this library.
    unsafe { (table.ibv_free_device_list)(list) };
}
