//! The proxy's thread: the cores it runs on, and its CPU use while idle.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use aqueduct::gpu::Context;
use aqueduct::proxy::{Idle, Proxy, ProxyConfig, ProxyHandler, ProxyHandlerResult, ProxyTrigger};
use aqueduct::{ErrorKind, Result};
use aqueduct_ptx::abi::LEFT_NOT;

use super::Job;
use crate::group::soon;

on_machines! { "ports::proxy::thread", crate::ports::alone:
    a_sleeping_proxy_costs_little_and_serves;
    invalid_cores_and_sizes;
}

/// CPU time of the thread, and the number of times it polled.
#[derive(Default)]
struct Use {
    nanoseconds: AtomicU64,
    looks: AtomicU64,
    handled: AtomicU64,
}

struct Watched(Arc<Use>);

impl ProxyHandler for Watched {
    fn handle(&mut self, _: u64, _: &ProxyTrigger) -> Result<ProxyHandlerResult> {
        self.0.handled.fetch_add(1, Ordering::Relaxed);
        Ok(ProxyHandlerResult::Continue)
    }

    fn progress(&mut self) -> Result<bool> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a live output.
        assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
        let nanoseconds = time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned();
        self.0.nanoseconds.store(nanoseconds, Ordering::Relaxed);
        self.0.looks.fetch_add(1, Ordering::Relaxed);
        Ok(false)
    }
}

fn a_sleeping_proxy_costs_little_and_serves(context: &Context) {
    const PAUSE: Duration = Duration::from_millis(5);
    // CPU use and polls per second. Sleeping threads wake up late on a busy machine.
    let looks = |idle: Idle| {
        let used = Arc::new(Use::default());
        let job = Job::new(context, ProxyConfig::default().with_idle(idle), Watched(used.clone()));
        let seen = || [&used.nanoseconds, &used.looks].map(|count| count.load(Ordering::Relaxed) as f64);
        // Wait until it has started to sleep, which it does after a thousand polls.
        let deadline = soon();
        while used.looks.load(Ordering::Relaxed) < 1100 {
            deadline.check("idle", "its patience").unwrap();
            std::thread::sleep(PAUSE);
        }
        let (since, [time, looks]) = (Instant::now(), seen());
        std::thread::sleep(Duration::from_millis(400));
        let [later, looked] = seen();
        let seconds = since.elapsed().as_secs_f64();
        for round in 1..4 {
            job.push(1, 1, 1);
            assert_eq!(job.left(), LEFT_NOT);
            job.handled(round);
        }
        job.proxy.stop(soon()).unwrap();
        assert_eq!(used.handled.load(Ordering::Relaxed), 3);
        ((later - time) / 1e9 / seconds, (looked - looks) / seconds)
    };
    let (_, awake) = looks(Idle::Yield);
    let (share, asleep) = looks(Idle::Sleep(PAUSE));
    println!("{awake:.0} polls per second awake, {asleep:.0} asleep with {share:.4} of a core");
    assert!(share < 0.1, "{share} of a core");
    let most = 1.1 / PAUSE.as_secs_f64();
    assert!(asleep <= most && awake > 10.0 * asleep, "{asleep} polls per second asleep, {awake} awake");
}

/// The cores that the calling thread may use.
fn cores() -> Vec<usize> {
    // SAFETY: all zero is the empty set, which the call fills; 0 is the calling thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &raw mut set), 0);
        (0..libc::CPU_SETSIZE as usize).filter(|&core| libc::CPU_ISSET(core, &set)).collect()
    }
}

fn invalid_cores_and_sizes(context: &Context) {
    struct Cores(mpsc::Sender<Vec<usize>>);
    impl ProxyHandler for Cores {
        fn init(&mut self) -> Result<()> {
            self.0.send(cores()).unwrap();
            Ok(())
        }
        fn handle(&mut self, _: u64, _: &ProxyTrigger) -> Result<ProxyHandlerResult> {
            Ok(ProxyHandlerResult::Continue)
        }
    }
    let (sender, receiver) = mpsc::channel();
    let start = |config: ProxyConfig| Proxy::start(context, config, Cores(sender.clone()));
    let before = cores();
    let last = *before.last().unwrap();
    drop(start(ProxyConfig::default().with_cpu(last)).unwrap());
    assert_eq!(receiver.recv().unwrap(), [last], "bound to its core before init runs");
    drop(start(ProxyConfig::default()).unwrap());
    let beside = receiver.recv().unwrap();
    assert!(
        !beside.is_empty() && beside.iter().all(|core| before.contains(core)),
        "{beside:?} of {before:?}"
    );
    for core in [last + 1, 1023, 1024, usize::MAX] {
        let error = start(ProxyConfig::default().with_cpu(core)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage);
        let text = error.to_string();
        assert!(
            text.contains(&core.to_string()) && text.contains(&last.to_string()),
            "names the valid values: {text}"
        );
    }
    assert_eq!(cores(), before, "the caller's affinity is unchanged");
    for size in [0, 3, 500, (1 << 31) + 1] {
        let error = start(ProxyConfig::default().with_fifo_size(size)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage);
        assert!(error.to_string().contains("power of two"), "{error}");
    }
}
