//! The functions of the device library, each called from a kernel as a user's would call it.

mod calls;
#[path = "../device/mod.rs"]
#[expect(dead_code, reason = "the catalog's kernels are other tests'")]
mod device;
mod memory;
mod port;
#[path = "../ring/mod.rs"]
#[expect(dead_code, reason = "the words of 32 bits are other tests'")]
mod ring;
mod synchronisation;

use aqueduct_ptx::declarations;

#[test]
fn every_function_is_tried() {
    let tests =
        [include_str!("memory.rs"), include_str!("port.rs"), include_str!("synchronisation.rs")].concat();
    let declared = declarations().unwrap();
    let untried: Vec<_> =
        calls::names(&declared).filter(|name| !tests.contains(&format!("\"{name}\""))).collect();
    assert!(untried.is_empty(), "{untried:?}");
}
