//! Operations of a memory channel.

use super::common::{LAST, TAKEN, THREAD, THREADS, WAITED, WARPS};
use crate::abi::{DeviceStruct, MemoryChannelHandle};
use crate::forms::operation::{Argument, Given, Operation, Type, same, wide};

const CHANNEL: Argument =
    Argument { name: "channel", ty: Type::Handle(&MemoryChannelHandle::LAYOUT), doc: "the channel" };
const DST_OFFSET: Argument = wide("dst_offset", "where to, in bytes from channel.dst");
const SRC_OFFSET: Argument = wide("src_offset", "where from, in bytes from channel.src");
const PACKETS_TO: Argument = wide(
    "dst_offset",
    "where to, in bytes from channel.dst; a multiple of 8 (LL8), 16 (LL16) or 128 (LL128)",
);
const PACKETS_AT: Argument = wide(
    "packet_offset",
    "where they arrive, in bytes from channel.packets; a multiple of 8 (LL8), 16 (LL16) or 128 (LL128)",
);
const UNPACK_TO: Argument = wide("dst_offset", "where the data goes, in bytes from channel.src");
const INDEX: Argument = wide("index", "index of the element from channel.dst");
const VALUE: Given = Given { param: "VALUE", name: "value", doc: "the element" };

const REMOTE_OFFSET: Argument = wide("remote_offset", "where from, in bytes from channel.dst");
const LOCAL_OFFSET: Argument = wide("local_offset", "where to, in bytes from channel.src");

const GET: &[(&str, &str)] = &[("DST", "src + local_offset"), ("SRC", "dst + remote_offset")];
const PUT: &[(&str, &str)] = &[("DST", "dst + dst_offset"), ("SRC", "src + src_offset")];
const PUT_PACKETS: &[(&str, &str)] = &[("PACKETS", "dst + dst_offset"), ("SRC", "src + src_offset")];
const UNPACK_PACKETS: &[(&str, &str)] =
    &[("PACKETS", "packets + packet_offset"), ("DST", "src + dst_offset")];

pub(super) static ALL: &[Operation] = &[
    Operation {
        name: "memory_channel_put",
        does: &[
            "Copies bytes from my src to the peer's dst; any alignment. To publish them: the group's barrier, then one",
            "thread's memory_channel_signal.",
        ],
        fragment: "copy",
        takes: &[CHANNEL, DST_OFFSET, SRC_OFFSET, same("bytes"), THREAD, THREADS],
        with: PUT,
        gives: &[],
    },
    Operation {
        name: "memory_channel_get",
        does: &[
            "Copies bytes from the peer's dst to my src; any alignment. What the peer published before a signal that",
            "was waited for is seen.",
        ],
        fragment: "copy",
        takes: &[CHANNEL, REMOTE_OFFSET, LOCAL_OFFSET, same("bytes"), THREAD, THREADS],
        with: GET,
        gives: &[],
    },
    Operation {
        name: "memory_channel_put_aligned",
        does: &[
            "Copies bytes from my src to the peer's dst, as memory_channel_put does, where channel.dst, channel.src, both",
            "offsets and bytes are multiples of 16. Nothing checks this.",
        ],
        fragment: "copy_aligned",
        takes: &[CHANNEL, DST_OFFSET, SRC_OFFSET, same("bytes"), THREAD, THREADS],
        with: PUT,
        gives: &[],
    },
    Operation {
        name: "memory_channel_get_aligned",
        does: &[
            "Copies bytes from the peer's dst to my src, as memory_channel_get does, where channel.dst, channel.src, both",
            "offsets and bytes are multiples of 16. Nothing checks this.",
        ],
        fragment: "copy_aligned",
        takes: &[CHANNEL, REMOTE_OFFSET, LOCAL_OFFSET, same("bytes"), THREAD, THREADS],
        with: GET,
        gives: &[],
    },
    Operation {
        name: "memory_channel_put_packets",
        does: &[
            "Sends bytes from my src as packets to the peer's dst, which is its packet buffer. Each packet carries its",
            "own flag: no signal is needed.",
        ],
        fragment: "put_packets",
        takes: &[CHANNEL, PACKETS_TO, SRC_OFFSET, same("bytes"), THREAD, THREADS, same("flag")],
        with: PUT_PACKETS,
        gives: &[],
    },
    Operation {
        name: "memory_channel_put_packets_ll128",
        does: &[
            "Sends bytes from my src as LL128 lines to the peer's dst, which is its packet buffer; bytes of data take",
            "1024 * ceil(bytes / 960) bytes there. Only where a line of 128 bytes stays whole, over NVLink or within one",
            "GPU: check MemoryChannel::carries on the host. Over PCIe stale data can pass for new.",
        ],
        fragment: "ll128_put",
        takes: &[CHANNEL, PACKETS_TO, SRC_OFFSET, same("bytes"), THREAD, WARPS, same("flag")],
        with: PUT_PACKETS,
        gives: &[],
    },
    Operation {
        name: "memory_channel_unpack_packets",
        does: &[
            "Waits for the packets with this flag in my packet buffer and writes their bytes of data to my src.",
        ],
        fragment: "unpack_packets",
        takes: &[CHANNEL, PACKETS_AT, UNPACK_TO, same("bytes"), THREAD, THREADS, same("flag")],
        with: UNPACK_PACKETS,
        gives: &[WAITED],
    },
    Operation {
        name: "memory_channel_unpack_packets_ll128",
        does: &[
            "Waits for the LL128 lines with this flag in my packet buffer and writes their bytes of data to my src.",
        ],
        fragment: "ll128_unpack",
        takes: &[CHANNEL, PACKETS_AT, UNPACK_TO, same("bytes"), THREAD, WARPS, same("flag")],
        with: UNPACK_PACKETS,
        gives: &[WAITED],
    },
    Operation {
        name: "memory_channel_read",
        does: &["One element of the peer's dst."],
        fragment: "element_read",
        takes: &[CHANNEL, INDEX],
        with: &[("BASE", "dst")],
        gives: &[VALUE],
    },
    Operation {
        name: "memory_channel_write",
        does: &["Writes one element of the peer's dst; a later signal publishes it."],
        fragment: "element_write",
        takes: &[CHANNEL, INDEX, same("value")],
        with: &[("BASE", "dst")],
        gives: &[],
    },
    Operation {
        name: "memory_channel_signal",
        does: &[
            "Publishes what this thread wrote, and what its group wrote before the group's barrier, then signals the",
            "peer once.",
        ],
        fragment: "sem_signal",
        takes: &[CHANNEL],
        with: &[],
        gives: &[],
    },
    Operation {
        name: "memory_channel_relaxed_signal",
        does: &["Signals the peer once and publishes nothing else: orders execution, not data."],
        fragment: "sem_relaxed_signal",
        takes: &[CHANNEL],
        with: &[],
        gives: &[],
    },
    Operation {
        name: "memory_channel_wait",
        does: &["Takes one signal of the peer, waiting for it; sees what was published before it."],
        fragment: "sem_wait",
        takes: &[CHANNEL],
        with: &[],
        gives: &[WAITED],
    },
    Operation {
        name: "memory_channel_relaxed_wait",
        does: &["Takes one signal of the peer, waiting for it: orders execution, not data."],
        fragment: "sem_relaxed_wait",
        takes: &[CHANNEL],
        with: &[],
        gives: &[WAITED],
    },
    Operation {
        name: "memory_channel_poll",
        does: &[
            "Takes one signal of the peer if there is one; if so, sees what was published before it. Never waits.",
        ],
        fragment: "sem_poll",
        takes: &[CHANNEL],
        with: &[],
        gives: &[TAKEN],
    },
    Operation {
        name: "memory_channel_last_group",
        does: &[
            "Counts a group (a block) that has finished its part of a put, in the channel's own counter. The last one",
            "learns that it is: it sees what all wrote and can signal for all. Call it behind the group's barrier.",
        ],
        fragment: "last_block",
        takes: &[CHANNEL, same("groups")],
        with: &[],
        gives: &[LAST],
    },
];
