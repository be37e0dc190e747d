//! Kernels that talk to the host, with a kernel on another device in the host's place: the race detector follows every
//! access of kernels, but not the host's own loads and stores.

#[path = "library/calls.rs"]
#[expect(dead_code, unused_imports, unused_macros, reason = "one operation is called here, in one form")]
mod calls;
mod device;
#[expect(dead_code, reason = "this file's consumer is a kernel")]
mod ring;
mod standins;

use crate::device::LaunchShape;
use aqueduct_ptx::abi::{
    ABORT_RECORD_COMPLETE, ABORT_WORD_RUN, AbortRecord, DeviceStruct, LEFT_TOLD, MemoryChannelHandle,
    Operation, PortChannelHandle, SemaphoreHandle, TriggerKind,
};
use aqueduct_ptx::{Target, functions};
use calls::{Calls, Form, NOT};
use device::{Args, Machine};
use ring::{Ring, word32};
use standins::{CONSUMER, POLLER, PROXY, READER};
use std::sync::atomic::Ordering;

/// The least that knows `cvta.param`.
const CVTA_PARAM: Target = Target { sm: 70, ptx: 77 };
const HEAD: &str = ".version 7.0\n.target sm_70\n.address_size 64\n";
const ONE: LaunchShape = LaunchShape { grid: 1, block: 1 };

/// Every thread waits for its trigger before it pushes the next, through `capacity` slots.
fn consumed_by_a_kernel(capacity: u32, grid: u32, block: u32) {
    let (count, threads) = (4, grid * block);
    let ring = Ring::of(Machine::new(2), capacity, 0);
    let machine = &ring.machine;
    let (cells, wrong) = (machine.alloc(0, 4 * threads as usize), machine.alloc(1, 4));
    let status = machine.host(4) as u64;
    let push = machine.function(0, "fifo", &[], 0);
    let consume = machine.load(1, &format!("{HEAD}{CONSUMER}"), "consume");
    machine.write(1, wrong, &[1; 4]);
    let args = Args::default().u64(ring.handle.slots).u64(ring.handle.tail).u64(cells).u64(wrong);
    let args = args.u32(capacity).u32(capacity.ilog2()).u32(threads * count);
    machine.launch(1, consume, ONE, &args);
    let args = Args::default().structure(&ring.handle).u32(count).u64(cells).u64(status);
    machine.launch(0, push, LaunchShape { grid, block }, &args);
    machine.finish();
    assert_eq!(machine.read(1, wrong, 4), [0; 4], "cells behind their triggers, {capacity} slots");
}

#[test]
fn a_trigger_publishes_what_its_thread_wrote() {
    // Room for all; room for some; room for one.
    for (capacity, grid, block) in [(64, 2, 32), (8, 2, 32), (1, 1, 16)] {
        consumed_by_a_kernel(capacity, grid, block);
    }
}

#[test]
fn a_wait_that_a_kernel_ends_leaves_a_whole_record() {
    for (row, params, index, operation) in [
        ("semaphore", &[][..], 2, Operation::WAIT),
        ("semaphore", &[], 3, Operation::WAIT),
        ("packet", &[("FORMAT", "ll16")], 1, Operation::UNPACK_LL16),
        ("packet", &[("FORMAT", "ll8")], 1, Operation::UNPACK_LL8),
        ("ll128", &[], 1, Operation::UNPACK_LL128),
    ] {
        let machine = Machine::new(2);
        let counters = machine.alloc(0, 64);
        let abort = machine.abort_handle(0, 1);
        let semaphore = SemaphoreHandle {
            inbound: counters,
            expected_inbound: counters + 8,
            outbound: counters + 16,
            remote_inbound: counters + 24,
            abort,
        };
        let [src, packets] = [(); 2].map(|()| machine.alloc(0, 4096));
        let channel = MemoryChannelHandle {
            semaphore,
            src,
            src_bytes: 4096,
            packets,
            packet_bytes: 4096,
            ..MemoryChannelHandle::default()
        };
        let copy = machine.alloc(1, size_of::<AbortRecord>());
        let wait = machine.function(0, row, params, index);
        let end = machine.load(1, &format!("{HEAD}{READER}"), "abort");
        let mut args = Args::default().structure(&channel);
        if row != "semaphore" {
            args = args.u64(0).u64(0).u64(1600).u32(9);
        }
        machine.launch(0, wait, LaunchShape { grid: 1, block: 64 }, &args);
        let words = size_of::<AbortRecord>() / 4;
        let args =
            Args::default().u64(abort.word).u32(ABORT_WORD_RUN + 1).u64(machine.record_address(0)).u64(copy);
        machine.launch(1, end, ONE, &args.u32(words as u32).u32(ABORT_RECORD_COMPLETE));
        machine.finish();
        let seen = machine.read(1, copy, 4 * words);
        let seen: Vec<u32> =
            seen.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().expect("four bytes"))).collect();
        assert_eq!(seen[..4], [ABORT_RECORD_COMPLETE, 0, operation.0, 1], "{row} {index}");
    }
}

/// A port channel of rank 0 whose proxy is a kernel of rank 1.
struct Port {
    ring: Ring,
    handle: PortChannelHandle,
    sum: u64,
}

impl Port {
    fn new() -> Self {
        let ring = Ring::of(Machine::new(2), 4, 0);
        let machine = &ring.machine;
        let counters = machine.alloc(0, 64);
        let [src, data, packets] = [(); 3].map(|()| machine.alloc(0, 4096));
        let handle = PortChannelHandle {
            fifo: ring.handle,
            semaphore: SemaphoreHandle {
                inbound: counters,
                expected_inbound: counters + 8,
                abort: machine.abort_handle(0, 1),
                ..SemaphoreHandle::default()
            },
            flushed: machine.host(8) as u64,
            dst_bytes: 4096,
            src,
            src_bytes: 4096,
            data,
            data_bytes: 4096,
            packets,
            packet_bytes: 4096,
            arrived: counters + 16,
            ..PortChannelHandle::default()
        };
        Self { sum: machine.alloc(1, 4), ring, handle }
    }

    fn start_proxy(&self, words: u32) {
        let machine = &self.ring.machine;
        let proxy = machine.load(1, &format!("{HEAD}{PROXY}"), "proxy");
        let args = Args::default().u64(self.handle.fifo.slots).u64(self.handle.src).u32(words);
        machine.launch(1, proxy, ONE, &args.u64(self.handle.flushed).u64(self.sum));
    }

    fn sum(&self) -> u32 {
        u32::from_ne_bytes(self.ring.machine.read(1, self.sum, 4).try_into().expect("four bytes"))
    }
}

#[test]
fn packets_of_all_blocks_are_made_before_one_put_asks_for_them() {
    for format in ["ll8", "ll16"] {
        let port = Port::new();
        let machine = &port.ring.machine;
        let put = machine.function(0, "port_packet", &[("FORMAT", format)], 0);
        let (bytes, flag) = (1024, 3);
        machine.write(0, port.handle.data, &5_u32.to_ne_bytes().repeat(bytes / 4));
        port.start_proxy(2 * bytes as u32 / 4);
        let args = Args::default().structure(&port.handle).u64(0).u64(0).u64(0).u64(bytes as u64);
        machine.launch(0, put, LaunchShape { grid: 3, block: 64 }, &args.u32(flag).u64(0));
        machine.finish();
        assert_eq!(port.sum(), (5 + flag) * bytes as u32 / 4, "{format}");
    }
}

#[test]
fn packets_of_a_whole_group_are_made_before_its_put_asks_for_them() {
    for call in ["port_put_packets_ll8", "port_put_packets_ll16"] {
        let port = Port::new();
        let machine = &port.ring.machine;
        // Not all lanes of a warp make as many packets.
        let (bytes, flag) = (1048, 3);
        machine.write(0, port.handle.data, &5_u32.to_ne_bytes().repeat(bytes / 4));
        let calls = Calls::new(machine, 0, Form::Linked);
        port.start_proxy(2 * bytes as u32 / 4);
        let args = Args::default().structure(&port.handle).u64(0).u64(0).u64(0).u64(bytes as u64);
        assert_eq!(calls.run(machine, call, 1, 96, args.u32(1).u32(flag)), NOT, "{call}");
        assert_eq!(port.sum(), (5 + flag) * bytes as u32 / 4, "{call}");
    }
}

#[test]
fn what_a_completed_flush_covered_can_be_written_again() {
    let port = Port::new();
    let machine = &port.ring.machine;
    let act = machine.function(0, "port", &[], 0);
    let fill = machine.load(0, &format!("{HEAD}{PROXY}"), "fill");
    let words = 32;
    let shape = LaunchShape { grid: 1, block: words };
    port.start_proxy(words);
    machine.launch(0, fill, shape, &Args::default().u64(port.handle.src).u32(5));
    let kind = u32::from(TriggerKind::DATA.0 | TriggerKind::SYNC.0);
    let args =
        Args::default().structure(&port.handle).u32(kind).u64(0).u64(0).u64(4 * u64::from(words)).u64(0);
    machine.launch(0, act, shape, &args);
    machine.launch(0, fill, shape, &Args::default().u64(port.handle.src).u32(6));
    machine.finish();
    assert_eq!(port.sum(), 5 * words);
}

/// A kernel of rank 1 writes data and then sets `word`; a kernel of rank 0 polls by `call` and then must see the data.
fn polled(machine: &Machine, handle: &[u8], word: u64, call: &str) {
    let [memory, copy, address] = [4, 4, handle.len()].map(|bytes| machine.alloc(0, bytes));
    machine.write(0, address, handle);
    let library = functions(CVTA_PARAM).expect("the library").text;
    let poll = machine.load(0, &format!("{library}{}", POLLER.replace("FUNCTION", call)), "poll");
    let tell = machine.load(1, &format!("{HEAD}{PROXY}"), "tell");
    machine.launch(0, poll, ONE, &Args::default().u64(address).u64(memory).u64(copy));
    machine.launch(1, tell, ONE, &Args::default().u64(memory).u32(5).u64(word));
    machine.finish();
    assert_eq!(machine.read(0, copy, 4), 5_u32.to_ne_bytes(), "{call}");
}

#[test]
fn a_poll_that_has_something_shows_what_came_before_it() {
    let machine = Machine::new(2);
    let counters = machine.alloc(0, 64);
    let semaphore =
        SemaphoreHandle { inbound: counters, expected_inbound: counters + 8, ..SemaphoreHandle::default() };
    polled(&machine, semaphore.as_bytes(), counters, "aqueduct_device_semaphore_poll, (p0)");

    let ring = Ring::of(machine, 4, 0);
    let call = "aqueduct_device_fifo_poll, (p0, p1)";
    polled(&ring.machine, ring.handle.as_bytes(), ring.handle.tail, call);
}

#[test]
fn threads_that_leave_together_store_one_status() {
    let port = Port::new();
    let machine = &port.ring.machine;
    let status = machine.host(4) as u64;
    let unpack = machine.function(0, "port_packet", &[("FORMAT", "ll8")], 1);
    machine.abort();
    let args = Args::default().structure(&port.handle).u64(0).u64(0).u64(1024).u32(3).u64(status);
    machine.launch(0, unpack, LaunchShape { grid: 2, block: 64 }, &args);
    machine.finish();
    assert_eq!(word32(status).load(Ordering::Acquire), LEFT_TOLD);
}
