//! Handlers: the triggers they receive, the results they return, and failures.

use std::sync::{Arc, Mutex, mpsc};

use aqueduct::gpu::Context;
use aqueduct::proxy::{Proxy, ProxyConfig, ProxyHandler, ProxyHandlerResult, ProxyTrigger};
use aqueduct::{Error, ErrorKind, Result};
use aqueduct_ptx::abi::{LEFT_CLOSED, LEFT_NOT, LEFT_TOLD, Operation};
use aqueduct_ptx::oracle::fifo::Arrivals;

use super::{Job, noting};
use crate::group::soon;
use crate::ports::kernels::Report;

on_machines! { "ports::proxy::handlers", crate::ports::alone:
    custom_handlers_get_whole_triggers_in_order;
    a_handler_can_end_its_proxy;
    init_runs_on_the_proxy_thread_and_may_fail;
    every_caller_learns_of_a_handler_that_fails_or_panics;
}

fn custom_handlers_get_whole_triggers_in_order(context: &Context) {
    struct Positions(Vec<[u64; 4]>, mpsc::Sender<Vec<[u64; 4]>>);
    impl ProxyHandler for Positions {
        fn handle(&mut self, position: u64, trigger: &ProxyTrigger) -> Result<ProxyHandlerResult> {
            assert_eq!(position, self.0.len() as u64);
            self.0.push(trigger.payload());
            Ok(ProxyHandlerResult::Continue)
        }
        fn ended(&mut self, failure: Option<&Error>) {
            assert!(failure.is_none());
            self.1.send(std::mem::take(&mut self.0)).unwrap();
        }
    }
    let (sender, receiver) = mpsc::channel();
    let job = Job::new(context, ProxyConfig::default().with_fifo_size(2), Positions(Vec::new(), sender));
    // The handler gets all 4 x 63 bits, also of a trigger with no bit set.
    let all = (1 << 63) - 1;
    let pushed = [[all; 4], [0; 4], [1, 2, 3, 4], [0, all, 0, all], [0; 4]];
    for words in pushed {
        job.kernels.raw(&job.stream, &job.proxy.fifo(), words, &job.report);
    }
    assert_eq!(job.left(), LEFT_NOT);
    job.proxy.stop(soon()).unwrap();
    assert_eq!(receiver.recv().unwrap(), pushed);
    assert_eq!(job.report.number(0), 4, "the position of the last one");

    let arrivals = Arc::new(Mutex::new(Arrivals::new(512)));
    let job = Job::new(context, ProxyConfig::default().with_fifo_size(16), noting(&arrivals));
    job.push(4, 128, 8);
    assert_eq!(job.left(), LEFT_NOT);
    job.proxy.check().unwrap();
    job.proxy.stop(soon()).unwrap();
    assert_eq!(arrivals.lock().unwrap().per_thread(), Some(8));
    let counters = job.proxy.counters();
    assert_eq!(counters.triggers, 4096);
    assert!((1..=4096).contains(&counters.bursts), "{counters:?}");
}

fn a_handler_can_end_its_proxy(context: &Context) {
    let mut seen = 0;
    let job = Job::new(context, ProxyConfig::default().with_fifo_size(4), move |_: &ProxyTrigger| {
        seen += 1;
        assert!(seen <= 10, "no trigger is handled after the last one");
        Ok(if seen == 10 { ProxyHandlerResult::Stop } else { ProxyHandlerResult::Continue })
    });
    job.push(2, 64, 1000);
    let left = job.left();
    assert!([LEFT_CLOSED, LEFT_TOLD].contains(&left), "{left}");
    assert_eq!(job.proxy.counters().triggers, 10);
    let error = job.proxy.check().unwrap_err();
    assert!(error.kind() == ErrorKind::Stopped && error.message().contains("stopped"), "{error}");
    job.proxy.stop(soon()).unwrap();
    // Later pushes are refused at once.
    let report = Report::new(context);
    job.kernels.raw(&job.stream, &job.proxy.fifo(), [1; 4], &report);
    job.stream.synchronize(soon()).unwrap();
    assert_eq!(report.status(), LEFT_CLOSED);
}

/// In `init`, fails, panics, or records the thread it runs on.
struct Init(Option<fn() -> Result<()>>, mpsc::Sender<(std::thread::ThreadId, Option<String>)>);

impl ProxyHandler for Init {
    fn init(&mut self) -> Result<()> {
        let thread = std::thread::current();
        let _ = self.1.send((thread.id(), thread.name().map(str::to_owned)));
        self.0.map_or(Ok(()), |init| init())
    }

    fn handle(&mut self, _: u64, _: &ProxyTrigger) -> Result<ProxyHandlerResult> {
        let _ = self.1.send((std::thread::current().id(), None));
        Ok(ProxyHandlerResult::Continue)
    }
}

fn init_runs_on_the_proxy_thread_and_may_fail(context: &Context) {
    let (sender, receiver) = mpsc::channel();
    let job = Job::new(context, ProxyConfig::default(), Init(None, sender.clone()));
    let (thread, name) = receiver.recv().unwrap();
    assert_ne!(thread, std::thread::current().id());
    assert_eq!(name.as_deref(), Some("aqueduct-proxy"));
    job.push(1, 1, 1);
    assert_eq!(receiver.recv().unwrap().0, thread, "the handler runs where it was initialised");
    job.proxy.stop(soon()).unwrap();

    let start =
        |init| Proxy::start(context, ProxyConfig::default(), Init(Some(init), sender.clone())).unwrap_err();
    let error = start(|| Err(Error::new(ErrorKind::Unsupported, "init", "no such codec")));
    assert!(error.kind() == ErrorKind::Unsupported && error.message() == "no such codec", "{error}");
    let error = start(|| panic!("a broken table"));
    assert!(error.message().contains("panicked: a broken table"), "{error}");
}

fn every_caller_learns_of_a_handler_that_fails_or_panics(context: &Context) {
    for panics in [false, true] {
        let mut seen = 0;
        let job = Job::new(
            context,
            ProxyConfig::default().with_fifo_size(8).with_rank(3),
            move |_: &ProxyTrigger| {
                seen += 1;
                assert!(seen <= 100, "no trigger is handled after a failure");
                if seen < 100 {
                    return Ok(ProxyHandlerResult::Continue);
                }
                assert!(!panics, "disk full");
                Err(Error::new(ErrorKind::System, "save", "disk full"))
            },
        );
        // Far more pushes than slots: most of them wait for room when the handler fails.
        job.push(2, 128, u32::MAX);
        let left = job.left();
        assert!([LEFT_TOLD, LEFT_CLOSED].contains(&left), "{left}");
        let (check, stop) = (job.proxy.check().unwrap_err(), job.proxy.stop(soon()).unwrap_err());
        for error in [&check, &stop, &job.proxy.stop(soon()).unwrap_err()] {
            assert!(error.message().contains("disk full"), "{error}");
        }
        assert_eq!(job.proxy.counters().triggers, 99, "handled");
        if let Some(report) = job.proxy.abort_report() {
            assert_eq!((report.rank, report.operation), (3, Operation::FIFO));
        } else {
            assert_eq!(left, LEFT_CLOSED, "a kernel told to leave records what it waited for");
        }
    }
}
