//! Memory shared between processes: rank 0 owns it, rank 1 maps it.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use aqueduct_tests::{paint, ranks};
use cuda_driver_sys::*;

use super::dut::{Dut, ok, refused};
use super::virtual_memory as vm;

const SOCKET: &str = "AQUEDUCT_TEST_SOCKET";

fn pair(d: &Dut) -> Option<(u32, UnixStream)> {
    pair_with(d, |_| {})
}

/// Starts two ranks with a socket between them; rank 0 listens.
pub(super) fn pair_with(d: &Dut, prepare: impl Fn(&mut Command)) -> Option<(u32, UnixStream)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let rank = ranks::start_with(2, d.test, |_, command| {
        prepare(command);
        command.env(SOCKET, &path);
    })?;
    let path = PathBuf::from(std::env::var_os(SOCKET).unwrap());
    let stream = if rank == 0 {
        UnixListener::bind(&path).unwrap().accept().unwrap().0
    } else {
        let patience = Instant::now() + Duration::from_secs(20);
        loop {
            match UnixStream::connect(&path) {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < patience, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    Some((rank, stream))
}

pub(super) fn barrier(stream: &mut UnixStream) {
    stream.write_all(&[1]).unwrap();
    stream.read_exact(&mut [0]).unwrap();
}

pub(super) fn posix_fd(d: &Dut) {
    let Some((rank, mut stream)) = pair(d) else { return };
    let bytes = vm::granularity(d);
    let data = paint(bytes, 9);
    let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if rank == 0 {
        let handle = vm::create(d, bytes);
        let pointer = vm::map(d, handle, bytes, d.device);
        d.upload(pointer, &data);
        ok!((d.t.cuCtxSynchronize)());
        let mut fd = -1;
        ok!((d.t.cuMemExportToShareableHandle.unwrap())((&raw mut fd).cast(), handle, kind, 0));
        // SAFETY: the driver gave this process a descriptor of its own.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        send_fd(&stream, fd.as_raw_fd());
        barrier(&mut stream);
        assert_eq!(d.download(pointer, 4), [9, 8, 7, 6], "the importer's store is seen");
        vm::unmap(d, pointer, bytes);
        ok!((d.t.cuMemRelease.unwrap())(handle));
    } else {
        let fd = receive_fd(&stream);
        let mut handle = 0;
        ok!((d.t.cuMemImportFromShareableHandle.unwrap())(
            &raw mut handle,
            fd.as_raw_fd() as usize as *mut _,
            kind
        ));
        drop(fd);
        let pointer = vm::map(d, handle, bytes, d.device);
        ok!((d.t.cuMemRelease.unwrap())(handle));
        assert!(d.download(pointer, bytes) == data);
        d.upload(pointer, &[9, 8, 7, 6]);
        // A copy from pageable memory may return before the data has arrived.
        ok!((d.t.cuCtxSynchronize)());
        barrier(&mut stream);
        vm::unmap(d, pointer, bytes);
    }
}

pub(super) fn legacy_handle(d: &Dut) {
    let Some((rank, mut stream)) = pair(d) else { return };
    let data = paint(10_000, 11);
    let mut handle = CUipcMemHandle::default();
    if rank == 0 {
        let pointer = d.alloc(10_000);
        d.upload(pointer, &data);
        ok!((d.t.cuCtxSynchronize)());
        ok!((d.t.cuIpcGetMemHandle)(&raw mut handle, pointer));
        let mut own = 0;
        let flags = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0;
        // SAFETY: `own` is a live output; the handle is passed by value.
        let result = unsafe { (d.t.cuIpcOpenMemHandle_v2)(&raw mut own, handle, flags) };
        assert!(result != CUresult::CUDA_SUCCESS, "a process cannot open its own handle");
        stream.write_all(&handle.reserved.map(|c| c as u8)).unwrap();
        barrier(&mut stream);
        assert_eq!(d.download(pointer, 2), [3, 1]);
        d.free(pointer);
    } else {
        open(d, &mut stream, &mut handle, |pointer| {
            assert!(d.download(pointer, 10_000) == data);
            d.upload(pointer, &[3, 1]);
            ok!((d.t.cuCtxSynchronize)());
        });
        barrier(&mut stream);
    }
}

fn open(d: &Dut, stream: &mut UnixStream, handle: &mut CUipcMemHandle, body: impl FnOnce(CUdeviceptr)) {
    let mut bytes = [0u8; 64];
    stream.read_exact(&mut bytes).unwrap();
    handle.reserved = bytes.map(|b| b as _);
    let mut pointer = 0;
    let flags = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0;
    ok!((d.t.cuIpcOpenMemHandle_v2)(&raw mut pointer, *handle, flags));
    body(pointer);
    ok!((d.t.cuIpcCloseMemHandle)(pointer));
    refused!((d.t.cuIpcCloseMemHandle)(pointer), CUDA_ERROR_INVALID_VALUE | CUDA_ERROR_INVALID_HANDLE);
}

pub(super) fn handle_of_a_dead_process(d: &Dut) {
    let Some((rank, mut stream)) = pair(d) else { return };
    if rank == 0 {
        let pointer = d.alloc(4096);
        let mut handle = CUipcMemHandle::default();
        ok!((d.t.cuIpcGetMemHandle)(&raw mut handle, pointer));
        stream.write_all(&handle.reserved.map(|c| c as u8)).unwrap();
        return;
    }
    let mut bytes = [0u8; 64];
    stream.read_exact(&mut bytes).unwrap();
    // Rank 0 exits, which closes its end of the socket.
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    std::thread::sleep(Duration::from_millis(500));
    let handle = CUipcMemHandle { reserved: bytes.map(|b| b as _) };
    let mut pointer = 0;
    let flags = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0;
    // SAFETY: a live output, a handle by value.
    let result = unsafe { (d.t.cuIpcOpenMemHandle_v2)(&raw mut pointer, handle, flags) };
    assert!(result != CUresult::CUDA_SUCCESS, "the owner is gone");
}

pub(super) fn send_fd(stream: &UnixStream, fd: i32) {
    let mut control = [0u64; 4];
    let mut byte = [0u8];
    let mut iov = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: `control` is aligned and large enough for one header and one descriptor; all pointers outlive the call.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as usize;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(header).cast::<i32>().write_unaligned(fd);
        assert_eq!(libc::sendmsg(stream.as_raw_fd(), &raw const message, 0), 1);
    }
}

pub(super) fn receive_fd(stream: &UnixStream) -> OwnedFd {
    let mut control = [0u64; 4];
    let mut byte = [0u8];
    let mut iov = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: as in `send_fd`; the descriptor received belongs to this process.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        assert_eq!(libc::recvmsg(stream.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC), 1);
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        assert!(!header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS);
        OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<i32>().read_unaligned())
    }
}
