//! Copies and fills.

use aqueduct_tests::{not_run, paint};
use cuda_driver_sys::*;

use super::dut::{Dut, ok, refused};

pub(super) fn every_direction(d: &Dut) {
    let (a, b) = (d.alloc(4099), d.alloc(4099));
    let data = paint(4099, 1);
    d.upload(a, &data);
    ok!((d.t.cuMemcpyDtoD_v2)(b + 3, a + 5, 4000));
    assert_eq!(d.download(b + 3, 4000), data[5..4005]);
    let (host, device) = d.pinned(4099);
    ok!((d.t.cuMemcpy)(device, a, 4099));
    ok!((d.t.cuCtxSynchronize)());
    // SAFETY: the copy has ended and the pinned memory is 4099 bytes long.
    assert_eq!(unsafe { std::slice::from_raw_parts(host.cast::<u8>(), 4099) }, data);
    ok!((d.t.cuMemcpy)(b, device, 4099));
    assert_eq!(d.download(b, 4099), data);
    ok!((d.t.cuMemcpyDtoD_v2)(b, a, 0));
    refused!(
        (d.t.cuMemcpyDtoH_v2)(host, a + 4096, 8192),
        CUDA_ERROR_INVALID_VALUE | CUDA_ERROR_ILLEGAL_ADDRESS
    );
    ok!((d.t.cuMemFreeHost)(host));
    d.free(a);
    d.free(b);
}

pub(super) fn sync_and_async_agree(d: &Dut) {
    let stream = d.stream();
    let (a, b) = (d.alloc(1 << 20), d.alloc(1 << 20));
    let data = paint(1 << 20, 2);
    let mut back = vec![0u8; 1 << 20];
    ok!((d.t.cuMemcpyHtoDAsync_v2)(a, data.as_ptr().cast(), data.len(), stream));
    ok!((d.t.cuMemcpyDtoDAsync_v2)(b, a, data.len(), stream));
    ok!((d.t.cuMemcpyAsync)(a, b, 17, stream));
    ok!((d.t.cuMemcpyDtoHAsync_v2)(back.as_mut_ptr().cast(), b, data.len(), stream));
    d.sync(stream);
    assert!(back == data);
    ok!((d.t.cuStreamDestroy_v2)(stream));
    d.free(a);
    d.free(b);
}

pub(super) fn fills_of_every_width(d: &Dut) {
    let a = d.alloc(256);
    let stream = d.stream();
    ok!((d.t.cuMemsetD8_v2)(a, 0x11, 256));
    ok!((d.t.cuMemsetD16_v2)(a + 2, 0x2233, 3));
    ok!((d.t.cuMemsetD32_v2)(a + 8, 0x4455_6677, 2));
    ok!((d.t.cuCtxSynchronize)());
    let mut expected = vec![0x11; 256];
    expected[2..8].copy_from_slice(&[0x33, 0x22].repeat(3));
    expected[8..16].copy_from_slice(&[0x77, 0x66, 0x55, 0x44].repeat(2));
    assert_eq!(d.download(a, 256), expected);
    ok!((d.t.cuMemsetD8Async)(a + 255, 9, 1, stream));
    ok!((d.t.cuMemsetD16Async)(a, 0x0102, 1, stream));
    ok!((d.t.cuMemsetD32Async)(a + 4, 5, 1, stream));
    d.sync(stream);
    expected[255] = 9;
    expected[..2].copy_from_slice(&[2, 1]);
    expected[4..8].copy_from_slice(&[5, 0, 0, 0]);
    assert_eq!(d.download(a, 256), expected);
    refused!((d.t.cuMemsetD32_v2)(a + 2, 0, 1), CUDA_ERROR_INVALID_VALUE);
    ok!((d.t.cuStreamDestroy_v2)(stream));
    d.free(a);
}

/// Copies between two devices. With one device the driver must still accept the peer functions.
pub(super) fn peers(d: &Dut) {
    let other = 1.min(d.devices() - 1);
    let (mut device, mut context) = (0, std::ptr::null_mut());
    ok!((d.t.cuDeviceGet)(&raw mut device, other));
    ok!((d.t.cuDevicePrimaryCtxRetain)(&raw mut context, device));
    let a = d.alloc(5000);
    ok!((d.t.cuCtxPushCurrent_v2)(context));
    let b = d.alloc(5000);
    ok!((d.t.cuCtxPopCurrent_v2)(&raw mut context));
    let data = paint(5000, 3);
    d.upload(a, &data);
    ok!((d.t.cuMemcpyPeer)(b, context, a, d.context, 5000));
    ok!((d.t.cuCtxPushCurrent_v2)(context));
    ok!((d.t.cuCtxSynchronize)());
    assert!(d.download(b, 5000) == data);
    ok!((d.t.cuMemsetD8_v2)(b, 0, 5000));
    // Nothing orders a stream of this device behind it.
    ok!((d.t.cuCtxSynchronize)());
    ok!((d.t.cuCtxPopCurrent_v2)(&raw mut context));
    let stream = d.stream();
    ok!((d.t.cuMemcpyPeerAsync)(b, context, a, d.context, 4999, stream));
    d.sync(stream);
    ok!((d.t.cuCtxPushCurrent_v2)(context));
    assert!(d.download(b, 4999) == data[..4999]);
    d.free(b);
    ok!((d.t.cuCtxPopCurrent_v2)(&raw mut context));
    let mut can = 0;
    if other != 0 {
        ok!((d.t.cuDeviceCanAccessPeer)(&raw mut can, d.device, device));
    }
    if can == 1 {
        ok!((d.t.cuCtxEnablePeerAccess)(context, 0));
        refused!((d.t.cuCtxEnablePeerAccess)(context, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
        ok!((d.t.cuCtxDisablePeerAccess)(context));
        refused!((d.t.cuCtxDisablePeerAccess)(context), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    } else {
        not_run(d.test, "its part about peer access needs two devices that reach each other");
    }
    d.free(a);
    ok!((d.t.cuDevicePrimaryCtxRelease_v2)(device));
}
