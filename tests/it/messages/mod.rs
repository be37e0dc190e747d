//! The promises of messengers, the same over every backend: each backend is a row of the table below.
//!
//! Most cases run messengers of one process against each other, over real links. Those in `processes` kill, stop and restart
//! processes. A case ends when something has happened; the only limit of time is one that no correct run reaches.

mod callbacks;
mod device;
mod flow;
mod long;
mod order;
mod peers;
mod processes;
mod reads;
mod refusals;
mod registrations;
mod rig;
mod shared;
mod sizes;
mod sleeping;
mod soak;

/// A module of tests for each backend, with a test for each case.
macro_rules! backends {
    ($($backend:ident: $how:expr $(, processes: $ignored:literal)?;)*) => {
        $(mod $backend {
            use super::rig::{Backend, Rig};

            cases! {
                Rig::new($how, module_path!());
                order: one_sender, many_threads, many_dispatchers, both_connect_at_once, many_peers;
                sizes: around_every_threshold, zero_bytes, the_smaller_limit_holds, the_longest_limit;
                flow: thousands_outstanding, a_slow_receiver_holds_up_its_senders, a_full_peer_holds_up_nobody_else,
                    a_slow_callback_holds_up_its_own_peer, polling_a_queue_makes_room, waiting_for_room_ends_at_the_deadline,
                    floods_both_ways;
                callbacks: that_send, that_panic, that_poll, that_connect, of_every_kind, as_many_as_asked_for,
                    once_per_message;
                refusals: unknown_kinds, a_flood_of_unknown_kinds, over_the_limit, registered_twice, registered_again, lost_with_their_queue, other_secrets,
                    strangers, wrong_addresses;
                peers: leaving_after_what_was_sent, leaving_one_after_the_other, leaving_with_full_buffers,
                    both_leaving_with_full_buffers,
                    leaving_one_that_takes_nothing, connected_is_told_once, dropped_in_the_middle, callbacks_of_a_peer_that_leaves,
                    another_generation, two_of_one_rank, nothing_follows_the_end, events_in_order, joined_by_rank, connecting_from_many_threads;
                reads: any_part_in_order, what_may_not_be_read, stale_tokens, each_ends_once, those_given_up_bring_nothing,
                    both_ways_from_many_threads;
                shared: both_kinds_in_order, written_before_a_message, revoked_while_threads_read, the_owner_and_the_reader_fork;
                device: all_kinds_in_order;
                long: both_ways_at_once, while_other_threads_sleep, refused, a_read_that_fails_delivers_nothing, only_so_many, the_receiver_leaves;
                sleeping: a_message_wakes, an_outer_loop, room_wakes, room_that_another_thread_finds_wakes,
                    room_that_no_frame_tells_of_wakes, room_that_was_found_before_is_told,
                    an_end_that_was_found_before_is_told;
            }

            processes! { processes, killed_with_operations_under_way, $how $(, $ignored)? }
            processes! { processes, killed_and_started_again, $how $(, $ignored)? }
            processes! { processes, stopped_and_continued, $how $(, $ignored)? }
            processes! { shared, the_owner_is_stopped_and_killed, $how $(, $ignored)? }
            processes! { device, the_owner_of_device_memory_is_killed, $how $(, $ignored)? }

            #[test]
            fn other_threads_wake() {
                super::sleeping::other_threads_wake(&Rig::new($how, module_path!()).of("other_threads_wake"));
            }

            // Linux counts a receiver without room towards TCP_USER_TIMEOUT, even if it answers.
            #[test]
            fn a_slow_receiver_is_not_lost() {
                super::flow::a_slow_receiver_is_not_lost(&Rig::new($how, module_path!()).of("a_slow_receiver_is_not_lost"));
            }
        })*
    };
}

/// The tests of one backend.
macro_rules! cases {
    ($rig:expr; $($file:ident: $($case:ident),*;)*) => {
        $($(#[test]
        fn $case() {
            super::$file::$case(&$rig.of(stringify!($case)));
        })*)*
    };
}

/// A test with processes, which is ignored if there is a reason.
macro_rules! processes {
    ($file:ident, $case:ident, $how:expr $(, $ignored:literal)?) => {
        #[test]
        $(#[ignore = $ignored])?
        fn $case() {
            super::$file::$case(&Rig::new($how, module_path!()).of(stringify!($case)));
        }
    };
}

backends! {
    tcp: Backend::Tcp;
    shared_memory: Backend::SharedMemory;
    // The stand-in joins messengers of one process only.
    verbs: Backend::Verbs, processes: "needs an RDMA NIC: ci/rdma-vm runs it on soft-RoCE";
}

/// Device memory of GPUs.
mod hardware {
    use super::device::{all_kinds_in_order_on, the_owner_of_device_memory_is_killed_on};
    use super::rig::{Backend, Rig};
    use crate::group::Machine;

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn all_kinds_in_order() {
        for backend in [Backend::Tcp, Backend::SharedMemory, Backend::Verbs] {
            all_kinds_in_order_on(
                &Rig::new(backend, module_path!()).of("all_kinds_in_order"),
                Machine::Hardware,
            );
        }
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn the_owner_over_tcp_is_killed() {
        let rig = Rig::new(Backend::Tcp, module_path!()).of("the_owner_over_tcp_is_killed");
        the_owner_of_device_memory_is_killed_on(&rig, Machine::Hardware);
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn the_owner_over_shared_memory_is_killed() {
        let rig =
            Rig::new(Backend::SharedMemory, module_path!()).of("the_owner_over_shared_memory_is_killed");
        the_owner_of_device_memory_is_killed_on(&rig, Machine::Hardware);
    }
}

/// Connects over the wire that the tests above believe to test.
#[test]
fn verbs_are_used() {
    let rig = rig::Rig::new(rig::Backend::Verbs, module_path!()).of("verbs_are_used");
    let [a, b] = rig.pair();
    let peer = rig::connect(&a, &b);
    assert_eq!(peer.transport(), "verbs");
}

/// Once it has the key, a reader needs the owner for nothing: the owner makes no progress, and has no thread for that.
#[test]
fn verbs_read_without_the_owner() {
    let rig = rig::Rig::new(rig::Backend::Verbs, module_path!()).of("verbs_read_without_the_owner");
    let [a, b] = rig.pair();
    reads::without_the_owner(&a, &b);
}

/// Messages and reads of changing lengths register memory a few times in all.
#[test]
fn verbs_registrations_of_changing_lengths() {
    let rig =
        rig::Rig::new(rig::Backend::Verbs, module_path!()).of("verbs_registrations_of_changing_lengths");
    let [a, b] = rig.pair();
    registrations::of_changing_lengths(&a, &b);
}

/// No registration brings bytes of memory that was freed.
#[test]
fn verbs_registrations_at_the_same_address() {
    let rig =
        rig::Rig::new(rig::Backend::Verbs, module_path!()).of("verbs_registrations_at_the_same_address");
    let [a, b] = rig.pair();
    registrations::at_the_same_address(&a, &b);
}
