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
    "inc/plan_acquire.ptxi",
    "inc/plan_address.ptxi",
    "inc/plan_advance.ptxi",
    "inc/plan_arrived.ptxi",
    "inc/plan_at.ptxi",
    "inc/plan_barrier.ptxi",
    "inc/plan_begin.ptxi",
    "inc/plan_chunks.ptxi",
    "inc/plan_chunks_end.ptxi",
    "inc/plan_combine.ptxi",
    "inc/plan_combine_one.ptxi",
    "inc/plan_control.ptxi",
    "inc/plan_dispatch.ptxi",
    "inc/plan_divide.ptxi",
    "inc/plan_end.ptxi",
    "inc/plan_examine.ptxi",
    "inc/plan_exists.ptxi",
    "inc/plan_give_up.ptxi",
    "inc/plan_go.ptxi",
    "inc/plan_label.ptxi",
    "inc/plan_lane.ptxi",
    "inc/plan_lane_choose.ptxi",
    "inc/plan_lane_number.ptxi",
    "inc/plan_lane_row.ptxi",
    "inc/plan_limit.ptxi",
    "inc/plan_load.ptxi",
    "inc/plan_load_elements.ptxi",
    "inc/plan_loop.ptxi",
    "inc/plan_loop_end.ptxi",
    "inc/plan_loop_total.ptxi",
    "inc/plan_many.ptxi",
    "inc/plan_many_at.ptxi",
    "inc/plan_many_next.ptxi",
    "inc/plan_many_rest.ptxi",
    "inc/plan_many_skip.ptxi",
    "inc/plan_many_turn.ptxi",
    "inc/plan_many_user.ptxi",
    "inc/plan_missing.ptxi",
    "inc/plan_move.ptxi",
    "inc/plan_narrow.ptxi",
    "inc/plan_narrow_f8.ptxi",
    "inc/plan_number.ptxi",
    "inc/plan_numbers.ptxi",
    "inc/plan_one.ptxi",
    "inc/plan_one_left.ptxi",
    "inc/plan_one_mine.ptxi",
    "inc/plan_one_next.ptxi",
    "inc/plan_one_offset.ptxi",
    "inc/plan_one_rest.ptxi",
    "inc/plan_one_turn.ptxi",
    "inc/plan_one_user.ptxi",
    "inc/plan_operand.ptxi",
    "inc/plan_poll.ptxi",
    "inc/plan_range.ptxi",
    "inc/plan_reduce.ptxi",
    "inc/plan_release.ptxi",
    "inc/plan_rewind.ptxi",
    "inc/plan_row.ptxi",
    "inc/plan_semaphore.ptxi",
    "inc/plan_send.ptxi",
    "inc/plan_set.ptxi",
    "inc/plan_signal.ptxi",
    "inc/plan_store.ptxi",
    "inc/plan_store_elements.ptxi",
    "inc/plan_sync.ptxi",
    "inc/plan_together.ptxi",
    "inc/plan_unless_left.ptxi",
    "inc/plan_wait.ptxi",
    "inc/plan_widen.ptxi",
    "inc/plan_widen_f8.ptxi",
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
