//! A proxy alone, without kernels.

use aqueduct_ptx::abi::ProxyTrigger;

use super::*;
use crate::gpu::{Device, Driver};
use crate::proxy::config::Idle;
use crate::proxy::words::tests::once_raised;

/// Tells whether its calls come on a service thread.
struct Where(mpsc::Sender<bool>);

impl ProxyHandler for Where {
    fn init(&mut self) -> Result<()> {
        let _ = self.0.send(service_thread::is_current());
        Ok(())
    }

    fn handle(&mut self, _: u64, _: &ProxyTrigger) -> Result<ProxyHandlerResult> {
        Ok(ProxyHandlerResult::Stop)
    }
}

#[test]
fn handlers_run_on_a_service_thread() {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let (tell, told) = mpsc::channel();
    let proxy = Proxy::start(&context, ProxyConfig::default(), Where(tell)).unwrap();
    assert!(told.recv().unwrap() && !service_thread::is_current());
    proxy.stop(Duration::from_secs(20)).unwrap();
}

/// Tells when it has ended.
struct Ends(mpsc::Sender<()>);

impl ProxyHandler for Ends {
    fn handle(&mut self, _: u64, _: &ProxyTrigger) -> Result<ProxyHandlerResult> {
        Ok(ProxyHandlerResult::Continue)
    }

    fn ended(&mut self, failure: Option<&Error>) {
        assert!(failure.is_none());
        let _ = self.0.send(());
    }
}

fn that_tells() -> (Proxy, mpsc::Receiver<()>) {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let (tell, told) = mpsc::channel();
    let proxy = Proxy::start(&context, ProxyConfig::default(), Ends(tell)).unwrap();
    (proxy, told)
}

#[test]
fn a_proxy_that_is_dropped_ends() {
    let (proxy, told) = that_tells();
    let outcome = proxy.outcome();
    drop(proxy);
    told.recv_timeout(Duration::from_secs(20)).unwrap();
    outcome.outcome("test").expect("no kernel was left that could be told to leave");
}

#[test]
fn a_proxy_that_was_stopped_has_stopped_also_when_it_is_dropped() {
    let (proxy, _told) = that_tells();
    let outcome = proxy.outcome();
    proxy.stop(Duration::from_secs(20)).unwrap();
    drop(proxy);
    assert_eq!(outcome.outcome("test").unwrap_err().kind(), ErrorKind::Stopped);
}

/// Has work under way for as long as the test says.
#[derive(Clone, Default)]
struct Busy(Arc<(AtomicU32, AtomicU64)>);

impl ProxyHandler for Busy {
    fn handle(&mut self, _: u64, _: &ProxyTrigger) -> Result<ProxyHandlerResult> {
        Ok(ProxyHandlerResult::Continue)
    }

    fn progress(&mut self) -> Result<bool> {
        let (over, rounds) = &*self.0;
        rounds.fetch_add(1, Ordering::Relaxed);
        Ok(over.load(Ordering::Acquire) == 0)
    }
}

#[test]
fn a_proxy_that_is_to_stop_refuses_more_at_once_and_ends_when_its_work_is_done() {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let (busy, stream) = (Busy::default(), Stream::new(&context).unwrap());
    let proxy = Proxy::start(&context, ProxyConfig::default(), busy.clone()).unwrap();
    let deadline = Deadline::after(Duration::from_secs(60));
    proxy.report_to(&stream);
    stream.synchronize(deadline).unwrap();
    // Each wait asks once for what was reported before it.
    proxy.report_to(&stream);
    proxy.begin_stop(deadline);
    let stopped = |result: Result<()>| result.is_err_and(|error| error.kind() == ErrorKind::Stopped);
    assert!(stopped(proxy.check()) && stopped(stream.synchronize(deadline)));
    // The FIFO is closed and empty in the first of these rounds.
    let (over, rounds) = &*busy.0;
    let before = rounds.load(Ordering::Relaxed);
    while rounds.load(Ordering::Relaxed) < before + 5 {
        assert!(!proxy.is_over(), "it has ended with work under way");
        assert!(!deadline.expired(), "it has not gone on");
    }
    over.store(1, Ordering::Release);
    proxy.stop(deadline).unwrap();
}

/// Fails once it has been given its own proxy, which it asks for the reason as soon as kernels are told to leave.
struct Fails {
    own: mpsc::Receiver<Arc<Proxy>>,
    answer: mpsc::Sender<Result<()>>,
}

impl ProxyHandler for Fails {
    fn handle(&mut self, _: u64, _: &ProxyTrigger) -> Result<ProxyHandlerResult> {
        Ok(ProxyHandlerResult::Continue)
    }

    fn progress(&mut self) -> Result<bool> {
        let Ok(own) = self.own.try_recv() else { return Ok(false) };
        let answer = self.answer.clone();
        once_raised(move || {
            let _ = answer.send(own.check());
        });
        Err(Error::usage("x", "on purpose"))
    }
}

/// The caller that launched a kernel which has left asks why.
#[test]
fn the_reason_of_a_failure_is_there_when_kernels_are_told() {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let ((give, own), (answer, answered)) = (mpsc::channel(), mpsc::channel());
    let proxy = Arc::new(Proxy::start(&context, ProxyConfig::default(), Fails { own, answer }).unwrap());
    give.send(proxy.clone()).unwrap();
    let reason = answered.recv_timeout(Duration::from_secs(60)).expect("kernels are told").unwrap_err();
    assert_eq!(reason.message(), "on purpose");
    assert!(proxy.stop(Duration::from_secs(20)).is_err());
}

/// A handler that does not return until the test lets it.
struct Stuck(mpsc::Receiver<()>);

impl ProxyHandler for Stuck {
    fn handle(&mut self, _: u64, _: &ProxyTrigger) -> Result<ProxyHandlerResult> {
        Ok(ProxyHandlerResult::Continue)
    }

    fn progress(&mut self) -> Result<bool> {
        // An error says that the test is over.
        let _ = self.0.recv();
        Ok(false)
    }
}

#[test]
fn stop_returns_at_its_deadline_though_the_handler_does_not() {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let (release, stuck) = mpsc::channel();
    let proxy = Proxy::start(&context, ProxyConfig::default(), Stuck(stuck)).unwrap();
    // A stop that waits for the handler all the same comes to an end, and not by its deadline.
    let (over, ended) = mpsc::channel::<()>();
    let releasing = std::thread::spawn(move || {
        let _ = ended.recv_timeout(Duration::from_secs(60));
        drop(release);
    });
    for ms in [0, 100] {
        let deadline = Duration::from_millis(ms);
        let latest = Proxy::latest(deadline.into());
        assert!(latest < Deadline::after(deadline + Duration::from_millis(800)), "long after it");
        let late = proxy.stop(deadline).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Timeout);
        assert!(late.message().contains("the handler has not returned"), "{late}");
    }
    drop(over);
    releasing.join().unwrap();
    // The first deadline stands. It has passed, so the proxy may have found no time to close its FIFO.
    if let Err(error) = proxy.stop(Duration::from_secs(20)) {
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    }
}

/// A proxy that sleeps for `pause` at a time, and does so.
fn asleep(pause: Duration) -> Proxy {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let config = ProxyConfig::default().with_idle(Idle::Sleep(pause));
    let idle = Busy::default();
    let (over, rounds) = &*idle.0;
    over.store(1, Ordering::Release);
    let proxy = Proxy::start(&context, config, idle.clone()).unwrap();
    let (deadline, mut before) = (Deadline::after(Duration::from_secs(60)), 0);
    // It sleeps once its rounds do not go on.
    loop {
        let now = rounds.load(Ordering::Relaxed);
        if now > 1024 && now == before {
            return proxy;
        }
        assert!(!deadline.expired(), "it does not sleep");
        before = now;
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_proxy_that_sleeps_wakes_to_stop() {
    asleep(Duration::from_secs(60)).stop(Duration::from_secs(10)).unwrap();
}

/// It is woken once, at the beginning of its end.
#[test]
fn a_proxy_whose_fifo_cannot_be_drained_does_not_sleep_past_the_deadline_of_its_end() {
    let proxy = asleep(Duration::from_secs(3600));
    proxy.fifo.take_first_position();
    proxy.begin_stop(Deadline::after(Duration::from_millis(500)));
    let late = proxy.end_stop(Deadline::after(Duration::from_secs(60))).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Timeout);
    // The thread's own word, which is another one if it has found no time to close the FIFO.
    assert!(!late.message().contains("the handler has not returned"), "{late}");
}

/// Whoever has stopped it first relies on it that nothing is served behind that deadline.
#[test]
fn a_later_stop_does_not_put_off_the_end() {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let busy = Busy::default();
    let proxy = Proxy::start(&context, ProxyConfig::default(), busy.clone()).unwrap();
    proxy.begin_stop(Deadline::after(Duration::from_millis(500)));
    proxy.begin_stop(Deadline::after(Duration::from_secs(3600)));
    let late = proxy.end_stop(Deadline::after(Duration::from_secs(60))).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Timeout);
    // The thread's own word, as it has ended.
    assert!(!late.message().contains("the handler has not returned"), "{late}");
    assert!(proxy.is_over());
}
