//! Port channels, with this thread as their proxy.

use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Instant;

use aqueduct_ptx::abi::{
    ABORT_RECORD_COMPLETE, ChannelTrigger, Operation, PortChannelHandle, ProxyTrigger, SemaphoreHandle,
    TriggerKind, lap_bit,
};
use aqueduct_ptx::oracle::channel::put_packets;
use aqueduct_ptx::oracle::paint;

use crate::calls::{CLOSED, Calls, Form, NOT, NOTHING, REFUSED, TOLD, WHILE, in_both_forms};
use crate::device::{Args, patience};
use crate::ring::{Ring, word};

in_both_forms! {
    each_function_pushes_the_trigger_of_its_name,
    a_put_past_the_end_is_refused,
    a_closed_fifo_takes_nothing,
    flushes_and_signals_are_waited_for,
    packets_over_a_port,
    the_last_group_learns_that_it_is,
    who_waits_leaves_when_told,
}

const SLOTS: u32 = 4;
const PEER: u32 = 7;
/// Bytes of each buffer.
const LEN: usize = 16 << 10;

const PUT: TriggerKind = TriggerKind::DATA;
const SIGNAL: TriggerKind = TriggerKind::FLAG;
const FLUSH: TriggerKind = TriggerKind::SYNC;
/// The trigger that each of these functions pushes. All but the last two take destination, source and size.
const ASK: [(&str, TriggerKind); 5] = [
    ("port_put", PUT),
    ("port_put_with_signal", PUT.with(SIGNAL)),
    ("port_put_with_signal_and_flush", PUT.with(SIGNAL).with(FLUSH)),
    ("port_signal", SIGNAL),
    ("port_flush", FLUSH),
];

struct End {
    ring: Ring,
    calls: Calls,
    handle: PortChannelHandle,
}

impl End {
    fn new(form: Form) -> Self {
        let ring = Ring::new(SLOTS, 0);
        let machine = &ring.machine;
        let counters = machine.alloc(0, 64);
        let handle = PortChannelHandle {
            fifo: ring.handle,
            semaphore: SemaphoreHandle {
                inbound: machine.host(8) as u64,
                expected_inbound: counters,
                outbound: 0,
                remote_inbound: 0,
                abort: machine.abort_handle(0, PEER),
            },
            flushed: machine.host(8) as u64,
            dst_bytes: LEN as u64,
            src: machine.alloc(0, LEN),
            src_bytes: LEN as u64,
            data: machine.alloc(0, LEN),
            data_bytes: LEN as u64,
            packets: machine.alloc(0, LEN),
            packet_bytes: LEN as u64,
            arrived: counters + 8,
            semaphore_id: 0xffff,
            dst_id: 0xfffe,
            src_id: 0xfffd,
            reserved: 0,
        };
        Self { calls: Calls::new(machine, 0, form), ring, handle }
    }

    fn args(&self) -> Args {
        Args::default().structure(&self.handle)
    }

    fn start(&self, name: &str, args: Args) {
        self.calls.start(&self.ring.machine, name, 1, 32, args);
    }

    fn run(&self, name: &str, args: Args) -> u64 {
        self.calls.run(&self.ring.machine, name, 1, 32, args)
    }

    fn trigger(&self, kind: TriggerKind, [dst_offset, src_offset, size]: [u64; 3]) -> ProxyTrigger {
        let trigger = ChannelTrigger {
            kind,
            dst_id: 0xfffe,
            dst_offset,
            src_id: 0xfffd,
            src_offset,
            size,
            semaphore: 0xffff,
        };
        trigger.encode(lap_bit(self.ring.position, u64::from(SLOTS))).unwrap()
    }

    /// Takes the next trigger, once it is there, and completes its flush.
    fn take(&mut self) -> ProxyTrigger {
        let since = Instant::now();
        let trigger = loop {
            if let Some(trigger) = self.ring.poll() {
                break trigger;
            }
            if since.elapsed() > patience() {
                self.ring.machine.abort();
                panic!("no trigger came");
            }
            std::thread::yield_now();
        };
        self.ring.pop();
        word(self.handle.flushed).store(self.ring.position, Ordering::Release);
        trigger
    }

    /// Each started wait lasts until it is told to leave, and then returns that status.
    fn told(&self, name: &str, operation: Operation, peer: u32) {
        sleep(WHILE);
        assert_eq!(self.calls.result(0, 0), NOTHING, "{name} waits");
        self.ring.machine.abort();
        self.ring.machine.finish();
        assert_eq!(self.calls.result(0, 0), TOLD, "{name}");
        let record = self.ring.machine.record(0);
        assert_eq!((record.state, record.operation), (ABORT_RECORD_COMPLETE, operation.0), "{name}");
        assert_eq!(record.peer, peer, "{name}");
    }
}

/// Arguments after the channel: where a function has any, and what lies in its trigger.
fn range(args: Args, kind: TriggerKind, [dst, src, bytes]: [u64; 3]) -> (Args, [u64; 3]) {
    match kind.contains(PUT) {
        true => (args.u64(dst).u64(src).u64(bytes), [dst, src, bytes]),
        false => (args, [0; 3]),
    }
}

fn each_function_pushes_the_trigger_of_its_name(form: Form) {
    let mut end = End::new(form);
    for (name, kind) in ASK {
        let (args, fields) = range(end.args(), kind, [16, 48, 4096]);
        let expected = end.trigger(kind, fields);
        end.start(name, args);
        assert_eq!(end.take(), expected, "{name}");
        end.ring.machine.finish();
        assert_eq!(end.calls.result(0, 0), NOT, "{name}");
    }
    for kind in (1..8).map(TriggerKind) {
        let fields = if kind.contains(PUT) { [8, 24, 100] } else { [0; 3] };
        let (expected, position) = (end.trigger(kind, fields), end.ring.position);
        let [dst, src, bytes] = fields;
        // Never waits: the flush is not completed before it has ended.
        let left = end.run("port_push", end.args().u32(kind.0.into()).u64(dst).u64(src).u64(bytes));
        assert_eq!((left, end.calls.result(0, 1)), (NOT, position), "{kind:?}");
        assert_eq!(end.take(), expected, "{kind:?}");
    }
}

fn a_put_past_the_end_is_refused(form: Form) {
    let end = End::new(form);
    for (name, kind) in ASK.into_iter().filter(|(_, kind)| kind.contains(PUT)) {
        for fields in [[LEN as u64 - 7, 0, 8], [0, LEN as u64, 1]] {
            assert_eq!(end.run(name, range(end.args(), kind, fields).0), REFUSED, "{name}");
        }
    }
    assert_eq!(end.run("port_push", end.args().u32(PUT.0.into()).u64(0).u64(1).u64(LEN as u64)), REFUSED);
    assert_eq!((end.ring.head(), end.ring.poll()), (0, None));
}

fn a_closed_fifo_takes_nothing(form: Form) {
    let end = End::new(form);
    end.ring.close();
    for (name, kind) in ASK {
        assert_eq!(end.run(name, range(end.args(), kind, [0, 0, 8]).0), CLOSED, "{name}");
    }
    assert_eq!(end.run("port_push", end.args().u32(SIGNAL.0.into()).u64(0).u64(0).u64(0)), CLOSED);
    assert_eq!(end.ring.poll(), None);
}

fn flushes_and_signals_are_waited_for(form: Form) {
    let mut end = End::new(form);
    end.run("port_push", end.args().u32(FLUSH.0.into()).u64(0).u64(0).u64(0));
    let position = end.calls.result(0, 1);
    end.start("port_flushed", end.args().u64(position));
    sleep(WHILE);
    assert_eq!(end.calls.result(0, 0), NOTHING, "it has not completed");
    end.take();
    end.ring.machine.finish();
    assert_eq!(end.calls.result(0, 0), NOT);

    end.start("port_wait", end.args());
    sleep(WHILE);
    assert_eq!(end.calls.result(0, 0), NOTHING, "no signal has come");
    word(end.handle.semaphore.inbound).store(2, Ordering::Release);
    end.ring.machine.finish();
    assert_eq!(end.calls.result(0, 0), NOT);
    assert_eq!([end.run("port_poll", end.args()), end.run("port_poll", end.args())], [1, 0]);
}

/// Functions that put, only make and unpack packets, and 32-bit words of data in a packet.
const FORMATS: [([&str; 3], usize, Operation); 2] = [
    (["port_put_packets_ll8", "port_pack_packets_ll8", "port_unpack_packets_ll8"], 1, Operation::UNPACK_LL8),
    (
        ["port_put_packets_ll16", "port_pack_packets_ll16", "port_unpack_packets_ll16"],
        2,
        Operation::UNPACK_LL16,
    ),
];

fn packets_over_a_port(form: Form) {
    let mut end = End::new(form);
    let mut flag = 0;
    for ([put, pack, unpack], words, _) in FORMATS {
        for packets in [1, 65, 500] {
            flag += 1;
            let bytes = 4 * words * packets;
            let data = paint(u64::from(flag), bytes);
            let made = put_packets(&data, words, flag);
            let (dst, src, from) = (48, 32, 8);
            end.ring.machine.write(0, end.handle.data + from, &data);
            let args = end.args().u64(src).u64(from).u64(bytes as u64).u32(flag);
            end.calls.run(&end.ring.machine, pack, 2, 64, args);
            let read = || end.ring.machine.read(0, end.handle.src + src, made.len());
            assert!(read() == made, "{pack}: {packets}");
            assert_eq!(end.ring.poll(), None, "{pack} puts nothing");

            end.ring.machine.write(0, end.handle.src, &[0; LEN]);
            let expected = end.trigger(PUT, [dst, src, made.len() as u64]);
            let args = end.args().u64(dst).u64(src).u64(from).u64(bytes as u64).u32(1).u32(flag);
            assert_eq!(end.calls.run(&end.ring.machine, put, 1, 96, args), NOT, "{put}: {packets}");
            let read = || end.ring.machine.read(0, end.handle.src + src, made.len());
            assert!(read() == made, "{put}: {packets}");
            assert_eq!(end.take(), expected, "{put}: {packets}");
            assert_eq!(end.ring.poll(), None, "{put} puts once");

            end.ring.machine.write(0, end.handle.packets + dst, &made);
            end.ring.machine.write(0, end.handle.data, &[0; LEN]);
            let args = end.args().u64(dst).u64(from).u64(bytes as u64).u32(flag);
            assert_eq!(end.calls.run(&end.ring.machine, unpack, 2, 64, args), NOT, "{unpack}: {packets}");
            assert!(end.ring.machine.read(0, end.handle.data + from, bytes) == data, "{unpack}: {packets}");
        }
        let past = end.args().u64(LEN as u64 - 8).u64(0).u64(0).u64(16).u32(1).u32(flag);
        assert_eq!(end.run(put, past), REFUSED);
        assert_eq!(end.ring.poll(), None);
    }
}

fn the_last_group_learns_that_it_is(form: Form) {
    let end = End::new(form);
    let last = [(); 5].map(|()| end.run("port_last_group", end.args().u32(2)));
    assert_eq!(last, [0, 1, 0, 1, 0]);
}

fn who_waits_leaves_when_told(form: Form) {
    for (name, kind) in ASK.into_iter().filter(|(_, kind)| kind.contains(FLUSH)) {
        let end = End::new(form);
        end.start(name, range(end.args(), kind, [0, 0, 8]).0);
        end.told(name, Operation::FLUSH, PEER);
    }
    let end = End::new(form);
    end.start("port_flushed", end.args().u64(0));
    end.told("port_flushed", Operation::FLUSH, PEER);
    let end = End::new(form);
    end.start("port_wait", end.args());
    end.told("port_wait", Operation::WAIT, PEER);
    for ([_, _, unpack], _, operation) in FORMATS {
        let end = End::new(form);
        end.start(unpack, end.args().u64(0).u64(0).u64(64).u32(5));
        end.told(unpack, operation, PEER);
    }
}
