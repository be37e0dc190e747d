//! Port channels.

use super::row::{Arg, Entry, Kernel, Launch, Param, arg};

const PORT: Arg = arg("port", "PortChannelHandle");
const STATUS: Arg = arg("status", "u64");

pub(super) const ROWS: &[Kernel] = &[
    Kernel {
        name: "port",
        file: "port.ptx",
        doc: "put, signal, flush, wait and poll of a port channel",
        min_sm: 70,
        min_ptx: 60,
        params: &[],
        entries: &[
            Entry {
                symbol: "aqueduct_port_act",
                args: &[
                    PORT,
                    arg("kind", "u32"),
                    arg("dst_offset", "u64"),
                    arg("src_offset", "u64"),
                    arg("bytes", "u64"),
                    STATUS,
                ],
                launch: Launch::OneBlock,
                doc: "ask the proxy for what the bits of kind say, and wait for it if it is a flush; offsets and bytes are \
                      zero without a put",
            },
            Entry {
                symbol: "aqueduct_port_wait",
                args: &[PORT, STATUS],
                launch: Launch::OneBlock,
                doc: "take one signal of the peer",
            },
            Entry {
                symbol: "aqueduct_port_poll",
                args: &[PORT, arg("taken", "u64")],
                launch: Launch::OneBlock,
                doc: "take a signal if there is one; 1 or 0 (u32) to the global address taken",
            },
        ],
    },
    Kernel {
        name: "port_packet",
        file: "port_packet.ptx",
        doc: "the packet form of a port channel",
        min_sm: 70,
        min_ptx: 60,
        params: &[Param { name: "FORMAT", values: &["ll16", "ll8"] }],
        entries: &[
            Entry {
                symbol: "aqueduct_port_put_packets_${FORMAT}",
                args: &[
                    PORT,
                    arg("dst_offset", "u64"),
                    arg("src_offset", "u64"),
                    arg("data_offset", "u64"),
                    arg("bytes", "u64"),
                    arg("flag", "u32"),
                    STATUS,
                ],
                launch: Launch::AnyGrid,
                doc: "packets made of bytes at data + data_offset, at src + src_offset (2 * bytes), are put to dst_offset",
            },
            Entry {
                symbol: "aqueduct_port_unpack_packets_${FORMAT}",
                args: &[
                    PORT,
                    arg("packet_offset", "u64"),
                    arg("data_offset", "u64"),
                    arg("bytes", "u64"),
                    arg("flag", "u32"),
                    STATUS,
                ],
                launch: Launch::AnyGrid,
                doc: "wait for the packets at packets + packet_offset and store their data at data + data_offset",
            },
        ],
    },
];
