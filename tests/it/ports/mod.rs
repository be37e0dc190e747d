//! Port channels over every transport: kernels push, and proxies put, signal and flush.

/// Makes a test of each case for each machine, which calls `run` with the machine, the test's full name and the case.
macro_rules! on_machines {
    ($module:literal, $run:path: $($name:ident;)*) => {
        mod software {
            $(#[test]
            fn $name() {
                let test = concat!($module, "::software::", stringify!($name));
                $run(crate::group::Machine::Software, test, super::$name);
            })*
        }
        mod hardware {
            $(#[test]
            #[ignore = "needs an NVIDIA GPU"]
            fn $name() {
                let test = concat!($module, "::hardware::", stringify!($name));
                $run(crate::group::Machine::Hardware, test, super::$name);
            })*
        }
    };
}

mod cases;
mod changes;
mod end;
mod failures;
mod kernels;
mod load;
mod many;
mod order;
mod peer_channel;
mod proxy;
mod refusals;

use aqueduct::comm::{EndpointConfig, Transport};
use aqueduct::gpu::Context;
use aqueduct::internals::rdma::Verbs;
use aqueduct_tests::ranks;

use crate::group::{Machine, Rank, config, processes, threads_with};
use crate::standin;
use end::End;

type Case = fn(&End<'_>);

/// Promises of a port channel over any transport. The same two ranks run all cases, one after the other.
const CASES: &[(&str, Case)] = &[
    ("puts of every size and offset", cases::puts),
    ("one wait consumes one signal", cases::signals),
    ("a source is free after a flush", cases::flush),
    ("puts arrive in order", cases::order),
    ("packets in both formats", cases::packets),
    ("polling consumes the signals that have arrived", cases::polls),
    ("in a replayed graph", cases::graph),
];

type Load = fn(&Rank, &EndpointConfig);

/// More cases, each with its own channels.
const LOADS: &[(&str, Load)] = &[
    ("a flush waits for outstanding puts", order::a_flush_waits_for_outstanding_puts),
    ("signals follow data", order::signals_follow_data),
    ("several streams share a channel", load::several_streams),
    ("a flush while others keep posting", load::flush_while_others_post),
    ("stopping loses nothing", load::stopping_loses_nothing),
    ("offsets beyond 8 GiB", load::far_offsets),
];

/// Runs a case in a process of its own, with the first device.
fn alone(machine: Machine, test: &str, case: fn(&Context)) {
    if ranks::start(1, test).is_some() {
        case(&crate::group::context(&machine.driver(), 0));
    }
}

/// Runs a case in two processes.
fn pair(machine: Machine, test: &str, case: fn(&Rank)) {
    processes(machine, 2, test, |rank| case(&rank));
}

/// Runs ranks as threads whose NIC is the stand-in.
fn over_stand_in(size: u32, test: &str, run: impl Fn(Rank) + Sync) {
    let config = config().with_verbs(Verbs::from_table(standin::table(), "stand-in"));
    threads_with(Machine::Software, size, test, &config, &[("AQUEDUCT_IB_DEVICES", "null0")], run);
    assert_eq!(standin::violations(), 0, "an object was destroyed while it was in use");
}

fn suite(machine: Machine, endpoint: impl Into<EndpointConfig>, test: &str) {
    let endpoint = endpoint.into();
    processes(machine, 2, test, |rank| all_cases(&rank, &endpoint));
}

fn all_cases(rank: &Rank, endpoint: &EndpointConfig) {
    let end = End::new(rank, endpoint);
    for (name, case) in CASES {
        let start = std::time::Instant::now();
        case(&end);
        rank.barrier();
        println!("{name}: {:.2} s", start.elapsed().as_secs_f64());
    }
    end.service.stop(crate::group::soon()).unwrap();
    for (name, load) in LOADS {
        let start = std::time::Instant::now();
        load(rank, endpoint);
        println!("{name}: {:.2} s", start.elapsed().as_secs_f64());
    }
}

macro_rules! instances {
    ($($name:ident: $transport:expr;)*) => {
        mod software {
            use super::{Machine, Transport, suite};
            $(#[test]
            fn $name() {
                suite(Machine::Software, $transport, concat!("ports::software::", stringify!($name)));
            })*
        }
        mod hardware {
            use super::{Machine, Transport, suite};
            $(#[test]
            #[ignore = "needs an NVIDIA GPU"]
            fn $name() {
                suite(Machine::Hardware, $transport, concat!("ports::hardware::", stringify!($name)));
            })*
        }
    };
}

instances! {
    cuda_ipc: Transport::CudaIpc;
    ethernet: Transport::Ethernet;
}

/// Over a NIC of this machine, real or soft-RoCE, in loopback; `ci/rdma-vm` has one.
mod nic {
    use aqueduct::comm::EndpointConfig;

    use super::{Machine, Transport, suite};

    #[test]
    #[ignore = "needs an RDMA NIC: ci/rdma-vm runs it on soft-RoCE"]
    fn verbs() {
        // Few slots, so that a flush does not take seconds on an emulated NIC.
        let endpoint = EndpointConfig::new(Transport::Ib(0)).with_max_outstanding(64);
        suite(Machine::Software, endpoint, "ports::nic::verbs");
    }
}

/// Over the stand-in provider, which needs no NIC and executes requests in this process.
mod stand_in {
    use aqueduct::comm::EndpointConfig;

    use super::{Transport, all_cases, over_stand_in};

    #[test]
    fn verbs() {
        let endpoint = EndpointConfig::new(Transport::Ib(0));
        over_stand_in(2, "ports::stand_in::verbs", |rank| all_cases(&rank, &endpoint));
    }

    #[test]
    fn verbs_over_four_queue_pairs() {
        let endpoint = EndpointConfig::new(Transport::Ib(0)).with_queue_pairs(4);
        over_stand_in(2, "ports::stand_in::verbs_over_four_queue_pairs", |rank| all_cases(&rank, &endpoint));
    }
}
