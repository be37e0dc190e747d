//! Connections whose stream a test holds up.

use cuda_driver_sys::CUresult;

use super::*;
use crate::bootstrap;
use crate::comm::{Communicator, CommunicatorConfig, Transport};
use crate::error::ErrorKind;
use crate::gpu::{Device, Driver, Hooks, PinnedBuffer};
use crate::transport::tests::{resources, wait_for, with_memories};

/// The peer of the connections, which has nothing to do with them.
const PEER: u32 = 5;

/// A stream waits here until the gate is opened.
struct Gate(Arc<PinnedBuffer>);

impl Gate {
    fn close(stream: &Stream) -> Self {
        let word = Arc::new(PinnedBuffer::new(stream.context(), 8).unwrap());
        stream.wait_value64(&word.slice(..).unwrap(), 1).unwrap();
        Self(word)
    }

    fn open(&self) {
        self.0.memory().word64(0).unwrap().store(1, Ordering::Release);
    }
}

/// A test that fails leaves no stream waiting.
impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

fn connection(comm: &Communicator) -> (CudaIpc, Arc<Resources>) {
    let resources = resources(comm, None);
    (CudaIpc::new(&resources, PEER).unwrap(), resources)
}

fn wait(resources: &Resources) -> Result<()> {
    resources.outstanding.wait(|| Ok(()), Deadline::after(std::time::Duration::ZERO))
}

#[test]
fn a_flush_waits_for_what_came_before_it_only() {
    with_memories(|comm, _| {
        let (ipc, _resources) = connection(comm);
        let stream = &ipc.queue.stream;
        let word = Arc::new(PinnedBuffer::new(stream.context(), 8).unwrap());
        let reported = || word.memory().word64(0).unwrap().load(Ordering::Acquire);
        let before = ipc.mark().unwrap();
        let gate = Gate::close(stream);
        assert!(ipc.report(&word.slice(..).unwrap(), 9).unwrap());
        let behind = ipc.mark().unwrap();
        wait_for("work in front of the gate", || ipc.is_done(before).unwrap());
        assert!(!ipc.is_done(behind).unwrap() && reported() == 0, "work behind the gate");
        gate.open();
        wait_for("work behind the gate", || ipc.is_done(behind).unwrap());
        assert_eq!(reported(), 9);
    });
}

#[test]
fn events_come_before_later_operations_and_behind_earlier_ones() {
    with_memories(|comm, _| {
        let (ipc, _resources) = connection(comm);
        let stream = Stream::new(ipc.queue.stream.context()).unwrap();
        let [first, last] = [(); 2].map(|()| Event::new(stream.context()).unwrap());
        let gate = Gate::close(&stream);
        first.record(&stream).unwrap();
        ipc.wait_event(&first).unwrap();
        let mark = ipc.mark().unwrap();
        ipc.record_event(&last).unwrap();
        assert!(!ipc.is_done(mark).unwrap() && !last.is_done().unwrap());
        gate.open();
        wait_for("the event", || last.is_done().unwrap());
        assert!(ipc.is_done(mark).unwrap());
    });
}

/// Also where the connection is dropped before its operations are done.
#[test]
fn closing_waits_for_the_operations_of_a_connection_and_names_its_peer() {
    with_memories(|comm, _| {
        for dropped in [false, true] {
            let (ipc, resources) = connection(comm);
            wait(&resources).unwrap();
            let gate = Gate::close(&ipc.queue.stream);
            let left = (!dropped).then_some(ipc);
            assert!(!resources.outstanding.any_undelivered(), "the device needs no thread");
            let error = wait(&resources).unwrap_err();
            assert_eq!((error.kind(), error.peer()), (ErrorKind::Timeout, Some(PEER)), "{error}");
            gate.open();
            wait_for("the operations", || wait(&resources).is_ok());
            drop(left);
        }
    });
}

#[test]
fn an_idle_connection_leaves_nothing_to_wait_for() {
    with_memories(|comm, _| {
        let (ipc, resources) = connection(comm);
        let mark = ipc.mark().unwrap();
        wait_for("the mark", || ipc.is_done(mark).unwrap());
        wait_for("the stream", || ipc.queue.stream.is_idle().unwrap());
        let connections = || format!("{:?}", resources.outstanding);
        let before = connections();
        drop(ipc);
        assert_eq!(connections(), before);
    });
}

/// Aborts the communicator and opens the gate just before the look that finds the operations done.
struct Late(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Hooks for Late {
    fn before(&self, function: &'static str) -> Option<CUresult> {
        let armed = (function == "cuStreamQuery").then(|| lock(&self.0).take()).flatten();
        armed.into_iter().for_each(|run| run());
        None
    }
}

/// Kernels leave early at an abort, and what was copied behind them may be no result of theirs.
#[test]
fn a_flush_that_ends_after_an_abort_says_so() {
    let late = Arc::new(Late(Mutex::new(None)));
    let driver = Driver::software(cuda_soft::driver_table()).unwrap().with_hooks(late.clone());
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let soon = || Deadline::after(std::time::Duration::from_secs(60));
    let bootstrap = bootstrap::local(1);
    let comm = Communicator::new(&bootstrap[0], &context, CommunicatorConfig::default(), soon()).unwrap();
    let connection = comm.connect(0, 0, Transport::CudaIpc).unwrap();
    comm.setup(soon()).unwrap();
    let connection = connection.get().unwrap();
    let (stream, event) = (Stream::new(&context).unwrap(), Event::new(&context).unwrap());
    let gate = Gate::close(&stream);
    event.record(&stream).unwrap();
    connection.wait_event(&event).unwrap();
    let aborted = comm.clone();
    *lock(&late.0) = Some(Box::new(move || {
        aborted.abort("on purpose");
        gate.open();
        // The device ends what waited.
        std::thread::sleep(std::time::Duration::from_millis(100));
    }));
    assert_eq!(connection.flush(soon()).unwrap_err().kind(), ErrorKind::Aborted);
}
