//! Port channels: kernels push, proxies put, signal and flush, over every transport.

mod cases;
mod end;

use aqueduct::comm::{EndpointConfig, Transport};

use crate::group::{Machine, Rank, processes};
use end::End;

type Case = fn(&End<'_>);

/// What a port channel promises, whatever is below it; run one after the other by the same two ranks.
const CASES: &[(&str, Case)] = &[
    ("puts of every size and offset", cases::puts),
    ("one wait takes one signal", cases::signals),
    ("a source is free after a flush", cases::flush),
    ("puts arrive in their order", cases::order),
    ("packets in both formats", cases::packets),
    ("polling takes what is there", cases::polls),
    ("in a replayed graph", cases::graph),
];

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

/// Over soft-RoCE, the software device's memory on both sides.
#[test]
#[ignore = "needs an RDMA NIC: ci/rdma-vm runs it on soft-RoCE"]
fn verbs() {
    suite(Machine::Software, Transport::Ib(0), "ports::verbs");
}
