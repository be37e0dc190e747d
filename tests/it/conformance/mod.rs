//! Conformance tests for a driver table: the promises of the CUDA driver API that aqueduct relies on.
//!
//! Each case is one function over a [`Dut`]. The software instance always runs; the hardware instance is the same
//! function on libcuda.

mod captures;
mod copies;
mod coverage;
mod devices;
mod dmabuf;
mod dut;
mod execution;
mod failures;
mod graphs;
mod instructions;
mod memory;
mod modules;
mod multicast;
mod processes;
mod streams;
mod virtual_memory;

use dut::Dut;

macro_rules! cases {
    ($($group:ident: $($case:ident),+;)+) => {
        mod soft {
            $(mod $group { $(
                #[test]
                fn $case() {
                    super::super::$group::$case(&super::super::Dut::soft(concat!("conformance::soft::", stringify!($group), "::", stringify!($case))));
                }
            )+ })+
        }
        mod hardware {
            $(mod $group { $(
                #[test]
                #[ignore = "needs an NVIDIA GPU and its driver"]
                fn $case() {
                    super::super::$group::$case(&super::super::Dut::hardware(concat!("conformance::hardware::", stringify!($group), "::", stringify!($case))));
                }
            )+ })+
        }
    };
}

cases! {
    devices: uuids_are_stable_and_distinct, links_between_devices, the_primary_context;
    memory: allocation_and_address_range, free_of_a_foreign_address_is_refused, pinned_memory_is_mapped,
        registered_memory_is_mapped, pointer_attributes, many_attributes_at_once, contexts_nest_per_thread, device_attributes, error_names;
    copies: every_direction, sync_and_async_agree, fills_of_every_width, peers;
    virtual_memory: map_and_alias, rounding_is_required, export_needs_the_handle_type, rights_per_device,
        memory_outlives_its_handle;
    multicast: mapping_waits_for_all_devices, stores_and_sums_reach_both_devices, every_type_is_reduced,
        two_processes_are_a_team, the_rules_of_teams;
    dmabuf: memory_is_exported_to_other_drivers;
    streams: work_runs_in_order, events_order_streams, write_value_and_wait_value, query_while_busy, host_functions,
        elapsed_time, flags_and_priorities, callbacks, batches_of_memory_operations;
    modules: log_of_bad_text, globals_and_functions, linked_pieces, attributes_and_occupancy, shared_memory_on_request, sizes_of_parameters,
        images_are_told_apart;
    execution: threads_see_their_indices, shared_memory_and_barriers, atomics_count_exactly, extra_parameters,
        limits_are_checked, cooperative_limit, host_releases_a_spinning_kernel, message_passing_between_kernels;
    graphs: replay_of_everything, illegal_calls_invalidate_capture, fork_and_join;
    captures: a_capture_has_an_id_and_a_graph, a_thread_may_allocate_while_it_captures_if_it_says_so,
        a_graph_holds_user_objects_until_nothing_is_left_of_it;
    instructions: carry_flag, sums_and_quotients, products, bits_and_bytes, singles, doubles, quotients_and_roots,
        sixteen_bit_floats, comparisons, conversions, logic, properties_of_floats, selections, video,
        eight_bit_floats, approximations, approximate_halves, gross_approximations;
    failures: wild_store_is_sticky, misaligned_access_is_sticky, trap_is_sticky;
    processes: posix_fd, legacy_handle, handle_of_a_dead_process;
}
