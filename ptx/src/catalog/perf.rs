//! Loops that measure on the device.

use super::{Arg, Entry, Kernel, Launch, Param, arg};

const CHANNEL: Arg = arg("channel", "MemoryChannelHandle");

pub(super) const ROWS: &[Kernel] = &[
    Kernel {
        name: "perf",
        file: "perf.ptx",
        doc: "latency of one message that bounces between two ranks",
        min_sm: 70,
        min_ptx: 60,
        params: &[Param { name: "MODE", values: &["ll16", "ll8", "ll128", "signal", "put_signal"] }],
        entries: &[Entry {
            symbol: "aqueduct_perf_hop_${MODE}",
            args: &[
                CHANNEL,
                arg("bytes", "u64"),
                arg("iterations", "u32"),
                arg("first_flag", "u32"),
                arg("begins", "u32"),
                arg("elapsed", "u64"),
            ],
            launch: Launch::OneBlock,
            doc: "nanoseconds of `iterations` round trips to the u64 at elapsed",
        }],
    },
    Kernel {
        name: "perf_bare",
        file: "perf_bare.ptx",
        doc: "the LL16 latency loop with no library around it, to compare with",
        min_sm: 70,
        min_ptx: 60,
        params: &[],
        entries: &[Entry {
            symbol: "aqueduct_perf_bare_ll16",
            args: &[
                arg("remote", "u64"),
                arg("local", "u64"),
                arg("src", "u64"),
                arg("dst", "u64"),
                arg("bytes", "u64"),
                arg("iterations", "u32"),
                arg("first_flag", "u32"),
                arg("begins", "u32"),
                arg("elapsed", "u64"),
            ],
            launch: Launch::OneBlock,
            doc: "nanoseconds of `iterations` round trips to the u64 at elapsed",
        }],
    },
    Kernel {
        name: "perf_bandwidth",
        file: "perf_bandwidth.ptx",
        doc: "HB put and get repeated inside one kernel",
        min_sm: 70,
        min_ptx: 60,
        params: &[Param { name: "UNROLL", values: &["4", "8"] }],
        entries: &[
            Entry {
                symbol: "aqueduct_perf_put",
                args: &[CHANNEL, arg("bytes", "u64"), arg("iterations", "u32")],
                launch: Launch::AnyGrid,
                doc: "copy src to dst, `iterations` times",
            },
            Entry {
                symbol: "aqueduct_perf_get",
                args: &[CHANNEL, arg("bytes", "u64"), arg("iterations", "u32")],
                launch: Launch::AnyGrid,
                doc: "copy dst to src, `iterations` times",
            },
        ],
    },
];
