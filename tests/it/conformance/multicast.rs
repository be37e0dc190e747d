//! Multicast objects and `multimem`: what a team of two devices stores, adds and sums over the memory of both.
//!
//! Off on most machines: the software device has multicast in the processes that these cases start, and on hardware the
//! cases run only with `AQUEDUCT_TEST_MULTICAST=1`, because a fabric that is set up wrongly can hang.

use std::ffi::{CString, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use aqueduct_tests::{not_run, ranks};
use cuda_driver_sys::*;

use super::dut::{Dut, ok, refused};
use super::processes::{barrier, pair_with, receive_fd, send_fd};
use super::virtual_memory as vm;

/// One kernel per operation. `multicast` is the address of the team's memory; each thread has words of its own.
const KERNELS: &str = "
.version 8.2
.target sm_90
.address_size 64

.visible .entry store(.param .u64 multicast, .param .u64 value)
{
    .reg .u64 %at, %value, %far;
    .reg .u32 %t, %v;
    ld.param.u64 %at, [multicast];
    ld.param.u64 %value, [value];
    mov.u32 %t, %tid.x;
    cvt.u32.u64 %v, %value;
    add.u32 %v, %v, %t;
    mul.wide.u32 %far, %t, 4;
    add.u64 %at, %at, %far;
    multimem.st.release.sys.global.u32 [%at], %v;
    ret;
}

.visible .entry add(.param .u64 multicast, .param .u64 value)
{
    .reg .u64 %at, %value, %far;
    .reg .u32 %t, %v;
    ld.param.u64 %at, [multicast];
    ld.param.u64 %value, [value];
    mov.u32 %t, %tid.x;
    cvt.u32.u64 %v, %value;
    mul.wide.u32 %far, %t, 4;
    add.u64 %at, %at, %far;
    multimem.red.release.sys.global.add.u32 [%at], %v;
    ret;
}

.visible .entry sum(.param .u64 multicast, .param .u64 out)
{
    .reg .u64 %at, %out, %far;
    .reg .u32 %t, %v;
    ld.param.u64 %at, [multicast];
    ld.param.u64 %out, [out];
    mov.u32 %t, %tid.x;
    mul.wide.u32 %far, %t, 4;
    add.u64 %at, %at, %far;
    add.u64 %out, %out, %far;
    multimem.ld_reduce.acquire.sys.global.add.u32 %v, [%at];
    st.global.u32 [%out], %v;
    ret;
}

// Reduces the 16 bytes at `multicast` in many ways; results are 16 bytes apart.
.visible .entry reduce(.param .u64 multicast, .param .u64 out)
{
    .reg .u64 %at, %out, %d0;
    .reg .b32 %r<4>;
    .reg .b16 %h<8>;
    .reg .f32 %f<4>;
    .reg .f64 %g;
    ld.param.u64 %at, [multicast];
    ld.param.u64 %out, [out];
    multimem.ld_reduce.min.s32 %r0, [%at];
    st.global.u32 [%out], %r0;
    multimem.ld_reduce.max.u32 %r0, [%at];
    st.global.u32 [%out+16], %r0;
    multimem.ld_reduce.and.b32 %r0, [%at];
    st.global.u32 [%out+32], %r0;
    multimem.ld_reduce.xor.b64 %d0, [%at];
    st.global.u64 [%out+48], %d0;
    multimem.ld_reduce.max.s64 %d0, [%at+8];
    st.global.u64 [%out+64], %d0;
    multimem.ld_reduce.add.v4.f32 {%f0, %f1, %f2, %f3}, [%at+16];
    st.global.v4.f32 [%out+80], {%f0, %f1, %f2, %f3};
    multimem.ld_reduce.add.f64 %g, [%at+32];
    st.global.f64 [%out+96], %g;
    multimem.ld_reduce.add.v4.f16x2 {%r0, %r1, %r2, %r3}, [%at+48];
    st.global.v4.b32 [%out+112], {%r0, %r1, %r2, %r3};
    multimem.ld_reduce.min.v8.f16 {%h0, %h1, %h2, %h3, %h4, %h5, %h6, %h7}, [%at+48];
    st.global.v4.b16 [%out+128], {%h0, %h1, %h2, %h3};
    st.global.v4.b16 [%out+136], {%h4, %h5, %h6, %h7};
    multimem.ld_reduce.add.acc::f32.v2.bf16x2 {%r0, %r1}, [%at+64];
    st.global.v2.b32 [%out+144], {%r0, %r1};
    ret;
}

// Changes the words at `multicast` in many ways.
.visible .entry change(.param .u64 multicast, .param .u64 unused)
{
    .reg .u64 %at, %d0;
    .reg .b32 %r<4>;
    .reg .f32 %f<4>;
    .reg .f64 %g;
    ld.param.u64 %at, [multicast];
    mov.b32 %r0, -5;
    multimem.red.min.s32 [%at], %r0;
    multimem.red.or.b32 [%at+4], 3;
    mov.b64 %d0, 1;
    multimem.red.add.u64 [%at+8], %d0;
    mov.f32 %f0, 0f3F800000;
    mov.f32 %f1, 0f40000000;
    multimem.red.add.v4.f32 [%at+16], {%f0, %f1, %f0, %f1};
    mov.f64 %g, 0d3FE0000000000000;
    multimem.st.f64 [%at+32], %g;
    mov.b32 %r1, 0x40003c00;
    multimem.red.add.v2.f16x2 [%at+48], {%r1, %r1};
    multimem.st.v4.f16x2 [%at+64], {%r0, %r1, %r0, %r1};
    ret;
}
";

const FD: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
/// The opt-in on hardware.
const ASKED: &str = "AQUEDUCT_TEST_MULTICAST";
const SOFT: &str = "AQUEDUCT_SOFT_MULTICAST";

/// Whether this machine runs the cases, in the process of a rank.
fn runs(d: &Dut) -> bool {
    if d.test.contains("::hardware::") && std::env::var(ASKED).as_deref() != Ok("1") {
        not_run(d.test, format_args!("multicast on hardware runs only with {ASKED}=1"));
        return false;
    }
    if d.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED) == 0 {
        not_run(d.test, "the device has no multicast (CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED)");
        return false;
    }
    if d.devices() < 2 {
        not_run(d.test, "multicast takes two devices");
        return false;
    }
    true
}

/// Starts a process in which the software device has multicast. True in that process, if the case runs there.
fn alone(d: &Dut) -> bool {
    let rank = ranks::start_with(1, d.test, |_, command| {
        command.env(SOFT, "1");
    });
    rank.is_some() && runs(d)
}

fn properties(devices: u32, size: usize) -> CUmulticastObjectProp {
    CUmulticastObjectProp { numDevices: devices, size, handleTypes: FD.0.into(), flags: 0 }
}

/// The recommended granularity of a team of two.
fn granularity(d: &Dut) -> usize {
    let mut granularity = 0;
    let prop = properties(2, 2 << 20);
    let option = CUmulticastGranularity_flags::CU_MULTICAST_GRANULARITY_RECOMMENDED;
    ok!((d.t.cuMulticastGetGranularity.unwrap())(&raw mut granularity, &raw const prop, option));
    granularity.max(vm::granularity(d))
}

fn create(d: &Dut, prop: CUmulticastObjectProp) -> CUmemGenericAllocationHandle {
    let mut handle = 0;
    ok!((d.t.cuMulticastCreate.unwrap())(&raw mut handle, &raw const prop));
    handle
}

/// A device of a team, with its own memory and its view of the team's.
struct Member {
    dut: Dut,
    module: CUmodule,
    memory: CUmemGenericAllocationHandle,
    own: CUdeviceptr,
    all: CUdeviceptr,
    bytes: usize,
}

/// Makes device `ordinal`'s context current.
fn device(d: &Dut, ordinal: CUdevice) -> Dut {
    let mut context = std::ptr::null_mut();
    ok!((d.t.cuDevicePrimaryCtxRetain)(&raw mut context, ordinal));
    ok!((d.t.cuCtxSetCurrent)(context));
    Dut { t: d.t, device: ordinal, context, test: d.test }
}

impl Member {
    /// Adds `dut`'s device to the team.
    fn add(dut: Dut, team: CUmemGenericAllocationHandle, bytes: usize) -> Self {
        ok!((dut.t.cuMulticastAddDevice.unwrap())(team, dut.device));
        let text = CString::new(KERNELS).expect("PTX holds no NUL");
        let mut module = std::ptr::null_mut();
        ok!((dut.t.cuModuleLoadData)(&raw mut module, text.as_ptr().cast()));
        let memory = vm::create(&dut, bytes);
        let own = vm::map(&dut, memory, bytes, dut.device);
        ok!((dut.t.cuMemsetD8_v2)(own, 0, bytes));
        ok!((dut.t.cuCtxSynchronize)());
        Self { dut, module, memory, own, all: 0, bytes }
    }

    /// Binds the device's memory, by handle or by address, and maps the team's.
    fn bind(&mut self, team: CUmemGenericAllocationHandle, by_address: bool) {
        let t = self.on().t;
        if by_address {
            ok!((t.cuMulticastBindAddr.unwrap())(team, 0, self.own, self.bytes, 0));
        } else {
            ok!((t.cuMulticastBindMem.unwrap())(team, 0, self.memory, 0, self.bytes, 0));
        }
        self.all = vm::map(&self.dut, team, self.bytes, self.dut.device);
    }

    /// The device, with its context current: the own memory can be accessed from there only.
    fn on(&self) -> &Dut {
        ok!((self.dut.t.cuCtxSetCurrent)(self.dut.context));
        &self.dut
    }

    fn run(&self, kernel: &str, threads: u32, argument: u64) {
        let d = self.on();
        let function = d.function(self.module, kernel);
        d.launch(function, 1, threads, std::ptr::null_mut(), &[self.all, argument]);
        ok!((d.t.cuCtxSynchronize)());
    }

    fn words(&self, count: usize) -> Vec<u32> {
        self.on().download_u32(self.own, count)
    }

    /// Result of `sum` for the first words.
    fn sums(&self, count: u32) -> Vec<u32> {
        let d = self.on();
        let out = d.alloc(4 * count as usize);
        self.run("sum", count, out);
        let sums = d.download_u32(out, count as usize);
        d.free(out);
        sums
    }

    fn leave(self, team: CUmemGenericAllocationHandle) {
        let t = self.on().t;
        vm::unmap(&self.dut, self.all, self.bytes);
        ok!((t.cuMulticastUnbind.unwrap())(team, self.dut.device, 0, self.bytes));
        vm::unmap(&self.dut, self.own, self.bytes);
        ok!((t.cuMemRelease.unwrap())(self.memory));
    }
}

/// Two devices of this process as a team.
fn two(d: &Dut) -> (CUmemGenericAllocationHandle, [Member; 2]) {
    let bytes = granularity(d);
    let team = create(d, properties(2, bytes));
    let mut members = [0, 1].map(|ordinal| Member::add(device(d, ordinal), team, bytes));
    members[0].bind(team, false);
    members[1].bind(team, true);
    (team, members)
}

/// Whoever has the address reaches the whole team.
pub(super) fn mapping_waits_for_all_devices(d: &Dut) {
    if !alone(d) {
        return;
    }
    let bytes = granularity(d);
    let team = create(d, properties(2, bytes));
    let add = d.t.cuMulticastAddDevice.unwrap();
    ok!(add(team, 0));
    let (pointer, map) = (vm::reserve(d, bytes), d.t.cuMemMap.unwrap());
    std::thread::scope(|scope| {
        // SAFETY: the range was reserved, and nothing is mapped there.
        let mapping = scope.spawn(move || unsafe { map(pointer, bytes, 0, team, 0) });
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!mapping.is_finished(), "a device is to come");
        ok!(add(team, 1));
        assert_eq!(mapping.join().unwrap(), CUresult::CUDA_SUCCESS);
    });
    vm::unmap(d, pointer, bytes);
    ok!((d.t.cuMemRelease.unwrap())(team));
}

pub(super) fn stores_and_sums_reach_both_devices(d: &Dut) {
    if !alone(d) {
        return;
    }
    let (team, [first, second]) = two(d);
    first.run("store", 64, 1000);
    let stored: Vec<u32> = (1000..1064).collect();
    assert_eq!([first.words(64), second.words(64)], [stored.clone(), stored.clone()]);
    second.run("add", 64, 5);
    let added: Vec<u32> = stored.iter().map(|v| v + 5).collect();
    assert_eq!([first.words(64), second.words(64)], [added.clone(), added.clone()]);
    // Each device has words of its own again.
    first.on().upload(first.own, &7u32.to_le_bytes());
    second.on().upload(second.own, &100u32.to_le_bytes());
    let mut sums: Vec<u32> = added.iter().map(|v| 2 * v).collect();
    sums[0] = 107;
    assert_eq!([first.sums(64), second.sums(64)], [sums.clone(), sums]);
    first.leave(team);
    second.leave(team);
    ok!((d.t.cuMemRelease.unwrap())(team));
}

fn bytes_of<T: Copy, const N: usize>(values: &[T], to: fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|v| to(*v)).collect()
}

pub(super) fn every_type_is_reduced(d: &Dut) {
    if !alone(d) {
        return;
    }
    let (team, [first, second]) = two(d);
    let half = |v: f32| half::f16::from_f32(v).to_bits();
    let brain = |v: f32| half::bf16::from_f32(v).to_bits();
    // The words from 0, of which some instructions take two, four floats, a double, eight halves and four brain floats.
    let contents =
        |words: [u32; 2], long: i64, floats: [f32; 4], double: f64, halves: [f32; 8], brains: [f32; 4]| {
            let mut all = bytes_of(&words, u32::to_le_bytes);
            all.extend(long.to_le_bytes());
            all.extend(bytes_of(&floats, f32::to_le_bytes));
            all.extend(double.to_le_bytes());
            all.extend([0; 8]);
            all.extend(bytes_of(&halves.map(half), u16::to_le_bytes));
            all.extend(bytes_of(&brains.map(brain), u16::to_le_bytes));
            all
        };
    let halves = [1.0, -2.0, 0.5, 1024.0, 3.0, 4.0, -0.25, 100.0];
    first.on().upload(
        first.own,
        &contents([0xffff_fff0, 5], -9, [1.5, 2.0, -3.0, 0.0], 0.125, halves, [256.0, 1.0, -2.0, 0.5]),
    );
    let others = [2.0, -3.0, 0.25, 1.0, -3.0, 0.0, -0.25, 28.0];
    second.on().upload(
        second.own,
        &contents([0x0000_0ff3, 9], -8, [0.5, 1.0, -4.0, 8.0], 2.0, others, [2.0, 1.0, -2.0, 0.25]),
    );
    let out = first.on().alloc(160);
    ok!((d.t.cuMemsetD8_v2)(out, 0, 160));
    first.run("reduce", 1, out);
    let got = first.on().download(out, 160);
    let mut expected = [0; 160];
    let mut put = |at: usize, bytes: &[u8]| expected[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &(-16i32).to_le_bytes());
    put(16, &0xffff_fff0u32.to_le_bytes());
    put(32, &0x0000_0ff0u32.to_le_bytes());
    put(48, &(u64::from(5 ^ 9u32) << 32 | u64::from(0xffff_fff0u32 ^ 0x0000_0ff3)).to_le_bytes());
    put(64, &(-8i64).to_le_bytes());
    put(80, &bytes_of(&[2.0f32, 3.0, -7.0, 8.0], f32::to_le_bytes));
    put(96, &2.125f64.to_le_bytes());
    let both = |f: fn(f32, f32) -> f32| std::array::from_fn::<u16, 8, _>(|i| half(f(halves[i], others[i])));
    put(112, &bytes_of(&both(|a, b| a + b), u16::to_le_bytes));
    put(128, &bytes_of(&both(f32::min), u16::to_le_bytes));
    put(144, &bytes_of(&[258.0, 2.0, -4.0, 0.75].map(brain), u16::to_le_bytes));
    for (at, (got, expected)) in got.chunks(16).zip(expected.chunks(16)).enumerate() {
        assert_eq!(got, expected, "result {at}");
    }

    second.run("change", 1, 0);
    for (member, words, long, floats, old) in [
        (&first, [0xffff_fff0u32, 5 | 3], -8i64, [2.5f32, 4.0, -2.0, 2.0], &halves),
        (&second, [(-5i32).cast_unsigned(), 9 | 3], -7, [1.5, 3.0, -3.0, 10.0], &others),
    ] {
        let changed: Vec<u16> =
            (0..8).map(|i| half(old[i] + if i < 4 { [1.0, 2.0][i % 2] } else { 0.0 })).collect();
        let mut expected = bytes_of(&words, u32::to_le_bytes);
        expected.extend(long.to_le_bytes());
        expected.extend(bytes_of(&floats, f32::to_le_bytes));
        expected.extend(0.5f64.to_le_bytes());
        expected.extend([0; 8]);
        expected.extend(bytes_of(&changed, u16::to_le_bytes));
        expected.extend(bytes_of(&[0xffff_fffbu32, 0x4000_3c00, 0xffff_fffb, 0x4000_3c00], u32::to_le_bytes));
        assert_eq!(member.on().download(member.own, expected.len()), expected);
    }
    first.on().free(out);
    first.leave(team);
    second.leave(team);
    ok!((d.t.cuMemRelease.unwrap())(team));
}

pub(super) fn two_processes_are_a_team(d: &Dut) {
    let started = pair_with(d, |command| {
        command.env(SOFT, "1");
    });
    let Some((rank, mut stream)) = started else { return };
    if !runs(d) {
        return;
    }
    let bytes = granularity(d);
    let mut team = 0;
    if rank == 0 {
        team = create(d, properties(2, bytes));
        let mut fd = -1;
        ok!((d.t.cuMemExportToShareableHandle.unwrap())((&raw mut fd).cast(), team, FD, 0));
        // SAFETY: the driver gave this process a descriptor of its own.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        send_fd(&stream, fd.as_raw_fd());
    } else {
        let fd = receive_fd(&stream);
        let number = fd.as_raw_fd() as usize as *mut c_void;
        ok!((d.t.cuMemImportFromShareableHandle.unwrap())(&raw mut team, number, FD));
    }
    // Binding waits until the other process has added its device.
    let mut member = Member::add(device(d, rank as CUdevice), team, bytes);
    member.bind(team, rank == 1);
    barrier(&mut stream);
    if rank == 0 {
        member.run("store", 32, 500);
    }
    barrier(&mut stream);
    assert_eq!(member.words(32), (500..532).collect::<Vec<u32>>(), "rank {rank} sees the store");
    barrier(&mut stream);
    member.run("add", 32, u64::from(rank) + 1);
    barrier(&mut stream);
    assert_eq!(member.words(32), (503..535).collect::<Vec<u32>>(), "both have added");
    assert_eq!(member.sums(32), (503..535).map(|v| 2 * v).collect::<Vec<u32>>());
    barrier(&mut stream);
    member.leave(team);
    ok!((d.t.cuMemRelease.unwrap())(team));
}

pub(super) fn the_rules_of_teams(d: &Dut) {
    if !alone(d) {
        return;
    }
    let t = d.t;
    let bytes = granularity(d);
    let (make, bind) = (t.cuMulticastCreate.unwrap(), t.cuMulticastBindMem.unwrap());
    let (add, unbind) = (t.cuMulticastAddDevice.unwrap(), t.cuMulticastUnbind.unwrap());
    let mut handle = 0;
    for (devices, size, flags) in [(0, bytes, 0), (2, bytes + 1, 0), (2, 0, 0), (2, bytes, 1)] {
        let prop = CUmulticastObjectProp { flags, ..properties(devices, size) };
        refused!(make(&raw mut handle, &raw const prop), CUDA_ERROR_INVALID_VALUE);
    }
    let (team, members) = two(d);
    refused!(add(team, 0), CUDA_ERROR_INVALID_VALUE);
    refused!(add(team, 1 << 20), CUDA_ERROR_INVALID_DEVICE);
    refused!(add(members[0].memory, 0), CUDA_ERROR_INVALID_VALUE);
    for (offset, memory_offset, size, flags) in
        [(0, 0, bytes, 0), (0, 0, bytes + 1, 0), (bytes, 0, bytes, 0), (0, bytes, bytes, 0), (0, 0, bytes, 1)]
    {
        refused!(bind(team, offset, members[0].memory, memory_offset, size, flags), CUDA_ERROR_INVALID_VALUE);
    }
    refused!(unbind(team, 0, bytes, bytes), CUDA_ERROR_INVALID_VALUE);
    let [first, second] = members;
    first.leave(team);
    second.leave(team);
    ok!((t.cuMemRelease.unwrap())(team));
    refused!(t.cuMulticastAddDevice.unwrap()(team, 0), CUDA_ERROR_INVALID_VALUE | CUDA_ERROR_INVALID_HANDLE);
}
