//! Registration of device memory with a NIC: by dma-buf, else by address, and refused where a kernel could see a signal
//! before the data. Uses the stand-in, which maps the descriptor, and the software device. dma-buf is not yet confirmed
//! on hardware.

use std::sync::Arc;

use aqueduct::comm::{EndpointConfig, RegisteredMemory, Transport};
use aqueduct::gpu::GpuBuffer;
use aqueduct::internals::rdma::Verbs;
use aqueduct::{ErrorKind, Result};

use super::cases;
use super::pair::{Kind, Pair};
use crate::group::{Machine, Rank, config, threads_with};
use crate::standin;

/// Runs ranks whose software devices lack a feature.
fn ranks(size: u32, lacks: &str, test: &str, run: impl Fn(Rank) + Sync) {
    let config = config().with_verbs(Verbs::from_table(standin::table(), "stand-in"));
    let environment = [("AQUEDUCT_IB_DEVICES", "null0"), ("AQUEDUCT_SOFT_LACKS", lacks)];
    threads_with(Machine::Software, size, test, &config, &environment, run);
    assert_eq!(standin::violations(), 0, "something was destroyed while it was in use");
}

fn register(rank: &Rank) -> Result<RegisteredMemory> {
    let buffer = Arc::new(GpuBuffer::new(rank.comm.context(), 4096)?);
    rank.comm.register_memory(&buffer, Transport::Ib(0))
}

/// Exchanges data in both directions, and signals to kernels.
fn works(rank: Rank) {
    let pair = Pair::new(rank, EndpointConfig::new(Transport::Ib(0)), Kind::Device, Kind::Device);
    cases::order(&pair);
    cases::host_to_device(&pair);
    pair.rank.barrier();
}

#[test]
fn by_dmabuf_first() {
    ranks(2, "", "transports::device_memory::by_dmabuf_first", |rank| {
        works(rank);
        // Source and inbox of both ranks, and the semaphore words that kernels wait for. Words that hosts wait for are
        // host memory.
        let seen = standin::registrations();
        assert!(seen.by_dmabuf >= 6 && seen.by_address <= 2, "{seen:?}");
    });
}

#[test]
fn by_address_where_the_driver_has_no_dmabuf() {
    ranks(2, "dma_buf", "transports::device_memory::by_address_where_the_driver_has_no_dmabuf", |rank| {
        works(rank);
        let seen = standin::registrations();
        assert!(seen.by_dmabuf == 0 && seen.by_address >= 6, "{seen:?}");
    });
}

#[test]
fn by_address_where_the_nic_takes_no_dmabuf() {
    ranks(1, "", "transports::device_memory::by_address_where_the_nic_takes_no_dmabuf", |rank| {
        standin::refuse("ibv_reg_dmabuf_mr", libc::EOPNOTSUPP);
        drop(register(&rank).expect("registered by address"));
        assert_eq!(standin::not_called(), 0, "the first was tried");
        let seen = standin::registrations();
        assert_eq!((seen.by_dmabuf, seen.by_address), (0, 1));
        // Both ways fail, and the error names both.
        standin::refuse("ibv_reg_dmabuf_mr", libc::EOPNOTSUPP);
        standin::refuse("ibv_reg_mr", libc::EFAULT);
        let error = register(&rank).unwrap_err();
        for word in ["null0", "nvidia_peermem", "dma-buf", "cannot register this kind of memory"] {
            assert!(error.to_string().contains(word), "{word}: {error}");
        }
    });
}

#[test]
fn a_gpu_that_does_not_order_writes_is_refused() {
    ranks(
        1,
        "rdma_ordering",
        "transports::device_memory::a_gpu_that_does_not_order_writes_is_refused",
        |rank| {
            let error = register(&rank).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            for word in ["GPU_DIRECT_RDMA_WRITES_ORDERING", "use host memory"] {
                assert!(error.to_string().contains(word), "{word}: {error}");
            }
            assert_eq!(standin::registrations(), standin::Registrations::default(), "nothing was registered");
        },
    );
}
