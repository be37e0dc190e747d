//! Services of several proxies.

use super::*;

/// A call that stops a service returns when nothing is served any more, although one proxy has failed long before.
#[test]
fn stop_waits_for_all_proxies_although_one_has_failed() {
    let (_context, comm, _) = one_rank();
    let config = ProxyServiceConfig { proxies: 2, ..ProxyServiceConfig::default() };
    let service = ProxyService::start(&comm, config).unwrap();
    let [failed, busy] = [0, 1].map(|index| &service.inner.shards[index].proxy);
    // A proxy waits for what a kernel has not written yet.
    [failed, busy].into_iter().for_each(|proxy| proxy.queue().take_first_position());
    failed.begin_stop(Deadline::after(Duration::ZERO));
    let failure = failed.end_stop(soon()).unwrap_err();
    assert_eq!(failure.kind(), ErrorKind::Timeout, "{failure}");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let deadline = soon();
            while busy.check().is_ok() && !deadline.expired() {
                std::thread::yield_now();
            }
            // A call that did not wait would return meanwhile.
            std::thread::sleep(Duration::from_millis(100));
            busy.queue().write(0, |lap| put(SemaphoreId(0), MemoryId(0)).encode(lap).unwrap());
        });
        let told = service.stop(soon()).unwrap_err();
        assert_eq!(told.message(), failure.message());
        busy.end_stop(Deadline::after(Duration::ZERO)).expect("it has ended");
    });
}

/// Requests in any of the FIFOs may name a memory.
#[test]
fn a_memorys_number_is_free_only_once_no_fifo_holds_a_request_that_names_it() {
    let (context, comm, _) = one_rank();
    let [first, second] = [(); 2].map(|()| {
        let buffer = Arc::new(GpuBuffer::new(&context, 64).unwrap());
        comm.register_memory(&buffer, Transport::CudaIpc).unwrap()
    });
    let fifos = [(); 3].map(|()| Fifo::new(&context, 4).unwrap());
    let mut consumers = fifos.each_ref().map(|fifo| fifo.consumer().unwrap());
    let mut registry = Registry::new(&context, 1, 1, fifos.to_vec());
    let id = registry.add_memory(&first).unwrap();
    for fifo in &fifos {
        fifo.write(0, |lap| put(SemaphoreId(0), id).encode(lap).unwrap());
    }
    drop(registry.remove_memory(id).unwrap());
    context.settle();
    for consumer in &mut consumers {
        assert!(registry.add_memory(&second).is_err_and(|error| is_exhausted(&error)));
        assert!(consumer.poll().is_some());
        consumer.pop().unwrap();
    }
    assert_eq!(registry.add_memory(&second).unwrap(), id);
}
