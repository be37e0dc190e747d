//! The detector ends a kernel that it cannot follow, because of an instruction or for lack of memory: it passes nothing unseen.

use cuda_driver_sys::CUresult;
use cuda_soft::Config;

use crate::child::child;
use crate::device::{Devices, kernel, ok};

/// Room for 34 pages of 4 KiB, of which the memory of the devices takes 16.
const SHADOW: u64 = 4 << 20;
/// Pages of the memory that the test adds.
const PAGES: u32 = 64;

/// Each thread writes a page of its own.
const WRITE: &str = "
    mad.wide.u32 %at, %tid, 4096, %data;
    st.weak.global.u32 [%at], 7; // here";

const SHARED: &str = "
    st.weak.shared.u32 [shared], 7;";

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
    let write = |pages: u32| move |devices: &Devices| devices.launch(WRITE, 0, 1, pages);
    let fill = |devices: &Devices| {
        // SAFETY: the memory is as large.
        let code = unsafe { (devices.table.cuMemsetD8_v2)(devices.data, 1, 4096 * PAGES as usize) };
        assert!(matches!(code, CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_LAUNCH_FAILED), "{code:?}");
    };
    assert_eq!(touch(&write(8)), CUresult::CUDA_SUCCESS);
    assert_eq!(touch(&write(PAGES)), CUresult::CUDA_ERROR_LAUNCH_FAILED);
    assert_eq!(touch(&fill), CUresult::CUDA_ERROR_LAUNCH_FAILED);
    assert_eq!(touch(&write(8)), CUresult::CUDA_SUCCESS, "memory that is gone makes room");
    let blocks = |devices: &Devices| (0..PAGES).for_each(|_| devices.launch(SHARED, 0, 2, 1));
    assert_eq!(touch(&blocks), CUresult::CUDA_SUCCESS, "shared memory goes with its block");
    assert_eq!(cuda_soft::races(), [""; 0]);
}

#[test]
fn more_memory_than_the_detector_can_follow_is_no_silent_pass() {
    let said = child("limits::touches_more_and_less_memory_than_is_followed");
    let what =
        "more memory than the race detector can follow; raise AQUEDUCT_SOFT_SHADOW, or use less memory";
    let line = 1 + kernel(WRITE).lines().position(|line| line.contains("// here")).unwrap();
    let lines: Vec<&str> = said.lines().filter(|line| line.contains(what)).collect();
    let [write, fill] = lines[..] else { panic!("{said}") };
    assert!(write.contains(&format!("{what}: in kernel k, block (0,0,0), thread (")), "{write}");
    assert!(write.ends_with(&format!(", line {line} (k)")), "{write}");
    let (before, address) = fill.rsplit_once("0x").expect("an address");
    let bytes = 4096 * PAGES;
    let limit = format!("(now {SHADOW} bytes)");
    assert_eq!(before, format!("cuda-soft: device 0: {what} {limit}: a fill of {bytes} bytes at "), "{fill}");
    assert!(u64::from_str_radix(address, 16).is_ok_and(|address| address != 0), "{fill}");
}

/// Names of instructions in messages; longer ones come first.
const NAMES: [&str; 12] = [
    "cp.async.bulk",
    "cp.async",
    "mbarrier",
    "multimem",
    "mapa",
    "getctarank",
    "barrier.cluster.arrive",
    "barrier.cluster.wait",
    "ld.shared::cluster",
    "st.shared::cluster",
    "atom.shared::cluster",
    "red.shared::cluster",
];

/// Bodies of kernels whose line with `// here` the detector does not follow.
fn not_followed() -> Vec<String> {
    let bulk = "cp.async.bulk";
    let shared = "mov.u32 %r0, shared;\n    ";
    let bodies = [
        "mbarrier.init.shared.b64 [shared], 1;".to_owned(),
        format!("{bulk}.global.shared::cta.bulk_group [%data], [shared], 16;"),
        format!(
            "{bulk}.shared::cluster.global.mbarrier::complete_tx::bytes [shared], [%data], 16, [shared+64];"
        ),
        "cp.async.ca.shared.global [shared], [%data], 16;".to_owned(),
        "mapa.u64 %d0, %data, 0;".to_owned(),
        "getctarank.u64 %r0, %data;".to_owned(),
        "barrier.cluster.arrive;".to_owned(),
        "barrier.cluster.wait;".to_owned(),
        format!("{shared}ld.shared::cluster.u32 %r1, [%r0];"),
        format!("{shared}st.shared::cluster.u32 [%r0], 1;"),
        format!("{shared}atom.shared::cluster.add.u32 %r1, [%r0], 1;"),
        format!("{shared}red.shared::cluster.add.u32 [%r0], 1;"),
    ];
    bodies.map(|body| format!("    {body} // here")).to_vec()
}

#[test]
#[ignore = "the child of another test"]
fn executes_what_is_not_followed() {
    for body in not_followed() {
        let devices = Devices::new();
        devices.launch(&body, 0, 1, 1);
        devices.enter(0);
        // SAFETY: no pointers are passed.
        let code = unsafe { (devices.table.cuCtxSynchronize)() };
        assert_eq!(code, CUresult::CUDA_ERROR_LAUNCH_FAILED, "{body}");
    }
    assert_eq!(cuda_soft::races(), [""; 0]);
}

#[test]
fn an_instruction_that_is_not_followed_is_no_silent_pass() {
    let said = child("limits::executes_what_is_not_followed");
    let faults: Vec<&str> = said.lines().filter(|line| line.starts_with("cuda-soft: ")).collect();
    let bodies = not_followed();
    assert_eq!(faults.len(), bodies.len(), "{said}");
    for (fault, body) in faults.iter().zip(bodies) {
        let line = 1 + kernel(&body).lines().position(|line| line.contains("// here")).unwrap();
        let what = "instruction that the race detector does not follow";
        let way_out = "run without AQUEDUCT_SOFT_CHECK=races, or without the instruction";
        let name = NAMES.iter().find(|name| body.contains(**name)).expect("a known name");
        let place = format!("in kernel k, block (0,0,0), thread (0,0,0), line {line} (k)");
        assert_eq!(*fault, format!("cuda-soft: device 0: {what} ({way_out}): {name} {place}"), "{body}");
    }
}
