//! A detector that may keep little: what it cannot follow fails, and does not pass unseen.

use cuda_driver_sys::CUresult;
use cuda_soft::Config;

use crate::child::child;
use crate::device::{Devices, ok};

/// Room for 34 pages of 4 KiB, of which the memory of the devices takes 16.
const SHADOW: u64 = 4 << 20;
/// Pages of the memory that the test adds.
const PAGES: u32 = 64;

/// Each thread writes a page of its own.
const WRITE: &str = "
    mad.wide.u32 %at, %tid, 4096, %data;
    st.weak.global.u32 [%at], 7; // here";

#[test]
#[ignore = "the child of another test"]
fn touches_more_and_less_memory_than_is_followed() {
    let touch = |touch: &dyn Fn(&Devices)| {
        let mut devices = Devices::of(Config { shadow: SHADOW, ..Config::default() });
        devices.enter(0);
        // SAFETY: the output is a field. The memory ends with the context.
        ok(unsafe { (devices.table.cuMemAlloc_v2)(&raw mut devices.data, 4096 * PAGES as usize) });
        touch(&devices);
        // SAFETY: no pointers are passed.
        unsafe { (devices.table.cuCtxSynchronize)() }
    };
    let kernel = |pages: u32| move |devices: &Devices| devices.launch(WRITE, 0, 1, pages);
    let fill = |devices: &Devices| {
        // SAFETY: the memory is as large.
        let code = unsafe { (devices.table.cuMemsetD8_v2)(devices.data, 1, 4096 * PAGES as usize) };
        assert!(matches!(code, CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_LAUNCH_FAILED), "{code:?}");
    };
    assert_eq!(touch(&kernel(8)), CUresult::CUDA_SUCCESS);
    assert_eq!(touch(&kernel(PAGES)), CUresult::CUDA_ERROR_LAUNCH_FAILED);
    assert_eq!(touch(&fill), CUresult::CUDA_ERROR_LAUNCH_FAILED);
    assert_eq!(touch(&kernel(8)), CUresult::CUDA_SUCCESS, "memory that is gone makes room");
    assert_eq!(cuda_soft::races(), [""; 0]);
}

#[test]
fn more_memory_than_the_detector_can_follow_is_no_silent_pass() {
    let said = child("limits::touches_more_and_less_memory_than_is_followed");
    let what =
        "more memory than the race detector can follow; raise AQUEDUCT_SOFT_SHADOW, or use less memory";
    let line = 1 + crate::device::kernel(WRITE).lines().position(|line| line.contains("// here")).unwrap();
    let lines: Vec<&str> = said.lines().filter(|line| line.contains(what)).collect();
    let [kernel, fill] = lines[..] else { panic!("{said}") };
    assert!(kernel.contains(&format!("{what}: in kernel k, block (0,0,0), thread (")), "{kernel}");
    assert!(kernel.ends_with(&format!(", line {line} (k)")), "{kernel}");
    assert!(fill.ends_with(&format!("{what}: a fill")), "{fill}");
}
