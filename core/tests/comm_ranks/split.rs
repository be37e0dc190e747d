//! Several communicators from one.

use std::time::Duration;

use aqueduct::comm::{Communicator, Transport};
use aqueduct::gpu::HandlePolicy;
use aqueduct::{Deadline, ErrorKind};

use crate::support::{Rank, bytes, paint, soon, threads};

/// Sends memory around the ranks of `comm`: each finds the paint of the one before it, whose rank in the first communicator is
/// `previous`.
fn works(rank: &Rank, comm: &Communicator, previous: u32) {
    const LEN: usize = 1000;
    let (me, size) = (comm.rank(), comm.size());
    let mine = comm.register_memory(&rank.buffer(LEN, HandlePolicy::Auto), Transport::CudaIpc).unwrap();
    comm.send_memory(&mine, (me + 1) % size, 0).unwrap();
    let theirs = comm.recv_memory((me + size - 1) % size, 0).unwrap();
    comm.setup(soon()).unwrap();
    assert_eq!(bytes(&theirs.get().unwrap()), paint(LEN, previous));
}

#[test]
fn colors_make_groups_and_keys_their_order_while_the_old_one_goes_on() {
    threads(4, |rank| {
        let me = rank.me();
        // Ranks 0, 2 and 3 backwards; rank 1 in none.
        let color = (me != 1).then_some(7);
        let made = rank.comm.split(color, -(me as i32), soon()).unwrap();
        assert_eq!(made.is_some(), me != 1);
        if let Some(made) = &made {
            let place = [2, u32::MAX, 1, 0][me as usize];
            assert_eq!((made.rank(), made.size()), (place, 3));
            works(&rank, made, [2, u32::MAX, 3, 0][me as usize]);
        }
        // Two groups, with equal keys: the old order.
        let half = rank.comm.split(Some(me % 2), 0, soon()).unwrap().unwrap();
        assert_eq!((half.rank(), half.size()), (me / 2, 2));
        works(&rank, &half, (me + 2) % 4);
        works(&rank, &rank.comm, (me + 3) % 4);
        rank.barrier();
        // A failure in one group does not affect another.
        if me == 0 {
            half.abort("the input is wrong");
        }
        if me == 2 {
            while half.check().is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        rank.barrier();
        assert_eq!(half.check().is_err(), me % 2 == 0);
        rank.comm.check().unwrap();
        if let Some(made) = &made {
            made.check().unwrap();
        }
        rank.barrier();
    });
}

#[test]
fn a_duplicate_has_the_same_ranks_and_fails_by_itself() {
    threads(4, |rank| {
        let (first, second) = (rank.comm.duplicate(soon()).unwrap(), rank.comm.duplicate(soon()).unwrap());
        for comm in [&first, &second, &rank.comm] {
            assert_eq!((comm.rank(), comm.size()), (rank.me(), 4));
            works(&rank, comm, (rank.me() + 3) % 4);
        }
        rank.barrier();
        if rank.me() == 3 {
            rank.comm.abort("the input is wrong");
        }
        while rank.comm.check().is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
        first.check().unwrap();
        let error = rank.comm.duplicate(soon()).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::Aborted, Some(3)), "{error}");
        // One that was made can be split again.
        let half = second.split(Some(rank.me() / 2), 0, soon()).unwrap().unwrap();
        works(&rank, &half, rank.me() ^ 1);
        rank.barrier();
    });
}

#[test]
fn a_rank_that_does_not_split_is_an_error_for_the_others_and_harms_nothing() {
    threads(4, |rank| {
        if rank.me() != 2 {
            let error = rank.comm.split(Some(0), 0, Deadline::after(Duration::from_millis(700))).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            assert!(error.message().contains("split()"), "{error}");
            if rank.me() == 0 {
                assert_eq!(error.peer(), Some(2), "{error}");
            }
        }
        rank.barrier();
        rank.comm.check().unwrap();
        if rank.me() == 2 {
            // Too late: the others have given that call up, and so does this one.
            let error = rank.comm.split(Some(0), 0, soon()).unwrap_err();
            assert_eq!((error.kind(), error.peer()), (ErrorKind::Timeout, Some(0)), "{error}");
        }
        rank.barrier();
        let made = rank.comm.split(Some(0), 0, soon()).unwrap().unwrap();
        assert_eq!((made.rank(), made.size()), (rank.me(), 4));
        rank.barrier();
    });
}
