//! A device's identity, its access to others, and its primary context.

use aqueduct_tests::not_run;
use cuda_driver_sys::*;

use super::dut::{Dut, ok, refused};

pub(super) fn uuids_are_stable_and_distinct(d: &Dut) {
    let get = d.t.cuDeviceGetUuid_v2.expect("CUDA 11.4 or newer");
    let uuid = |ordinal: i32| {
        let (mut device, mut uuid) = (0, CUuuid::default());
        ok!((d.t.cuDeviceGet)(&raw mut device, ordinal));
        ok!(get(&raw mut uuid, device));
        uuid.bytes
    };
    let all: Vec<_> = (0..d.devices()).map(uuid).collect();
    for (ordinal, one) in all.iter().enumerate() {
        assert_ne!(*one, [0; 16], "device {ordinal}");
        assert_eq!(*one, uuid(ordinal as i32), "device {ordinal}, asked again");
        assert!(!all[..ordinal].contains(one), "device {ordinal} has the UUID of another");
    }
    let mut uuid = CUuuid::default();
    refused!(get(&raw mut uuid, d.devices()), CUDA_ERROR_INVALID_DEVICE);
    refused!(get(std::ptr::null_mut(), d.device), CUDA_ERROR_INVALID_VALUE);
}

pub(super) fn links_between_devices(d: &Dut) {
    use CUdevice_P2PAttribute as P2p;
    let mut value = -1;
    let access = P2p::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
    // A device is not its own peer.
    refused!(
        (d.t.cuDeviceGetP2PAttribute)(&raw mut value, access, d.device, d.device),
        CUDA_ERROR_INVALID_DEVICE
    );
    if d.devices() < 2 {
        return not_run(d.test, "the machine has one device, and a link needs two");
    }
    let mut other = 0;
    ok!((d.t.cuDeviceGet)(&raw mut other, 1));
    let get = |attribute, from, to| {
        let mut value = -1;
        ok!((d.t.cuDeviceGetP2PAttribute)(&raw mut value, attribute, from, to));
        value
    };
    for (from, to) in [(d.device, other), (other, d.device)] {
        let mut can = -1;
        ok!((d.t.cuDeviceCanAccessPeer)(&raw mut can, from, to));
        assert_eq!(get(access, from, to), can);
        let atomics = get(P2p::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, from, to);
        assert!(atomics == 0 || atomics == 1 && can == 1, "atomics {atomics}, access {can}");
        // A relative value; any number is one.
        get(P2p::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, from, to);
    }
    refused!(
        (d.t.cuDeviceGetP2PAttribute)(&raw mut value, CUdevice_P2PAttribute(1 << 20), d.device, other),
        CUDA_ERROR_INVALID_VALUE
    );
}

pub(super) fn the_primary_context(d: &Dut) {
    let (mut flags, mut active) = (0, 0);
    ok!((d.t.cuDevicePrimaryCtxGetState)(d.device, &raw mut flags, &raw mut active));
    assert_eq!(active, 1, "it is retained");
    let mut device = -1;
    ok!((d.t.cuCtxGetDevice)(&raw mut device));
    assert_eq!(device, d.device);
    let (mut least, mut greatest) = (0, 0);
    ok!((d.t.cuCtxGetStreamPriorityRange)(&raw mut least, &raw mut greatest));
    assert!(greatest <= least, "a lower number is a greater priority: {greatest} to {least}");
    // The top of the stack is replaced, and by null removed.
    let table = d.t;
    let context = d.context as usize;
    std::thread::spawn(move || {
        let mut current: CUcontext = std::ptr::null_mut();
        ok!((table.cuCtxSetCurrent)(context as CUcontext));
        ok!((table.cuCtxGetCurrent)(&raw mut current));
        assert_eq!(current as usize, context);
        ok!((table.cuCtxSetCurrent)(std::ptr::null_mut()));
        ok!((table.cuCtxGetCurrent)(&raw mut current));
        assert!(current.is_null());
    })
    .join()
    .unwrap();
}
