//! Every handle is named from the library alone and passed to a kernel as it is.

use std::sync::Arc;

use aqueduct::ErrorKind;
use aqueduct::device::{
    AbortHandle, FifoHandle, GridBarrierHandle, MemoryChannelHandle, NO_PEER, PortChannelHandle,
    ProxyTrigger, SemaphoreHandle,
};
use aqueduct::gpu::{Context, Function, GpuBuffer, KernelParam, LaunchConfig, Module, Stream, arg};
use aqueduct_tests::ranks;

use crate::group::{Machine, context, soon};

/// A kernel that takes a structure of `bytes` bytes and writes it to memory.
fn copier(context: &Context, bytes: usize) -> Function {
    let mut text = format!(
        ".version 7.0\n.target sm_70\n.address_size 64\n\
         .visible .entry take(.param .align 8 .b8 handle[{bytes}], .param .u64 out)\n{{\n\
         .reg .u64 %out, %word;\nld.param.u64 %out, [out];\n"
    );
    for at in (0..bytes).step_by(8) {
        text += &format!("ld.param.u64 %word, [handle+{at}];\nst.weak.global.u64 [%out+{at}], %word;\n");
    }
    text += "ret;\n}\n";
    Module::load_ptx(context, &text).unwrap().function("take").unwrap()
}

struct Taker {
    context: Context,
    stream: Stream,
    out: Arc<GpuBuffer>,
}

impl Taker {
    /// Passes `handle` to a kernel and returns the words that arrive there.
    fn words<T: KernelParam>(&self, handle: &T) -> Vec<u64> {
        let take = copier(&self.context, size_of::<T>());
        let out = self.out.ptr();
        self.out.fill(0xEE, soon()).unwrap();
        let launch = |kernel: &Function| {
            // SAFETY: the parameters of a copier for this type, which has room for its bytes at `out`.
            unsafe { kernel.launch(&self.stream, &LaunchConfig::linear(1, 1), &[arg(handle), arg(&out)]) }
        };
        let other = launch(&copier(&self.context, size_of::<T>() + 8)).unwrap_err();
        assert_eq!(other.kind(), ErrorKind::InvalidUsage);
        let sizes = format!("has {} bytes, its parameter has {}", size_of::<T>(), size_of::<T>() + 8);
        assert!(other.message().contains(&sizes), "{other}");
        launch(&take).unwrap();
        self.stream.synchronize(soon()).unwrap();
        let mut words = vec![0_u64; size_of::<T>() / 8];
        self.out.download(0, &mut words, soon()).unwrap();
        words
    }
}

pub(super) fn arrive(machine: Machine, test: &str) {
    if ranks::start(1, test).is_none() {
        return;
    }
    let context = context(&machine.driver(), 0);
    let (stream, out) = (Stream::new(&context).unwrap(), Arc::new(GpuBuffer::new(&context, 1024).unwrap()));
    let taker = Taker { context, stream, out };
    let both = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;

    let abort = AbortHandle { word: 1, claim: 2, rank: 3, peer: 4 };
    let abort_words = [1, 2, both(3, 4)];
    assert_eq!(taker.words(&abort), abort_words);

    let semaphore =
        SemaphoreHandle { inbound: 5, expected_inbound: 6, outbound: 7, remote_inbound: 8, abort };
    let semaphore_words = [vec![5, 6, 7, 8], abort_words.to_vec()].concat();
    assert_eq!(taker.words(&semaphore), semaphore_words);

    let grid = GridBarrierHandle { state: 9, abort: AbortHandle { peer: NO_PEER, ..abort } };
    assert_eq!(taker.words(&grid), [9, 1, 2, both(3, NO_PEER)]);

    let fifo =
        FifoHandle { slots: 10, head: 11, tail: 12, tail_cache: 13, capacity: 16, capacity_log2: 4, abort };
    let fifo_words = [vec![10, 11, 12, 13, both(16, 4)], abort_words.to_vec()].concat();
    assert_eq!(taker.words(&fifo), fifo_words);

    let memory = MemoryChannelHandle {
        semaphore,
        dst: 20,
        dst_bytes: 21,
        src: 22,
        src_bytes: 23,
        packets: 24,
        packet_bytes: 25,
        arrived: 26,
    };
    assert_eq!(taker.words(&memory), [semaphore_words.clone(), (20..27).collect()].concat());

    let port = PortChannelHandle {
        fifo,
        semaphore,
        flushed: 30,
        dst_bytes: 31,
        src: 32,
        src_bytes: 33,
        data: 34,
        data_bytes: 35,
        packets: 36,
        packet_bytes: 37,
        arrived: 38,
        semaphore_id: 40,
        dst_id: 41,
        src_id: 42,
        reserved: 0,
    };
    let rest = [(30..39).collect(), vec![both(40, 41), 42]].concat();
    assert_eq!(taker.words(&port), [fifo_words, semaphore_words, rest].concat());

    let trigger = ProxyTrigger::from_payload([50, 51, 52, 53], true).unwrap();
    assert_eq!(taker.words(&trigger), [50, 51, 52, 53].map(|word: u64| word | 1 << 63));
}

#[test]
fn a_user_names_them_without_the_package_of_the_kernels() {
    let package = ["aqueduct", "ptx"].join("_");
    for source in [
        include_str!("handles.rs"),
        include_str!("grid.rs"),
        include_str!("ring.rs"),
        include_str!("semaphore.rs"),
        include_str!("trigger.rs"),
    ] {
        assert!(!source.contains(&package));
    }
}
