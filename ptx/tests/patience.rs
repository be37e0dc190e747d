//! A wait leaves the abort word alone for a while: it lies in the host's memory, and each look at it costs microseconds.
//!
//! The word is set from the start. A peer that comes a few rounds after the wait has begun must find it waiting: a wait that looked
//! in every round would have left.

#[expect(dead_code, reason = "each test uses a part of it")]
mod device;

use crate::device::{Args, LaunchShape, Machine};
use aqueduct_ptx::abi::{DeviceStruct, LEFT_NOT, MemoryChannelHandle, SemaphoreHandle};
use aqueduct_ptx::oracle::paint;
use aqueduct_ptx::{Target, functions};

const FLAG: u32 = 9;

/// The first warp calls WAIT and stores its status. The second comes a little later and calls PEER.
const KERNEL: &str = "
.visible .entry patient(.param .u64 waiting, .param .u64 coming, .param .u64 lanes, .param .u64 bytes, .param .u64 out)
{
    .reg .u64 %handle, %lane, %lanes, %bytes, %out;
    .reg .u32 %thread, %later, %status;
    .reg .pred %p;
    .param .u32 status;
    mov.u32 %thread, %tid.x;
    ld.param.u64 %lanes, [lanes];
    ld.param.u64 %bytes, [bytes];
    and.b32 %later, %thread, 31;
    cvt.u64.u32 %lane, %later;
    setp.ge.u64 %p, %lane, %lanes;
    @%p bra DONE;
    setp.ge.u32 %p, %thread, 32;
    @%p bra COMING;
    ld.param.u64 %handle, [waiting];
    {
        ARGUMENTS
        call (status), WAIT;
    }
    ld.param.u32 %status, [status];
    setp.ne.u32 %p, %thread, 0;
    @%p bra DONE;
    ld.param.u64 %out, [out];
    st.weak.global.u32 [%out], %status;
    bra DONE;
COMING:
    mov.u32 %later, 200;
LATER:
    sub.u32 %later, %later, 1;
    setp.ne.u32 %p, %later, 0;
    @%p bra LATER;
    ld.param.u64 %handle, [coming];
    {
        ARGUMENTS
        call PEER;
    }
DONE:
    ret;
}
";

/// The arguments of either call, of which some functions take the first only. They stand before the call in its block: ptxas takes those of
/// another block for lost.
const ARGUMENTS: &str = ".param .u64 p0, p1, p2, p3, p4, p5; .param .u32 p6;
        st.param.u64 [p0], %handle; st.param.u64 [p1], 0; st.param.u64 [p2], 0; st.param.u64 [p3], %bytes;
        st.param.u64 [p4], %lane; st.param.u64 [p5], %lanes; st.param.u32 [p6], FLAG;";

/// Whoever waits and whoever comes have handles of their own.
struct Pair<'a> {
    machine: &'a Machine,
    handles: [u64; 2],
    out: u64,
}

impl Pair<'_> {
    fn meet(&self, wait: &str, peer: &str, lanes: u64, bytes: u64) {
        let machine = self.machine;
        let library = functions(Target { sm: 70, ptx: 77 }).expect("the library").text;
        let kernel = KERNEL
            .replace("ARGUMENTS", ARGUMENTS)
            .replace("WAIT", wait)
            .replace("PEER", peer)
            .replace("FLAG", &FLAG.to_string());
        let kernel = machine.load(0, &format!("{library}{kernel}"), "patient");
        let shape = LaunchShape { grid: 1, block: 64 };
        machine.write(0, self.out, &[0xEE; 4]);
        let args = Args::default().u64(self.handles[0]).u64(self.handles[1]).u64(lanes).u64(bytes);
        machine.launch(0, kernel, shape, &args.u64(self.out));
        machine.finish();
        assert_eq!(machine.read(0, self.out, 4), LEFT_NOT.to_ne_bytes(), "{wait}");
    }
}

fn stored(machine: &Machine, bytes: &[u8]) -> u64 {
    let address = machine.alloc(0, bytes.len());
    machine.write(0, address, bytes);
    address
}

#[test]
fn a_thread_waits_a_while_before_it_looks_at_the_abort_word() {
    let machine = Machine::new(1);
    let counters = machine.alloc(0, 64);
    let semaphore = SemaphoreHandle {
        inbound: counters,
        expected_inbound: counters + 8,
        outbound: counters + 16,
        remote_inbound: counters,
        abort: machine.abort_handle(0, 0),
    };
    machine.abort();
    let handle = stored(&machine, semaphore.as_bytes());
    let pair = Pair { machine: &machine, handles: [handle; 2], out: machine.alloc(0, 4) };
    for wait in ["semaphore_wait", "semaphore_relaxed_wait"] {
        pair.meet(&format!("aqueduct_device_{wait}, (p0)"), "aqueduct_device_semaphore_signal, (p0)", 1, 0);
    }
}

#[test]
fn a_warp_waits_a_while_before_it_looks_at_the_abort_word() {
    let machine = Machine::new(1);
    let data = paint(3, 960);
    let [packets, received] = [2048, data.len()].map(|bytes| machine.alloc(0, bytes));
    let sent = stored(&machine, &data);
    let semaphore = SemaphoreHandle { abort: machine.abort_handle(0, 0), ..SemaphoreHandle::default() };
    machine.abort();
    let handle = |src| {
        let bytes = data.len() as u64;
        let channel = MemoryChannelHandle {
            semaphore,
            dst: packets,
            dst_bytes: 2048,
            src,
            src_bytes: bytes,
            packets,
            packet_bytes: 2048,
            ..MemoryChannelHandle::default()
        };
        stored(&machine, channel.as_bytes())
    };
    let handles = [handle(received), handle(sent)];
    let pair = Pair { machine: &machine, handles, out: machine.alloc(0, 4) };
    let all = "(p0, p1, p2, p3, p4, p5, p6)";
    pair.meet(
        &format!("aqueduct_device_memory_channel_unpack_packets_ll128, {all}"),
        &format!("aqueduct_device_memory_channel_put_packets_ll128, {all}"),
        32,
        data.len() as u64,
    );
    assert!(machine.read(0, received, data.len()) == data);
}
