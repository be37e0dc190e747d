//! Connections whose operations are captured into a graph of the user's.

use std::sync::Arc;

use aqueduct::ErrorKind;
use aqueduct::comm::Transport;
use aqueduct::gpu::{CaptureMode, Event, GraphExec, HandlePolicy, Stream};

use crate::support::{all_succeed, bytes, processes, soon, threads};

const LEN: usize = 10_000;

#[test]
fn a_graph_holds_both_ends_of_a_write_that_it_captured() {
    threads(2, |rank| {
        let (me, peer) = (rank.me(), 1 - rank.me());
        let context = rank.comm.context();
        let mine = rank.registered(LEN);
        rank.comm.send_memory(&mine, peer, 0).unwrap();
        let theirs = rank.comm.recv_memory(peer, 0).unwrap();
        let connection = rank.comm.connect(peer, 0, Transport::CudaIpc).unwrap();
        rank.comm.setup(soon()).unwrap();
        let (received, connection) = (theirs.get().unwrap(), connection.get().unwrap());
        drop(theirs);

        let buffer = rank.buffer(LEN, HandlePolicy::Auto);
        let source = rank.comm.register_memory(&buffer, Transport::CudaIpc).unwrap();
        let stream = Stream::new(context).unwrap();
        let [fork, join] = [0, 1].map(|_| Event::new(context).unwrap());
        let graph = GraphExec::capture(&stream, CaptureMode::ThreadLocal, |stream| {
            fork.record(stream)?;
            connection.wait_event(&fork)?;
            connection.write(&received, 0, &source, 0, LEN)?;
            connection.record_event(&join)?;
            stream.wait_event(&join)
        })
        .unwrap();
        let (weak, end) = (Arc::downgrade(&buffer), Arc::downgrade(received.slice().unwrap().keep_alive()));
        drop((buffer, source, received));
        // Both are operations of the connection's own again, after which it drops what it kept for them.
        connection.flush(soon()).unwrap();
        context.reap();
        assert!(weak.upgrade().is_some() && end.upgrade().is_some(), "the graph is going to copy");
        assert_ne!(bytes(&mine), vec![7 + peer as u8; LEN]);
        rank.barrier();

        weak.upgrade().unwrap().fill(7 + me as u8, soon()).unwrap();
        graph.launch(&stream).unwrap();
        stream.synchronize(soon()).unwrap();
        rank.barrier();
        assert_eq!(bytes(&mine), vec![7 + peer as u8; LEN]);
        rank.barrier();
        // In one process the peer's memory is its buffer itself, which now nobody but this rank's graph holds.
        drop(mine);
        rank.barrier();
        assert!(end.upgrade().is_some(), "the graph could be launched again");
        drop(graph);
        context.reap();
        assert!(weak.upgrade().is_none(), "nothing is left that could copy");
        // Its owner learns by a message that this rank has let go.
        let deadline = soon();
        while end.upgrade().is_some() {
            deadline.check("test", "the release of the peer's memory").unwrap();
            std::thread::yield_now();
        }
        rank.barrier();
    });
}

/// A flush could only say something untrue: what it waits for does not run. A capture of mode `Global` would refuse calls of
/// other tests of one process, and be invalidated by them.
#[test]
fn a_connection_under_capture_is_not_flushed_and_one_over_tcp_is_not_captured() {
    let name = "captures::a_connection_under_capture_is_not_flushed_and_one_over_tcp_is_not_captured";
    processes(2, name, all_succeed, |rank| {
        let (context, peer) = (rank.comm.context(), 1 - rank.me());
        let copies = rank.comm.connect(peer, 0, Transport::CudaIpc).unwrap();
        let tcp = rank.comm.connect(peer, 1, Transport::Ethernet).unwrap();
        rank.comm.setup(soon()).unwrap();
        let [copies, tcp] = [copies, tcp].map(|pending| pending.get().unwrap());
        let stream = Stream::new(context).unwrap();
        let [fork, join] = [0, 1].map(|_| Event::new(context).unwrap());
        GraphExec::capture(&stream, CaptureMode::ThreadLocal, |stream| {
            fork.record(stream)?;
            copies.wait_event(&fork)?;
            let error = copies.flush(soon()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
            copies.record_event(&join)?;
            stream.wait_event(&join)
        })
        .unwrap();
        // The refusal leaves the capture as it is.
        for mode in [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed] {
            GraphExec::capture(&stream, mode, |stream| {
                fork.record(stream)?;
                let error = tcp.wait_event(&fork).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
                copies.wait_event(&fork)?;
                copies.record_event(&join)?;
                stream.wait_event(&join)
            })
            .unwrap();
        }
        fork.record(&stream).unwrap();
        tcp.wait_event(&fork).expect("recorded again, outside a capture");
        [copies, tcp].iter().for_each(|connection| connection.flush(soon()).unwrap());
        rank.barrier();
    });
}
