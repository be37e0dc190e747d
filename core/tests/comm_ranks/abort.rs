//! Aborts within one process.

use aqueduct::ErrorKind;
use aqueduct::comm::Transport;
use aqueduct::gpu::Event;

use crate::support::{soon, threads};

#[test]
fn an_abort_ends_all_waits_of_all_ranks_with_its_reason() {
    threads(3, |rank| {
        let connection = if rank.me() != 2 {
            let connection = rank.comm.connect(1 - rank.me(), 0, Transport::CudaIpc).unwrap();
            rank.comm.setup(soon()).unwrap();
            Some(connection.get().unwrap())
        } else {
            None
        };
        // Rank 2 never asks for the other end.
        let waiting = (rank.me() != 2).then(|| rank.comm.recv_memory(2, 9).unwrap());
        rank.barrier();
        if rank.me() == 2 {
            rank.comm.abort("the input is wrong");
        }
        if let Some(waiting) = waiting {
            let error = rank.comm.setup(soon()).unwrap_err();
            assert_eq!((error.kind(), error.peer()), (ErrorKind::Aborted, Some(2)), "{error}");
            assert!(error.message().contains("the input is wrong"), "{error}");
            assert!(waiting.get().unwrap_err().message().contains("the input is wrong"));
        }
        assert_eq!(rank.comm.check().unwrap_err().kind(), ErrorKind::Aborted);
        if let Some(connection) = connection {
            assert_eq!(connection.flush(soon()).unwrap_err().kind(), ErrorKind::Aborted);
            // Work behind the event would wait for a connection that is over.
            let event = Event::new(rank.comm.context()).unwrap();
            for ended in [connection.wait_event(&event), connection.record_event(&event)] {
                assert_eq!(ended.unwrap_err().kind(), ErrorKind::Aborted);
            }
        }
        assert!(rank.comm.abort_record().is_none(), "no kernel was running");
        assert!(rank.comm.connect(0, 77, Transport::CudaIpc).is_err());
        rank.barrier();
    });
}

#[test]
fn setup_with_a_rank_that_left_fails_and_names_it() {
    threads(2, |rank| {
        if rank.me() == 1 {
            rank.barrier();
            return;
        }
        rank.barrier();
        let pending = rank.comm.connect(1, 0, Transport::CudaIpc).unwrap();
        let error = rank.comm.setup(soon()).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(1)), "{error}");
        assert!(error.message().contains("good order"), "{error}");
        assert!(pending.get().is_err());
        rank.comm.check().expect("leaving is not a failure");
    });
}
