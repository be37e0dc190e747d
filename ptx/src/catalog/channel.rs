//! The operations of a memory channel.

use super::row::{Arg, Entry, Kernel, Launch, Param, arg};

const CHANNEL: Arg = arg("channel", "MemoryChannelHandle");

pub(super) const ROWS: &[Kernel] = &[
    Kernel {
        name: "channel",
        file: "channel.ptx",
        doc: "HB put and get of a memory channel: of any bytes, or of 16-byte words where everything is a multiple of 16",
        min_sm: 70,
        min_ptx: 60,
        params: &[
            Param { name: "UNROLL", values: &["4", "8"] },
            Param { name: "COPY", values: &["bytes", "words"] },
        ],
        entries: &[
            Entry {
                symbol: "aqueduct_channel_put",
                args: &[
                    CHANNEL,
                    arg("dst_offset", "u64"),
                    arg("src_offset", "u64"),
                    arg("bytes", "u64"),
                    arg("signal", "u32"),
                ],
                launch: Launch::AnyGrid,
                doc: "copy src + src_offset to dst + dst_offset; if signal != 0, signal once after all blocks",
            },
            Entry {
                symbol: "aqueduct_channel_get",
                args: &[
                    CHANNEL,
                    arg("remote_offset", "u64"),
                    arg("local_offset", "u64"),
                    arg("bytes", "u64"),
                ],
                launch: Launch::AnyGrid,
                doc: "copy dst + remote_offset to src + local_offset",
            },
        ],
    },
    Kernel {
        name: "semaphore",
        file: "semaphore.ptx",
        doc: "signal, wait and poll of a memory channel's semaphore",
        min_sm: 70,
        min_ptx: 60,
        params: &[],
        entries: &[
            Entry {
                symbol: "aqueduct_channel_signal",
                args: &[CHANNEL],
                launch: Launch::OneBlock,
                doc: "publish everything before in the stream, then signal the peer once",
            },
            Entry {
                symbol: "aqueduct_channel_relaxed_signal",
                args: &[CHANNEL],
                launch: Launch::OneBlock,
                doc: "signal the peer once without publishing anything else",
            },
            Entry {
                symbol: "aqueduct_channel_wait",
                args: &[CHANNEL],
                launch: Launch::OneBlock,
                doc: "take one signal, waiting for it; leaves with a record when the abort word is set",
            },
            Entry {
                symbol: "aqueduct_channel_relaxed_wait",
                args: &[CHANNEL],
                launch: Launch::OneBlock,
                doc: "as wait, without seeing what was published before the signal",
            },
            Entry {
                symbol: "aqueduct_channel_poll",
                args: &[CHANNEL, arg("taken", "u64")],
                launch: Launch::OneBlock,
                doc: "take one signal if there is one; store 1 or 0 (u32) at the global address taken",
            },
        ],
    },
    Kernel {
        name: "packet",
        file: "packet.ptx",
        doc: "put and unpack of LL packets of a memory channel",
        min_sm: 70,
        min_ptx: 60,
        params: &[Param { name: "FORMAT", values: &["ll16", "ll8"] }],
        entries: &[
            Entry {
                symbol: "aqueduct_channel_put_packets_${FORMAT}",
                args: &[
                    CHANNEL,
                    arg("dst_offset", "u64"),
                    arg("src_offset", "u64"),
                    arg("bytes", "u64"),
                    arg("flag", "u32"),
                ],
                launch: Launch::AnyGrid,
                doc: "packets of bytes at src + src_offset go to dst + dst_offset (2 * bytes there); dst_offset is \
                      a multiple of 16 (LL8: 8), src_offset and bytes multiples of 8 (LL8: 4)",
            },
            Entry {
                symbol: "aqueduct_channel_unpack_packets_${FORMAT}",
                args: &[
                    CHANNEL,
                    arg("packet_offset", "u64"),
                    arg("dst_offset", "u64"),
                    arg("bytes", "u64"),
                    arg("flag", "u32"),
                ],
                launch: Launch::AnyGrid,
                doc: "wait for the packets at packets + packet_offset and store their data at src + dst_offset; \
                      multiples as for put; leaves with a record when the abort word is set",
            },
        ],
    },
    Kernel {
        name: "element",
        file: "element.ptx",
        doc: "read and write single elements of the peer's buffer",
        min_sm: 70,
        min_ptx: 60,
        params: &[Param { name: "TYPE", values: &["u64", "u32"] }],
        entries: &[
            Entry {
                symbol: "aqueduct_channel_read_${TYPE}",
                args: &[CHANNEL, arg("index", "u64"), arg("value", "u64")],
                launch: Launch::OneBlock,
                doc: "store element index of dst at the global address value",
            },
            Entry {
                symbol: "aqueduct_channel_write_${TYPE}",
                args: &[CHANNEL, arg("index", "u64"), arg("value", "${TYPE}")],
                launch: Launch::OneBlock,
                doc: "store value (of type TYPE) into element index of dst",
            },
        ],
    },
];
