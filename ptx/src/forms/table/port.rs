//! Operations of a port channel.

use super::common::{BARRIER, LAST, POSITION, PUSHED, TAKEN, THREAD, THREADS, WAITED, WARPS};
use crate::abi::{DeviceStruct, PortChannelHandle};
use crate::forms::operation::{Argument, Given, Operation, Type, same, wide};

const PORT: Argument =
    Argument { name: "port", ty: Type::Handle(&PortChannelHandle::LAYOUT), doc: "the channel" };
const DST_OFFSET: Argument = wide("dst_offset", "where to, in bytes from the start of the peer's memory");
const SRC_OFFSET: Argument = wide("src_offset", "where from, in bytes from port.src");
const BYTES: Argument = wide("bytes", "how much, below 2^40");
const KIND: Argument = Argument {
    name: "kind",
    ty: Type::U32,
    doc: "TRIGGER_DATA to put, TRIGGER_FLAG to signal, TRIGGER_SYNC to flush, or several, done in this order",
};
const PACK_TO: Argument =
    wide("src_offset", "where the packets are made, in bytes from port.src; a multiple of a packet");
const PACK_FROM: Argument = wide("data_offset", "where the data is, in bytes from port.data");
const PACK_BYTES: Argument = wide(
    "bytes",
    "bytes of data, a multiple of the data of one packet (4 or 8); the packets take twice as many",
);

/// Status of what is pushed and then waited for.
const COMPLETED: Given = Given {
    param: "ABORTED",
    name: "status",
    doc: "LEFT_NOT; LEFT_TOLD if a wait was given up; LEFT_REFUSED if an argument does not fit; LEFT_CLOSED",
};

const PUT: (&str, &str) = ("KIND", "TRIGGER_DATA");
const SIGNAL: (&str, &str) = ("KIND", "TRIGGER_FLAG");
const FLUSH: (&str, &str) = ("KIND", "TRIGGER_SYNC");
const NO_DATA: [(&str, &str); 3] = [("DST_OFFSET", "0"), ("SRC_OFFSET", "0"), ("BYTES", "0")];
/// The fragment's data is port.data, its packets lie in port.src.
const PACK: [(&str, &str); 2] = [("PACKETS", "src + src_offset"), ("SRC", "data + data_offset")];

pub(super) static ALL: &[Operation] = &[
    Operation {
        name: "port_put",
        does: &[
            "Asks the proxy to copy bytes from my src to the peer's memory. They are read as this thread, and its group",
            "before the group's barrier, wrote them; they may be changed after a flush.",
        ],
        fragment: "port_push",
        takes: &[PORT, DST_OFFSET, SRC_OFFSET, BYTES],
        with: &[PUT],
        gives: &[PUSHED],
    },
    Operation {
        name: "port_signal",
        does: &["Asks the proxy to signal the peer once, behind all puts before it."],
        fragment: "port_push",
        takes: &[PORT],
        with: &[SIGNAL, NO_DATA[0], NO_DATA[1], NO_DATA[2]],
        gives: &[PUSHED],
    },
    Operation {
        name: "port_flush",
        does: &[
            "Waits until everything pushed before on this connection has completed: what was put may be changed.",
        ],
        fragment: "port_complete",
        takes: &[PORT],
        with: &[FLUSH, NO_DATA[0], NO_DATA[1], NO_DATA[2]],
        gives: &[COMPLETED],
    },
    Operation {
        name: "port_put_with_signal",
        does: &["port_put and port_signal in one trigger."],
        fragment: "port_push",
        takes: &[PORT, DST_OFFSET, SRC_OFFSET, BYTES],
        with: &[("KIND", "TRIGGER_DATA + TRIGGER_FLAG")],
        gives: &[PUSHED],
    },
    Operation {
        name: "port_put_with_signal_and_flush",
        does: &["port_put, port_signal and port_flush in one trigger."],
        fragment: "port_complete",
        takes: &[PORT, DST_OFFSET, SRC_OFFSET, BYTES],
        with: &[("KIND", "TRIGGER_DATA + TRIGGER_FLAG + TRIGGER_SYNC")],
        gives: &[COMPLETED],
    },
    Operation {
        name: "port_push",
        does: &[
            "Asks the proxy for any combination and does not wait; port_flushed waits for a flush asked for so.",
        ],
        fragment: "port_push",
        takes: &[PORT, KIND, DST_OFFSET, SRC_OFFSET, BYTES],
        with: &[],
        gives: &[PUSHED, POSITION],
    },
    Operation {
        name: "port_flushed",
        does: &["Waits until the flush that port_push pushed at this position has completed."],
        fragment: "port_flushed",
        takes: &[PORT, same("position")],
        with: &[],
        gives: &[WAITED],
    },
    Operation {
        name: "port_wait",
        does: &["Takes one signal of the peer, waiting for it; sees what the peer put before it."],
        fragment: "sem_wait",
        takes: &[PORT],
        with: &[],
        gives: &[WAITED],
    },
    Operation {
        name: "port_poll",
        does: &[
            "Takes one signal of the peer if there is one; if so, sees what the peer put before it. Never waits.",
        ],
        fragment: "sem_poll",
        takes: &[PORT],
        with: &[],
        gives: &[TAKEN],
    },
    Operation {
        name: "port_put_packets",
        does: &[
            "Makes packets of my data in my src and asks the proxy to put them into the peer's packet buffer; for a",
            "group of one block. What lay there must have left, by a flush or by what the peer answered. The status is",
            "that of thread 0; every other thread's is LEFT_NOT.",
        ],
        fragment: "port_put_packets",
        takes: &[
            PORT,
            wide(
                "dst_offset",
                "where to, in bytes from the start of the peer's packet buffer; a multiple of a packet",
            ),
            PACK_TO,
            PACK_FROM,
            PACK_BYTES,
            THREAD,
            WARPS,
            BARRIER,
            same("flag"),
        ],
        with: &[PACK[0], PACK[1]],
        gives: &[PUSHED],
    },
    Operation {
        name: "port_pack_packets",
        does: &[
            "Only makes the packets of my data in my src, for groups larger than a block: one thread puts them",
            "(port_put of 2 * bytes) behind a barrier of all.",
        ],
        fragment: "put_packets",
        takes: &[PORT, PACK_TO, PACK_FROM, PACK_BYTES, THREAD, THREADS, same("flag")],
        with: &[PACK[0], PACK[1]],
        gives: &[],
    },
    Operation {
        name: "port_unpack_packets",
        does: &[
            "Waits for the packets with this flag in my packet buffer and writes their bytes of data to my data.",
        ],
        fragment: "unpack_packets",
        takes: &[
            PORT,
            wide("packet_offset", "where they arrive, in bytes from port.packets; a multiple of a packet"),
            wide("data_offset", "where the data goes, in bytes from port.data"),
            same("bytes"),
            THREAD,
            THREADS,
            same("flag"),
        ],
        with: &[("PACKETS", "packets + packet_offset"), ("DST", "data + data_offset")],
        gives: &[WAITED],
    },
    Operation {
        name: "port_last_group",
        does: &[
            "Counts a group (a block) that has finished its part, in the channel's own counter. The last one learns that",
            "it is: it sees what all wrote and can put for all. Call it behind the group's barrier.",
        ],
        fragment: "last_block",
        takes: &[PORT, same("groups")],
        with: &[],
        gives: &[LAST],
    },
];
