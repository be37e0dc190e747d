//! The PTX files, embedded.

macro_rules! embed {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../kernels/", $name)))),*]
    };
}

/// Every file by its path under `kernels/`; fragments are named without their directory.
const FILES: &[(&str, &str)] = embed![
    "all_reduce_hb.ptx",
    "all_reduce_ll16.ptx",
    "channel.ptx",
    "element.ptx",
    "fifo.ptx",
    "ll128.ptx",
    "packet.ptx",
    "perf.ptx",
    "perf_bandwidth.ptx",
    "perf_bare.ptx",
    "perf_fifo_bare.ptx",
    "perf_port.ptx",
    "perf_port_bare.ptx",
    "port.ptx",
    "port_packet.ptx",
    "semaphore.ptx",
    "inc/abort_record.ptxi",
    "inc/combine.ptxi",
    "inc/copy.ptxi",
    "inc/copy_aligned.ptxi",
    "inc/element_read.ptxi",
    "inc/element_write.ptxi",
    "inc/fifo_poll.ptxi",
    "inc/fifo_push.ptxi",
    "inc/fifo_sync.ptxi",
    "inc/grid_barrier.ptxi",
    "inc/grid_sync.ptxi",
    "inc/grid_thread.ptxi",
    "inc/group_sync.ptxi",
    "inc/last_block.ptxi",
    "inc/ll128_put.ptxi",
    "inc/ll128_unpack.ptxi",
    "inc/load16.ptxi",
    "inc/lockstep_signal.ptxi",
    "inc/lockstep_wait.ptxi",
    "inc/packet_input.ptxi",
    "inc/port_act.ptxi",
    "inc/port_complete.ptxi",
    "inc/port_flushed.ptxi",
    "inc/port_push.ptxi",
    "inc/port_put_packets.ptxi",
    "inc/port_status.ptxi",
    "inc/put_packets.ptxi",
    "inc/put_packets_turn.ptxi",
    "inc/reduce_done.ptxi",
    "inc/reduce_first.ptxi",
    "inc/reduce_load8.ptxi",
    "inc/reduce_next.ptxi",
    "inc/reduce_slots.ptxi",
    "inc/reduce_store8.ptxi",
    "inc/sem_poll.ptxi",
    "inc/sem_relaxed_signal.ptxi",
    "inc/sem_relaxed_wait.ptxi",
    "inc/sem_signal.ptxi",
    "inc/sem_wait.ptxi",
    "inc/slice_bytes.ptxi",
    "inc/spin.ptxi",
    "inc/store16.ptxi",
    "inc/unpack_packets.ptxi",
    "inc/unpack_packets_turn.ptxi",
];

/// Text of a kernel file (`channel.ptx`) or fragment (`copy.ptxi`).
pub(crate) fn find(name: &str) -> Option<&'static str> {
    let &(path, text) = FILES.iter().find(|(path, _)| short(path) == name)?;
    Some(current(path, text))
}

/// Name and text of every fragment, in alphabetical order.
pub(crate) fn fragments() -> impl Iterator<Item = (&'static str, &'static str)> {
    FILES.iter().filter_map(|&(path, text)| Some((path.strip_prefix("inc/")?, current(path, text))))
}

fn short(path: &str) -> &str {
    path.strip_prefix("inc/").unwrap_or(path)
}

#[cfg(not(feature = "mutants"))]
fn current(_path: &str, text: &'static str) -> &'static str {
    text
}
#[cfg(feature = "mutants")]
use crate::replaced::current;
