//! Tests with several processes. The test binary executes itself again, to run only `helper` in the other process.

use std::ffi::{c_char, c_int, c_void};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use cuda_driver_sys::{
    CUdevice_attribute, CUipcMemHandle, CUmemAllocationHandleType, CUresult, CUstreamCaptureMode,
};

use super::*;

const ROLE: &str = "CUDA_SOFT_TEST_ROLE";
const SHARED_FD: c_int = 99;

struct Peer {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Peer {
    /// Runs `helper` in another process, with `fd` there as descriptor 99.
    fn start(role: &str, fd: Option<&OwnedFd>) -> Self {
        Self::start_with(role, fd, &[])
    }

    fn start_with(role: &str, fd: Option<&OwnedFd>, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("own path"));
        command.args(["--exact", "driver::tests::process::helper", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).envs(variables.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(raw) = fd.map(AsRawFd::as_raw_fd) {
            // SAFETY: dup2 is safe to call between fork and exec; it clears CLOEXEC.
            unsafe {
                command.pre_exec(move || match libc::dup2(raw, SHARED_FD) {
                    -1 => Err(std::io::Error::last_os_error()),
                    _ => Ok(()),
                })
            };
        }
        let mut child = command.spawn().expect("spawn");
        let (to, from) = (child.stdin.take().expect("stdin"), child.stdout.take().expect("stdout"));
        Self { child, to, from: BufReader::new(from) }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.to, "{line}").expect("peer listens");
    }

    /// The next line that begins with `=`.
    fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.from.read_line(&mut line).expect("peer speaks"), 0, "the peer has ended");
            // The test runner may have printed to the same line first.
            if let Some(at) = line.find("=") {
                return line[at + 1..].trim().to_owned();
            }
        }
    }

    fn end(mut self) {
        drop(self.to);
        let _ = std::io::copy(&mut self.from, &mut std::io::sink());
        assert!(self.child.wait().expect("wait").success());
    }
}

/// Plays a role to its end in another process.
pub(super) fn alone(role: &str) {
    Peer::start(role, None).end();
}

/// Runs on a machine without any of the optional features, as the environment says.
fn restricted() {
    let t = driver_table();
    assert!(t.cuMemCreate.is_none() && t.cuStreamWriteValue64_v2.is_none());
    let (mut count, mut value, mut context) = (0, 1, std::ptr::null_mut());
    // SAFETY: pointers are to locals.
    unsafe {
        assert_eq!((t.cuInit)(0), OK);
        assert_eq!((t.cuDeviceGetCount)(&raw mut count), OK);
        assert_eq!(count, 2);
        assert_eq!((t.cuDeviceCanAccessPeer)(&raw mut value, 0, 1), OK);
        assert_eq!(value, 0);
        for attribute in [
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH,
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED,
        ] {
            assert_eq!((t.cuDeviceGetAttribute)(&raw mut value, attribute, 0), OK);
            assert_eq!(value, 0, "{attribute:?}");
        }
        assert_eq!((t.cuDevicePrimaryCtxRetain)(&raw mut context, 1), OK);
        assert_eq!((t.cuCtxSetCurrent)(context), OK);
        let mut peer = std::ptr::null_mut();
        assert_eq!((t.cuDevicePrimaryCtxRetain)(&raw mut peer, 0), OK);
        assert_eq!((t.cuCtxEnablePeerAccess)(peer, 0), CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        let mut handle = CUipcMemHandle::default();
        let p = alloc(&t, 8);
        assert_eq!((t.cuIpcGetMemHandle)(&raw mut handle, p), CUresult::CUDA_ERROR_NOT_SUPPORTED);
        write(&t, p, &[3u64]);
        assert_eq!(read::<u64>(&t, p, 1), [3]);
    }
}

/// A capture in global mode affects all threads, so this runs in its own process.
fn capture_globally() {
    let t = on(0);
    let s = stream(&t);
    let (global, mut p, mut graph) =
        (CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL, 0, std::ptr::null_mut());
    let elsewhere = |mut mode: CUstreamCaptureMode| {
        let body = move || {
            let t = on(0);
            let mut p = 0;
            // SAFETY: pointers are to locals.
            unsafe {
                assert_eq!((t.cuThreadExchangeStreamCaptureMode)(&raw mut mode), OK);
                (t.cuMemAlloc_v2)(&raw mut p, 8)
            }
        };
        std::thread::spawn(body).join().expect("thread")
    };
    let unsupported = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    // SAFETY: handles are live, pointers are to locals.
    unsafe {
        assert_eq!((t.cuStreamBeginCapture_v2)(s, global), OK);
        assert_eq!(elsewhere(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED), OK);
        assert_eq!(elsewhere(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), OK);
        assert_eq!((t.cuStreamEndCapture)(s, &raw mut graph), OK);
        assert_eq!((t.cuStreamBeginCapture_v2)(s, global), OK);
        assert_eq!(elsewhere(global), unsupported);
        let code = (t.cuStreamEndCapture)(s, &raw mut graph);
        assert_eq!((code, graph.is_null()), (CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, true));
        assert_eq!((t.cuMemAlloc_v2)(&raw mut p, 8), OK);
    }
}

#[test]
fn a_restricted_machine_says_so() {
    Peer::start_with(
        "restricted",
        None,
        &[
            ("AQUEDUCT_SOFT_DEVICES", "2"),
            ("AQUEDUCT_SOFT_LACKS", "vmm,p2p,ipc,stream_mem_ops,cooperative,dma_buf"),
        ],
    )
    .end();
}

#[test]
fn a_global_capture_forbids_unsafe_calls_in_every_thread() {
    Peer::start("capturer", None).end();
}

/// The role of the other process; does nothing when run as an ordinary test.
#[test]
fn helper() {
    let mut lines = std::io::stdin().lines().map(|l| l.expect("line"));
    let mut hear = || lines.next().expect("parent speaks");
    match std::env::var(ROLE).as_deref() {
        Ok("ipc-exporter") => {
            let t = on(0);
            let p = alloc(&t, 1 << 20);
            write(&t, p + 4096, &[0xc0ff_ee00_u32]);
            let mut handle = CUipcMemHandle::default();
            // SAFETY: the pointer is to a local; the allocation is live.
            unsafe {
                assert_eq!((t.cuIpcGetMemHandle)(&raw mut handle, p), OK);
                let mut own = 0;
                let code = (t.cuIpcOpenMemHandle_v2)(&raw mut own, handle, 1);
                assert_eq!(code, CUresult::CUDA_ERROR_INVALID_CONTEXT, "not in the process that made it");
            }
            let hex: String = handle.reserved.iter().map(|b| format!("{:02x}", *b as u8)).collect();
            println!("={hex}");
            hear();
            println!("={:x}", read::<u32>(&t, p + 8192, 1)[0]);
            hear();
            // SAFETY: the allocation is live.
            assert_eq!(unsafe { (t.cuMemFree_v2)(p) }, OK);
            println!("=freed");
            hear();
        }
        Ok("refused-pointers") => memory::refused_pointers(),
        Ok("fd-importer") => {
            let t = on(0);
            let mut handle = 0;
            let posix = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
            // SAFETY: the parent left a descriptor there for us.
            unsafe {
                let fd = SHARED_FD as usize as *mut c_void;
                let import = t.cuMemImportFromShareableHandle.expect("vmm");
                assert_eq!(import(&raw mut handle, fd, posix), OK);
                drop(OwnedFd::from_raw_fd(SHARED_FD));
            }
            let at = vmm::reserve(&t, 2 << 20);
            vmm::map(&t, at, 2 << 20, handle, 0);
            println!("={:x}", read::<u32>(&t, at, 1)[0]);
            // SAFETY: the word is mapped. The write notifies the event count that the parent's stream sleeps on.
            unsafe {
                let null = std::ptr::null_mut();
                assert_eq!(t.cuStreamWriteValue64_v2.expect("ops")(null, at + 64, 5, 0), OK);
                assert_eq!((t.cuCtxSynchronize)(), OK);
            }
        }
        Ok("restricted") => restricted(),
        Ok("capturer") => capture_globally(),
        Ok("sm_100") => module::run_targets_of_sm_100(),
        Ok(other) => panic!("no such role: {other}"),
        Err(_) => {}
    }
}

fn decode(hex: &str) -> CUipcMemHandle {
    let mut handle = CUipcMemHandle::default();
    for (i, byte) in handle.reserved.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hex") as c_char;
    }
    handle
}

#[test]
fn legacy_handles_open_in_another_process_and_die_with_it() {
    let t = on(3);
    let mut peer = Peer::start("ipc-exporter", None);
    let handle = decode(&peer.hear());
    let (mut p, mut again, mut base, mut size) = (0, 0, 0, 0);
    // SAFETY: pointers are to locals.
    unsafe {
        let open = t.cuIpcOpenMemHandle_v2;
        assert_eq!(open(&raw mut p, handle, 0), CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(open(&raw mut p, handle, 1), OK);
        assert_eq!(open(&raw mut again, handle, 1), OK);
        assert_eq!(p, again, "opened twice is the same mapping");
        assert_eq!((t.cuIpcCloseMemHandle)(p), OK);
        assert_eq!((t.cuMemGetAddressRange_v2)(&raw mut base, &raw mut size, p), OK);
        assert_eq!((base, size), (p, 1 << 20));
        assert_eq!(read::<u32>(&t, p + 4096, 1), [0xc0ff_ee00]);
        write(&t, p + 8192, &[0xdead_u32]);
        assert_eq!((t.cuMemFree_v2)(p), CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!((t.cuIpcGetMemHandle)(&mut { handle }, p), CUresult::CUDA_ERROR_INVALID_VALUE);
        peer.say("");
        assert_eq!(peer.hear(), "dead");
        assert_eq!((t.cuIpcCloseMemHandle)(p), OK);
        assert_eq!((t.cuIpcCloseMemHandle)(p), CUresult::CUDA_ERROR_INVALID_VALUE);
        peer.say("");
        assert_eq!(peer.hear(), "freed");
        assert_eq!(open(&raw mut p, handle, 1), CUresult::CUDA_ERROR_INVALID_HANDLE);
        peer.say("");
        peer.end();
        assert_eq!(open(&raw mut p, handle, 1), CUresult::CUDA_ERROR_INVALID_HANDLE);
        let junk = CUipcMemHandle::default();
        assert_eq!(open(&raw mut p, junk, 1), CUresult::CUDA_ERROR_INVALID_VALUE);
    }
}

#[test]
fn a_descriptor_carries_memory_and_event_count_to_another_process() {
    let t = on(0);
    let handle = vmm::create(&t, 0, 2 << 20);
    let at = vmm::reserve(&t, 2 << 20);
    vmm::map(&t, at, 2 << 20, handle, 0);
    write(&t, at, &[0xabcd_u32]);
    let s = stream(&t);
    let mut fd: c_int = -1;
    let posix = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    // SAFETY: pointers are to locals; the descriptor becomes ours; the word is mapped.
    let fd = unsafe {
        let export = t.cuMemExportToShareableHandle.expect("vmm");
        assert_eq!(export((&raw mut fd).cast(), handle, posix, 0), OK);
        assert_eq!(t.cuStreamWaitValue64_v2.expect("ops")(s, at + 64, 5, 0), OK);
        OwnedFd::from_raw_fd(fd)
    };
    let mut peer = Peer::start("fd-importer", Some(&fd));
    assert_eq!(peer.hear(), "abcd");
    // SAFETY: the handle is live.
    assert_eq!(unsafe { (t.cuStreamSynchronize)(s) }, OK);
    peer.end();
}

#[test]
fn a_forked_child_has_no_driver() {
    let t = on(0);
    // SAFETY: the child calls nothing that needs locks or memory, and leaves without running anything else.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            let mut p = 0;
            let no = CUresult::CUDA_ERROR_NOT_INITIALIZED;
            let refused = (t.cuMemAlloc_v2)(&raw mut p, 8) == no && (t.cuInit)(0) == no;
            libc::_exit(if refused { 7 } else { 1 });
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        status
    };
    assert_eq!(libc::WEXITSTATUS(status), 7);
    let p = alloc(&t, 8);
    write(&t, p, &[1u64]);
}
