//! Wrong use of the API. Each call returns an error of the right kind that says what to do. None hangs, crashes or
//! gives a wrong result.

mod driver;
mod joining;

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct::bootstrap;
use aqueduct::channel::{MemoryChannel, PacketFormat};
use aqueduct::comm::{Communicator, CommunicatorConfig, Transport};
use aqueduct::gpu::{
    BufferOptions, Context, Device, Driver, GpuBuffer, HandlePolicy, LaunchConfig, Module, Stream, arg,
};
use aqueduct::internals::share::{HandleTypes, Mapping, PhysicalAllocation};
use aqueduct::internals::share::{LegacyHandle, LegacyMapping};
use aqueduct::{Error, ErrorKind, Result};

use crate::data::{assert_same, bytes};
use crate::group::{Machine, Rank, config, context, join_as, processes, soon, threads, threads_with};

/// Asserts that `result` is an error of `kind` whose text has all of `words`.
#[track_caller]
fn refused<T>(result: Result<T>, kind: ErrorKind, words: &[&str]) -> Error {
    let Err(error) = result else { panic!("succeeded, but should fail with {kind:?} and {words:?}") };
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    for word in words {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
    error
}

fn device() -> Context {
    context(&Machine::Software.driver(), 0)
}

/// A channel between two threads: 4096 bytes each way, packets with room for 1024 bytes of LL8 or LL16.
fn channel(rank: &Rank, peer: u32) -> (MemoryChannel, MemoryChannel, Stream) {
    let comm = &rank.comm;
    let register = |len| comm.register_memory(&rank.buffer(len), Transport::CudaIpc).unwrap();
    let (local, inbox, packets) = (register(4096), register(4096), register(2048));
    comm.send_memory(&inbox, peer, 0).unwrap();
    comm.send_memory(&packets, peer, 1).unwrap();
    let (theirs, their_packets) = (comm.recv_memory(peer, 0).unwrap(), comm.recv_memory(peer, 1).unwrap());
    let connection = comm.connect(peer, 0, Transport::CudaIpc).unwrap();
    let semaphore = comm.build_semaphore(&connection, 0).unwrap();
    comm.setup(soon()).unwrap();
    let semaphore = semaphore.get().unwrap();
    let data = MemoryChannel::new(&semaphore, &theirs.get().unwrap(), &local, None).unwrap();
    let packets =
        MemoryChannel::new(&semaphore, &their_packets.get().unwrap(), &local, Some(&packets)).unwrap();
    (data, packets, Stream::new(comm.context()).unwrap())
}

#[test]
fn ranges_that_do_not_fit_a_channel() {
    use ErrorKind::InvalidUsage;
    threads(Machine::Software, 2, "bad_input::ranges_that_do_not_fit_a_channel", |rank| {
        let (data, packets, stream) = channel(&rank, 1 - rank.me());
        let s = &stream;
        refused(
            data.put(s, 0, 0, 4097),
            InvalidUsage,
            &["put", "4097 bytes at offset 0 of dst do not fit", "4096"],
        );
        refused(data.put(s, 4096, 0, 1), InvalidUsage, &["1 bytes at offset 4096 of dst"]);
        refused(data.put(s, 0, 4000, 97), InvalidUsage, &["97 bytes at offset 4000 of src"]);
        refused(data.put(s, usize::MAX, 0, 2), InvalidUsage, &["do not fit"]);
        refused(data.put_with_signal(s, 0, usize::MAX - 1, 2), InvalidUsage, &["do not fit"]);
        refused(data.put(s, 2, 2, usize::MAX), InvalidUsage, &["do not fit"]);
        refused(data.get(s, 4000, 0, 97), InvalidUsage, &["get", "97 bytes at offset 4000"]);
        refused(data.get(s, usize::MAX, 0, 1), InvalidUsage, &["do not fit"]);
        refused(data.get(s, 0, 4000, 97), InvalidUsage, &["get", "97 bytes at offset 4000 of my memory"]);
        refused(data.get(s, 0, 4096, 1), InvalidUsage, &["1 bytes at offset 4096 of my memory"]);
        refused(data.get_aligned(s, 0, 4096, 16), InvalidUsage, &["16 bytes at offset 4096 of my memory"]);
        refused(data.put_aligned(s, 0, 4096, 16), InvalidUsage, &["16 bytes at offset 4096 of src"]);
        refused(data.write_u64(s, 512, 0), InvalidUsage, &["8 bytes at offset 4096"]);
        refused(data.write_u32(s, usize::MAX, 0), InvalidUsage, &["do not fit"]);
        let word = rank.buffer(16);
        let odd = word.slice(2..10).unwrap();
        refused(data.read_u64(s, 0, &odd), InvalidUsage, &["needs 8 aligned bytes"]);
        refused(data.poll(s, &odd), InvalidUsage, &["needs 4 aligned bytes"]);
        refused(data.read_u32(s, 1024, &word.slice(..).unwrap()), InvalidUsage, &["offset 4096"]);

        let (ll8, ll16, ll128) = (PacketFormat::Ll8, PacketFormat::Ll16, PacketFormat::Ll128);
        let put = |format, to, from, size, flag| packets.put_packets(s, format, to, from, size, flag);
        refused(put(ll8, 0, 0, 5, 1), InvalidUsage, &["LL8 carries multiples of 4 bytes", "size 5"]);
        refused(put(ll16, 0, 4, 8, 1), InvalidUsage, &["LL16 carries multiples of 8 bytes", "data offset 4"]);
        refused(put(ll16, 8, 0, 8, 1), InvalidUsage, &["multiples of 16 bytes; packet offset 8"]);
        refused(put(ll128, 64, 0, 8, 1), InvalidUsage, &["multiples of 128 bytes"]);
        refused(put(ll8, 0, 0, 1028, 1), InvalidUsage, &["2056 bytes at offset 0 of dst do not fit"]);
        refused(put(ll128, 1024, 0, 964, 1), InvalidUsage, &["2048 bytes at offset 1024"]);
        refused(put(ll16, 0, 0, usize::MAX - 7, 1), InvalidUsage, &["exceed the address space"]);
        refused(put(ll16, 0, 0, 8, 0), InvalidUsage, &["flag 0 is not allowed"]);
        refused(put(ll16, 0, 4096, 8, 1), InvalidUsage, &["8 bytes at offset 4096 of src"]);
        refused(packets.unpack_packets(s, ll16, 2032, 0, 16, 1), InvalidUsage, &["packet buffer do not fit"]);
        for format in PacketFormat::ALL {
            let unpack = packets.unpack_packets(s, format, 0, 4088, 16, 1);
            refused(unpack, InvalidUsage, &["unpack_packets", "16 bytes at offset 4088 of src"]);
        }
        refused(
            data.unpack_packets(s, ll16, 0, 0, 8, 1),
            InvalidUsage,
            &["no packet buffer", "MemoryChannel::new"],
        );

        // No refused call reached the stream, and zero bytes at the very end are no error.
        data.put(s, 4096, 4096, 0).unwrap();
        data.get(s, 4096, 4096, 0).unwrap();
        put(ll128, 2048, 4096, 0, 1).unwrap();
        packets.unpack_packets(s, ll8, 2048, 4096, 0, 1).unwrap();
        data.put_with_signal(s, 0, 0, 0).unwrap();
        data.wait(s).unwrap();
        s.synchronize(soon()).unwrap();
        rank.barrier();
    });
}

#[test]
fn a_broken_promise_of_alignment() {
    threads(Machine::Software, 2, "bad_input::a_broken_promise_of_alignment", |rank| {
        let (comm, peer) = (&rank.comm, 1 - rank.me());
        let (buffer, usage) = (rank.buffer(4096), ErrorKind::InvalidUsage);
        let register = |at| comm.register_range(&buffer, at, 1024, Transport::CudaIpc).unwrap();
        let (straight, odd) = (register(0), register(1032));
        comm.send_memory(&straight, peer, 0).unwrap();
        comm.send_memory(&odd, peer, 1).unwrap();
        let theirs = [0, 1].map(|tag| comm.recv_memory(peer, tag).unwrap());
        let connection = comm.connect(peer, 0, Transport::CudaIpc).unwrap();
        let semaphore = comm.build_semaphore(&connection, 0).unwrap();
        comm.setup(soon()).unwrap();
        let (semaphore, theirs) = (semaphore.get().unwrap(), theirs.map(|memory| memory.get().unwrap()));
        let stream = Stream::new(comm.context()).unwrap();
        let channel = |dst, src| MemoryChannel::new(&semaphore, dst, src, None).unwrap();
        let good = channel(&theirs[0], &straight);
        for (dst, src, bytes) in [(8, 0, 16), (0, 1, 16), (0, 0, 17)] {
            let words =
                ["multiples of 16", &format!("offset {dst} of dst, offset {src} of src, size {bytes}")];
            refused(good.put_aligned(&stream, dst, src, bytes), usage, &words);
            refused(good.put_aligned_with_signal(&stream, dst, src, bytes), usage, &words);
            refused(good.get_aligned(&stream, dst, src, bytes), usage, &words);
        }
        refused(good.put_aligned(&stream, 1024, 0, 16), usage, &["do not fit"]);
        for bad in [channel(&theirs[1], &straight), channel(&theirs[0], &odd)] {
            refused(
                bad.put_aligned(&stream, 0, 0, 16),
                usage,
                &["memory at multiples of 16", "`put` takes any"],
            );
            refused(
                bad.get_aligned(&stream, 0, 0, 16),
                usage,
                &["memory at multiples of 16", "`get` takes any"],
            );
        }
        rank.barrier();
    });
}

/// Over PCIe a line of 128 bytes may arrive in parts, and stale data pass for new.
#[test]
fn lines_of_128_bytes_over_a_link_that_may_split_them() {
    let test = "bad_input::lines_of_128_bytes_over_a_link_that_may_split_them";
    let pcie = [("AQUEDUCT_SOFT_LACKS", "native_atomics")];
    threads_with(Machine::Software, 2, test, &config(), &pcie, |rank| {
        let (_, packets, stream) = channel(&rank, 1 - rank.me());
        let words = ["LL128", "NVLink", &format!("rank {}", 1 - rank.me()), "use LL16"];
        let flag = |format| format as u32 + 1;
        let put = |format, size| packets.put_packets(&stream, format, 0, 0, size, flag(format));
        let unpack = |format, size| packets.unpack_packets(&stream, format, 0, 0, size, flag(format));
        for size in [0, 960] {
            refused(put(PacketFormat::Ll128, size), ErrorKind::Unsupported, &words);
            refused(unpack(PacketFormat::Ll128, size), ErrorKind::Unsupported, &words);
        }
        for format in [PacketFormat::Ll8, PacketFormat::Ll16] {
            put(format, 8).unwrap();
            unpack(format, 8).unwrap();
            stream.synchronize(soon()).unwrap();
            rank.barrier();
        }
    });
}

#[test]
fn queued_waits_leave_after_an_abort() {
    threads(Machine::Software, 2, "bad_input::queued_waits_leave_after_an_abort", |rank| {
        let (data, packets, stream) = channel(&rank, 1 - rank.me());
        rank.barrier();
        if rank.me() == 0 {
            for _ in 0..10 {
                data.wait(&stream).unwrap();
                packets.unpack_packets(&stream, PacketFormat::Ll16, 0, 0, 256, 7).unwrap();
            }
            refused(stream.synchronize(Duration::from_millis(300)), ErrorKind::Timeout, &["synchronize"]);
            rank.comm.abort("the test gives up");
            let deadline = Instant::now() + Duration::from_secs(60);
            while let Ok(idle) = stream.is_idle() {
                assert!(!idle, "the waits were given up");
                assert!(Instant::now() < deadline, "20 queued waits have not left yet");
                std::thread::sleep(Duration::from_millis(1));
            }
            refused(stream.synchronize(soon()), ErrorKind::Aborted, &["synchronize", "the test gives up"]);
        }
        rank.barrier();
    });
}

#[test]
fn a_channel_with_the_wrong_ends() {
    threads(Machine::Software, 3, "bad_input::a_channel_with_the_wrong_ends", |rank| {
        let (comm, me) = (&rank.comm, rank.me());
        let (next, previous) = ((me + 1) % 3, (me + 2) % 3);
        let mine = comm.register_memory(&rank.buffer(64), Transport::CudaIpc).unwrap();
        let [from_next, from_previous] = [next, previous].map(|peer| {
            comm.send_memory(&mine, peer, 0).unwrap();
            comm.recv_memory(peer, 0).unwrap()
        });
        let connections = [next, previous].map(|peer| comm.connect(peer, 0, Transport::CudaIpc).unwrap());
        let [semaphore, _] = connections.each_ref().map(|c| comm.build_semaphore(c, 0).unwrap());
        comm.setup(soon()).unwrap();
        let (theirs, foreign) = (from_next.get().unwrap(), from_previous.get().unwrap());
        let semaphore = semaphore.get().unwrap();
        let new = |dst, src, packets| MemoryChannel::new(&semaphore, dst, src, packets);
        let usage = ErrorKind::InvalidUsage;
        refused(
            new(&foreign, &mine, None),
            usage,
            &["dst must be memory", &format!("received from rank {previous}")],
        );
        refused(new(&mine, &mine, None), usage, &["this rank's own memory", "recv_memory"]);
        refused(new(&theirs, &theirs, None), usage, &["src must be this rank's own", "received from"]);
        refused(new(&theirs, &mine, Some(&theirs)), usage, &["the packet buffer must be this rank's own"]);
        new(&theirs, &mine, Some(&mine)).unwrap();
        rank.barrier();
    });
}

/// A rank may have a channel to itself, and it works.
#[test]
fn a_channel_to_oneself() {
    threads(Machine::Software, 1, "bad_input::a_channel_to_oneself", |rank| {
        let comm = &rank.comm;
        let (source, target) = (rank.buffer(1000), rank.buffer(1000));
        source.upload(0, &bytes(0, 0, 1000), soon()).unwrap();
        let register = |buffer: &Arc<GpuBuffer>| comm.register_memory(buffer, Transport::CudaIpc).unwrap();
        comm.send_memory(&register(&target), 0, 0).unwrap();
        let theirs = comm.recv_memory(0, 0).unwrap();
        let connection = comm.connect(0, 0, Transport::CudaIpc).unwrap();
        let semaphore = comm.build_semaphore(&connection, 0).unwrap();
        comm.setup(soon()).unwrap();
        let semaphore = semaphore.get().unwrap();
        let channel =
            MemoryChannel::new(&semaphore, &theirs.get().unwrap(), &register(&source), None).unwrap();
        let stream = Stream::new(comm.context()).unwrap();
        channel.put_with_signal(&stream, 1, 0, 999).unwrap();
        channel.wait(&stream).unwrap();
        stream.synchronize(soon()).unwrap();
        let mut seen = vec![9; 1000];
        target.download(0, &mut seen, soon()).unwrap();
        assert_same(&seen[1..], &bytes(0, 0, 999), format_args!("data put to this rank itself"));
        assert_eq!(seen[0], 0);
        refused(comm.connect(1, 1, Transport::CudaIpc), ErrorKind::InvalidUsage, &["no rank 1", "0 to 0"]);
    });
}

#[test]
fn a_wait_without_a_signal_ends_at_its_deadline_or_by_an_abort() {
    threads(
        Machine::Software,
        2,
        "bad_input::a_wait_without_a_signal_ends_at_its_deadline_or_by_an_abort",
        |rank| {
            let (data, _, stream) = channel(&rank, 1 - rank.me());
            rank.barrier();
            if rank.me() == 0 {
                data.wait(&stream).unwrap();
                let soon_over = aqueduct::Deadline::after(Duration::from_millis(300));
                refused(stream.synchronize(soon_over), ErrorKind::Timeout, &["synchronize"]);
                rank.comm.abort("the test gives up");
                let words = ["synchronize", "aborted by rank 0", "the test gives up"];
                refused(stream.synchronize(soon()), ErrorKind::Aborted, &words);
                refused(stream.is_idle(), ErrorKind::Aborted, &["is_idle", "the test gives up"]);
                let record = rank.comm.abort_record().expect("the kernel recorded what it waited for");
                assert!(format!("{record}").contains("rank 1"), "{record}");
                refused(data.signal(&stream), ErrorKind::Aborted, &["the test gives up"]);
            }
            rank.barrier();
        },
    );
}

#[test]
fn memory_of_zero_bytes_and_ranges_outside() {
    let usage = ErrorKind::InvalidUsage;
    refused(GpuBuffer::new(&device(), 0), usage, &["zero bytes"]);
    threads(Machine::Software, 1, "bad_input::memory_of_zero_bytes_and_ranges_outside", |rank| {
        let buffer = rank.buffer(100);
        let register = |offset, len| rank.comm.register_range(&buffer, offset, len, Transport::CudaIpc);
        refused(register(0, 0), usage, &["zero bytes"]);
        refused(register(1, 100), usage, &["offset 1 + size 100 is past the end", "100 bytes"]);
        refused(register(usize::MAX, 2), usage, &["past the end"]);
        refused(register(2, usize::MAX), usage, &["past the end"]);
        let whole = register(0, 100).unwrap();
        refused(whole.range(99, 2), usage, &["past the end"]);
        refused(buffer.slice(50..101), usage, &["do not fit into 100 bytes"]);
        refused(buffer.upload(97, &[0u32], soon()), usage, &["4 bytes at offset 97"]);
        // SAFETY: the address is refused.
        let stranger = unsafe { rank.comm.register_raw(0x1000, 64, Transport::CudaIpc) };
        refused(stranger, usage, &["0x1000", "not an address of device memory"]);
        let other = Arc::new(GpuBuffer::new(&context(&Machine::Software.driver(), 1), 64).unwrap());
        let foreign = rank.comm.register_memory(&other, Transport::CudaIpc);
        refused(foreign, usage, &["device 1", "Communicator::context()"]);
    });
}

/// Memory that no other process can open is refused in `send_memory`; the error says how to allocate it instead.
#[test]
fn memory_that_cannot_be_exported() {
    processes(Machine::Software, 2, "bad_input::memory_that_cannot_be_exported", |rank| {
        if rank.me() == 0 {
            let context = rank.comm.context();
            let private = PhysicalAllocation::create(context, 4096, HandleTypes::NONE).unwrap();
            let mapping = Mapping::new(context, vec![Arc::new(private)]).unwrap();
            // SAFETY: the mapping outlives the registration, which nobody else can open.
            let memory = unsafe { rank.comm.register_raw(mapping.ptr(), 4096, Transport::CudaIpc) }.unwrap();
            let words = ["send_memory", "GpuBuffer", "requestedHandleTypes = POSIX_FILE_DESCRIPTOR"];
            refused(rank.comm.send_memory(&memory, 1, 0), ErrorKind::Unsupported, &words);
        }
        rank.barrier();
        // The communicator still works.
        let memory = rank.comm.register_memory(&rank.buffer(64), Transport::CudaIpc).unwrap();
        rank.comm.send_memory(&memory, 1 - rank.me(), 0).unwrap();
        let theirs = rank.comm.recv_memory(1 - rank.me(), 0).unwrap();
        rank.comm.setup(soon()).unwrap();
        assert_eq!(theirs.get().unwrap().len(), 64);
        rank.barrier();
    });
}

#[test]
fn a_kind_of_handle_that_the_device_lacks() {
    let options = BufferOptions { zeroed: false, handles: HandlePolicy::Fabric };
    let words = ["no fabric handles", "HandlePolicy::Fd or Auto"];
    refused(GpuBuffer::with_options(&device(), 64, options), ErrorKind::Unsupported, &words);
}

const HANDLE: &str = "LEGACY_HANDLE ";

/// The exporter of the next test, run as a process of its own: prints a legacy handle and kills itself.
#[test]
#[ignore = "part of the next test"]
fn exporter_that_dies() {
    let context = device();
    let options = BufferOptions { zeroed: true, handles: HandlePolicy::Legacy };
    let buffer = GpuBuffer::with_options(&context, 4096, options).unwrap();
    let handle = LegacyHandle::export(&context, buffer.ptr()).unwrap();
    let text: String = handle.0.iter().map(|byte| format!("{byte:02x}")).collect();
    println!("\n{HANDLE}{text}");
    std::io::stdout().flush().unwrap();
    // SAFETY: kills this process, as the test wants.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

#[test]
fn a_handle_of_a_dead_process() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "bad_input::exporter_that_dies", "--ignored", "--nocapture", "--test-threads=1"])
        .stderr(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGKILL));
    let text = String::from_utf8(output.stdout).unwrap();
    let digits = text.lines().find_map(|line| line.strip_prefix(HANDLE)).expect("the handle was printed");
    let mut handle = LegacyHandle([0; 64]);
    for (i, byte) in handle.0.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap();
    }
    let context = device();
    let words = ["cuIpcOpenMemHandle", "the process that exported the handle", "still run"];
    refused(LegacyMapping::open(&context, &handle), ErrorKind::Cuda, &words);
    let words = ["cuIpcOpenMemHandle"];
    refused(LegacyMapping::open(&context, &LegacyHandle([0xFF; 64])), ErrorKind::Cuda, &words);
    // The context still works.
    GpuBuffer::new(&context, 64).unwrap();
}
