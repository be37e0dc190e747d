//! Broadcasts and barriers of some ranks, over threads.

use std::time::Duration;

use super::*;
use crate::bootstrap::{LocalBootstrap, local};

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

/// Long enough for ranks that come, for those who wait for one that does not.
fn shortly() -> Deadline {
    Deadline::after(Duration::from_millis(1500))
}

/// Runs `body` as every rank, each in its thread; the results in rank order.
fn ranks<T: Send>(size: u32, body: impl Fn(&LocalBootstrap) -> T + Sync) -> Vec<T> {
    let all = local(size);
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.iter().map(|b| scope.spawn(|| body(b))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn every_root_is_heard_by_ranks_that_do_not_wait_for_each_other() {
    for size in 1..=9 {
        ranks(size, |b| {
            for root in (0..size).chain((0..size).rev()) {
                let news = vec![root as u8; 3 * root as usize];
                let mine = if b.rank() == root { &news[..] } else { b"not looked at" };
                assert_eq!(b.broadcast(root, mine, soon()).unwrap(), news, "root {root} of {size}");
            }
        });
    }
}

#[test]
fn a_broadcast_that_cannot_be_is_an_error_for_all() {
    let errors = ranks(5, |b| b.broadcast(2, &vec![0; MAX_MESSAGE + 1], soon()).unwrap_err());
    for (rank, error) in errors.into_iter().enumerate() {
        let kind = if rank == 2 { ErrorKind::InvalidUsage } else { ErrorKind::Remote };
        assert_eq!((error.op(), error.kind()), ("broadcast", kind), "{error}");
        assert!(error.message().contains("broadcast them in parts"), "{error}");
    }
    let error = local(2)[1].broadcast(2, b"", soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidUsage);
    assert!(error.message().contains("no rank 2; ranks are 0 to 1"), "{error}");
}

#[test]
fn a_gathering_of_too_much_names_who_gave_it_on_all_ranks() {
    for (size, culprit) in [(1, 0), (2, 0), (3, 1), (5, 2)] {
        let errors = ranks(size, |b| {
            let mine = vec![7; if b.rank() == culprit { MAX_MESSAGE + 1 } else { 1 }];
            let error = b.all_gather(&mine, soon()).map(|_| ()).unwrap_err();
            // Nothing of the first is left for the second.
            let all = b.all_gather(&[b.rank() as u8], soon()).unwrap();
            assert!(all.iter().zip(0..).all(|(block, rank)| *block == [rank]), "{all:?}");
            error
        });
        for (rank, error) in (0..).zip(errors) {
            let kind = if rank == culprit { ErrorKind::InvalidUsage } else { ErrorKind::Remote };
            assert_eq!(
                (error.op(), error.kind(), error.peer()),
                ("all_gather", kind, Some(culprit)),
                "{error}"
            );
            assert!(error.message().contains("gather them in parts"), "{error}");
        }
    }
}

#[test]
fn the_longest_message_is_broadcast_whole() {
    let long = |b: &LocalBootstrap| b.broadcast(1, &vec![b.rank() as u8; MAX_MESSAGE], soon()).unwrap();
    for heard in ranks(3, long) {
        assert!(heard.len() == MAX_MESSAGE && heard.iter().all(|byte| *byte == 1));
    }
}

/// Whichever of the two is the root, rank 3 hears from rank 2.
#[test]
fn a_rank_that_names_another_root_is_told_and_takes_nothing() {
    let all = local(4);
    for b in &all[..3] {
        assert_eq!(b.broadcast(0, b"news", soon()).unwrap(), b"news");
    }
    let error = all[3].broadcast(2, b"", shortly()).unwrap_err();
    assert_eq!((error.op(), error.kind(), error.peer()), ("broadcast", ErrorKind::Timeout, Some(2)));
    assert!(error.message().contains("all name the same root"), "{error}");
    assert_eq!(all[3].broadcast(0, b"", soon()).unwrap(), b"news");
}

/// All ranks of `size` that are a number, written in binary.
fn group(bits: u32, size: u32) -> Vec<u32> {
    (0..size).filter(|rank| bits >> rank & 1 == 1).collect()
}

/// No rank leaves before all have come: each that leaves finds the marks of all.
#[test]
fn nobody_leaves_a_group_barrier_before_all_of_its_ranks_have_come() {
    const SIZE: u32 = 5;
    for bits in 1..1 << SIZE {
        let came = crate::sync::AtomicU32::new(0);
        ranks(SIZE, |b| {
            let mut ranks = group(bits, SIZE);
            if !ranks.contains(&b.rank()) {
                return;
            }
            // The order of the list means nothing.
            ranks.rotate_left(b.rank() as usize % (bits.count_ones() as usize));
            for lap in 1..=2 {
                came.fetch_add(1, crate::sync::Ordering::SeqCst);
                b.group_barrier(&ranks, soon()).unwrap();
                assert!(
                    came.load(crate::sync::Ordering::SeqCst) >= lap * bits.count_ones(),
                    "ranks {ranks:?}"
                );
            }
        });
    }
}

/// In both groups, rank 1 sends its first message to rank 0.
#[test]
fn messages_of_one_group_do_not_end_the_barrier_of_another() {
    let all = local(3);
    std::thread::scope(|scope| {
        let others = [1, 2].map(|rank: usize| {
            let b = &all[rank];
            scope.spawn(|| b.group_barrier(&[0, 1, 2], soon()))
        });
        let error = all[0].group_barrier(&[0, 1], shortly()).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::Timeout, Some(1)), "{error}");
        all[0].group_barrier(&[2, 0, 1], soon()).unwrap();
        others.into_iter().for_each(|other| other.join().unwrap().unwrap());
    });
    let every = local(4);
    std::thread::scope(|scope| {
        // Two threads of ranks 0 and 1, in groups that share them, and the barrier of all.
        for b in &every {
            for ranks in [&[0, 1][..], &[0, 1, 2], &[0, 1, 3], &[1, 2, 3]] {
                if ranks.contains(&b.rank()) {
                    scope.spawn(move || (0..50).for_each(|_| b.group_barrier(ranks, soon()).unwrap()));
                }
            }
            scope.spawn(move || (0..50).for_each(|_| b.barrier(soon()).unwrap()));
        }
    });
}

#[test]
fn lists_that_differ_end_in_timeouts_that_name_whom_they_wait_for() {
    let errors = ranks(3, |b| {
        let ranks: &[u32] = if b.rank() == 0 { &[0, 1] } else { &[0, 1, 2] };
        b.group_barrier(ranks, shortly()).unwrap_err()
    });
    let waits = [("0, 1", 1), ("0, 1, 2", 0), ("0, 1, 2", 0)];
    for (error, (ranks, peer)) in errors.iter().zip(waits) {
        let seen = (error.op(), error.kind(), error.peer());
        assert_eq!(seen, ("group_barrier", ErrorKind::Timeout, Some(peer)), "{error}");
        assert!(error.message().contains(&format!("rank {peer} has not called group_barrier()")), "{error}");
        assert!(error.message().contains(&format!("the same ranks, here {ranks}")), "{error}");
    }
}

#[test]
fn lists_that_are_no_group() {
    let b = &local(3)[1];
    for (ranks, text) in [
        (&[0, 1, 3][..], "no rank 3; ranks are 0 to 2"),
        (&[2, 1, 2], "rank 2 is named twice"),
        (&[0, 2], "this rank, 1, is not among the ranks 0, 2"),
        (&[], "this rank, 1, is not among"),
    ] {
        let error = b.group_barrier(ranks, soon()).unwrap_err();
        assert_eq!((error.op(), error.kind()), ("group_barrier", ErrorKind::InvalidUsage), "{error}");
        assert!(error.message().contains(text), "{error}");
    }
    b.group_barrier(&[1], soon()).unwrap();
}

#[test]
fn a_barrier_says_who_did_not_come() {
    let error = local(2)[0].barrier(shortly()).unwrap_err();
    assert_eq!((error.op(), error.kind(), error.peer()), ("barrier", ErrorKind::Timeout, Some(1)));
    assert!(error.message().contains("rank 1 has not called barrier()"), "{error}");
    let error = local(2)[0].all_gather(b"", shortly()).unwrap_err();
    assert!(error.message().contains("rank 1 has not called all_gather()"), "{error}");
}

/// The peer is gone after its first message: a length that is not refused is waited for in vain.
#[test]
fn a_message_that_is_too_long_is_refused_before_its_rest_comes() {
    const TAG: u64 = 7;
    for blocks in [0, 1, 5] {
        let limit = blocks as u64 * (MAX_MESSAGE as u64 + 4) + MAX_HEAD;
        for (announced, kind) in
            [(limit, ErrorKind::PeerLost), (limit + 1, ErrorKind::Remote), (u64::MAX, ErrorKind::Remote)]
        {
            let [here, there] = <[LocalBootstrap; 2]>::try_from(local(2)).unwrap();
            there.send(0, TAG, &announced.to_le_bytes(), soon()).unwrap();
            drop(there);
            let error = recv_long(&here, 1, TAG, blocks, soon()).unwrap_err();
            assert_eq!(error.kind(), kind, "{announced} bytes for {blocks} blocks: {error}");
        }
    }
}
