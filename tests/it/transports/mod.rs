//! Cases for connections, run over every transport and every pair of memory kinds.

mod cases;
mod device_memory;
mod faults;
mod losses;
mod ownership;
mod pair;
mod peer_connection;
mod reads;
mod refusals;
mod sharing;

use aqueduct::comm::{EndpointConfig, Transport};

use crate::group::{Machine, processes};
use crate::standin;
use pair::{Kind, Pair};

type Case = fn(&Pair);

/// Promises of a connection over any transport. The same two ranks run all cases, one after the other.
const CASES: &[(&str, Case)] = &[
    ("a signal comes after the writes before it", cases::order),
    ("invalid calls are refused with a reason", cases::refusals),
    ("after a flush data has arrived and sources are free", cases::flush),
    ("thousands of operations are outstanding", cases::outstanding),
    ("batches cost few doorbells and completions", cases::batches),
    ("zero bytes are no operation", cases::zero_bytes),
    ("odd sizes at odd offsets", cases::odd_sizes),
    ("both directions at once", cases::both_directions),
    ("signals that no rank waits for yet", cases::unawaited),
    ("several connections at once", cases::concurrent),
    ("events order streams and connections", cases::events),
    ("reads", reads::bytes_of_the_peer),
    ("reads between writes", reads::in_order_with_writes),
    ("a read comes before the signal behind it", reads::before_a_signal),
    ("many reads are outstanding", reads::many_outstanding),
    ("a signal to a kernel", cases::host_to_device),
    ("offsets beyond 8 GiB", cases::far_offsets),
    ("one end is dropped while busy", cases::teardown),
];

fn suite(machine: Machine, endpoint: impl Into<EndpointConfig>, source: Kind, target: Kind, test: &str) {
    let endpoint = endpoint.into();
    processes(machine, 2, test, |rank| all_cases(&Pair::new(rank, endpoint.clone(), source, target)));
}

fn all_cases(pair: &Pair) {
    for (name, case) in CASES {
        let start = std::time::Instant::now();
        case(pair);
        pair.rank.barrier();
        println!("{name}: {:.2} s", start.elapsed().as_secs_f64());
    }
}

macro_rules! instances {
    ($($name:ident: $transport:expr, $source:ident to $target:ident;)*) => {
        mod software {
            use super::{Kind, Machine, Transport, suite};
            $(#[test]
            fn $name() {
                let test = concat!("transports::software::", stringify!($name));
                suite(Machine::Software, $transport, Kind::$source, Kind::$target, test);
            })*
        }
        mod hardware {
            use super::{Kind, Machine, Transport, suite};
            $(#[test]
            #[ignore = "needs an NVIDIA GPU"]
            fn $name() {
                let test = concat!("transports::hardware::", stringify!($name));
                suite(Machine::Hardware, $transport, Kind::$source, Kind::$target, test);
            })*
        }
    };
}

instances! {
    cuda_ipc_device_to_device: Transport::CudaIpc, Device to Device;
    cuda_ipc_device_to_host: Transport::CudaIpc, Device to Host;
    cuda_ipc_host_to_device: Transport::CudaIpc, Host to Device;
    cuda_ipc_host_to_host: Transport::CudaIpc, Host to Host;
    ethernet_device_to_device: Transport::Ethernet, Device to Device;
    ethernet_device_to_host: Transport::Ethernet, Device to Host;
    ethernet_host_to_device: Transport::Ethernet, Host to Device;
    ethernet_host_to_host: Transport::Ethernet, Host to Host;
}

/// Over the stand-in provider, which needs no NIC and executes requests in this process. At least the calls and the
/// bookkeeping are the same as over a NIC.
mod stand_in {
    use aqueduct::comm::{EndpointConfig, IbSignal};
    use aqueduct::internals::rdma::Verbs;

    use super::{Kind, Machine, Pair, Transport, all_cases, standin};
    use aqueduct_tests::ranks;

    use crate::group::{config, threads_with};

    fn suite(endpoint: EndpointConfig, source: Kind, target: Kind, test: &str) {
        let device = [source, target].contains(&Kind::Device);
        let config = config().with_verbs(Verbs::from_table(standin::table(), "stand-in"));
        let environment = [("AQUEDUCT_IB_DEVICES", "null0")];
        threads_with(Machine::Software, 2, test, &config, &environment, |rank| {
            all_cases(&Pair::new(rank, endpoint.clone(), source, target));
        });
        assert_eq!(standin::violations(), 0, "an object was destroyed while it was in use");
        if ranks::rank().is_some() {
            // Two registrations are for the semaphore words that kernels wait for.
            assert_eq!(
                standin::registrations().by_dmabuf > 2,
                device,
                "device memory is registered by dma-buf"
            );
        }
    }

    fn endpoint() -> EndpointConfig {
        EndpointConfig::new(Transport::Ib(0))
    }

    #[test]
    fn host_to_host() {
        suite(endpoint(), Kind::Host, Kind::Host, "transports::stand_in::host_to_host");
    }

    #[test]
    fn device_to_device_over_four_queue_pairs() {
        let test = "transports::stand_in::device_to_device_over_four_queue_pairs";
        suite(endpoint().with_queue_pairs(4), Kind::Device, Kind::Device, test);
    }

    #[test]
    fn host_to_device_with_atomic_signals() {
        let test = "transports::stand_in::host_to_device_with_atomic_signals";
        suite(endpoint().with_ib_signal(IbSignal::Atomic), Kind::Host, Kind::Device, test);
    }

    #[test]
    fn host_to_host_with_immediate_signals() {
        let test = "transports::stand_in::host_to_host_with_immediate_signals";
        suite(endpoint().with_ib_signal(IbSignal::Immediate), Kind::Host, Kind::Host, test);
    }

    #[test]
    fn device_to_host_with_immediate_signals_over_two_queue_pairs() {
        let test = "transports::stand_in::device_to_host_with_immediate_signals_over_two_queue_pairs";
        let endpoint = endpoint().with_queue_pairs(2).with_ib_signal(IbSignal::Immediate);
        suite(endpoint, Kind::Device, Kind::Host, test);
    }
}

/// Over a NIC of this machine, real or soft-RoCE, in loopback; `ci/rdma-vm` has one.
mod verbs {
    use aqueduct::comm::{EndpointConfig, IbSignal};

    use super::{Kind, Machine, Transport, suite};

    #[test]
    #[ignore = "needs an RDMA NIC: ci/rdma-vm runs it on soft-RoCE"]
    fn immediate_signals() {
        let endpoint = EndpointConfig::new(Transport::Ib(0)).with_ib_signal(IbSignal::Immediate);
        suite(Machine::Software, endpoint, Kind::Host, Kind::Device, "transports::verbs::immediate_signals");
    }

    #[test]
    #[ignore = "needs an RDMA NIC: ci/rdma-vm runs it on soft-RoCE"]
    fn host_to_host() {
        suite(Machine::Software, Transport::Ib(0), Kind::Host, Kind::Host, "transports::verbs::host_to_host");
    }

    #[test]
    #[ignore = "needs an RDMA NIC: ci/rdma-vm runs it on soft-RoCE"]
    fn host_to_device() {
        suite(
            Machine::Software,
            Transport::Ib(0),
            Kind::Host,
            Kind::Device,
            "transports::verbs::host_to_device",
        );
    }

    #[test]
    #[ignore = "needs an RDMA NIC: ci/rdma-vm runs it on soft-RoCE"]
    fn device_to_host() {
        suite(
            Machine::Software,
            Transport::Ib(0),
            Kind::Device,
            Kind::Host,
            "transports::verbs::device_to_host",
        );
    }

    #[test]
    #[ignore = "needs an RDMA NIC: ci/rdma-vm runs it on soft-RoCE"]
    fn device_to_device() {
        suite(
            Machine::Software,
            Transport::Ib(0),
            Kind::Device,
            Kind::Device,
            "transports::verbs::device_to_device",
        );
    }
}

/// Writes far into a memory of a terabyte, of which only touched pages exist.
#[test]
fn ethernet_reaches_a_terabyte() {
    processes(Machine::Software, 2, "transports::ethernet_reaches_a_terabyte", |rank| {
        let pair = Pair::new(rank, Transport::Ethernet, Kind::Host, Kind::Host);
        cases::sparse(&pair, 1 << 40);
        pair.rank.barrier();
    });
}
