//! Ranks of several hosts, whose rows and parts go through ports.

use std::sync::Arc;

use aqueduct::collective::{CollectiveConfig, PointToPoint, VariableCollective, VariableCounts};
use aqueduct::comm::CommunicatorConfig;
use aqueduct::gpu::{GpuBuffer, Stream};
use aqueduct::plan::{Element, Kind, Reduction};

use super::{CANARY, run};
use crate::group::{Machine, Rank, soon, threads_on_hosts_with};

const SCRATCH: usize = 16 << 20;

/// Little enough that parts of a reduce-scatter can be too long for it.
fn little() -> CommunicatorConfig {
    crate::group::config().with_scratch_bytes(SCRATCH)
}

fn hosts(names: &[&str], test: &str) {
    let test = format!("variable::over_hosts::{test}");
    threads_on_hosts_with(Machine::Software, names, &test, &little(), |rank| every_case(&rank));
}

fn every_case(rank: &Rank) {
    run(rank);
    long_parts(rank);
    long_messages(rank);
    in_a_row(rank, 8);
}

#[test]
fn of_one_rank() {
    hosts(&["a", "b"], "of_one_rank");
}

#[test]
fn of_two_ranks_in_turns() {
    hosts(&["a", "b", "a", "b"], "of_two_ranks_in_turns");
}

#[test]
fn of_different_numbers_of_ranks() {
    hosts(&["a", "b", "b"], "of_different_numbers_of_ranks");
}

/// Ranks whose control areas are so different that their scratch begins elsewhere.
#[test]
fn of_one_rank_and_of_five() {
    let test = "variable::over_hosts::of_one_rank_and_of_five";
    threads_on_hosts_with(Machine::Software, &["a", "b", "b", "b", "b", "b"], test, &little(), |rank| {
        long_parts(&rank);
        in_a_row(&rank, 2);
    });
}

/// Parts that are reduced lie in scratch: one byte more than its chunks is an error on every rank, which moves nothing.
fn long_parts(rank: &Rank) {
    let (comm, ranks) = (&rank.comm, rank.comm.size() as usize);
    let peers = comm.peers();
    // A sixteenth of the scratch, in two halves with a chunk for each rank of another host.
    let far = peers.iter().map(|of| peers.iter().filter(|peer| !peer.same_host(of)).count());
    let chunks = 2 * far.max().unwrap();
    let most = (SCRATCH / 16 / chunks) / 128 * 128;
    let config = CollectiveConfig::default().with_variants([(Element::U8, Reduction::Sum)]);
    let scatter = VariableCollective::prepare(comm, Kind::ReduceScatter, config, soon()).unwrap();
    let [input, output] = [ranks * (most + 1), most + 1].map(|bytes| rank.buffer(bytes));
    input.fill(1 + rank.me() as u8, soon()).unwrap();
    let shown = scatter.buffers(&input, &output, soon()).unwrap();
    let stream = Stream::new(comm.context()).unwrap();
    let call = |bytes: usize| {
        output.fill(CANARY, soon()).unwrap();
        let array = |numbers: Vec<u64>| {
            let buffer = rank.buffer(8 * ranks);
            buffer.upload(0, &numbers, soon()).unwrap();
            buffer.slice(..).unwrap()
        };
        // The last rank's part is the long one.
        let length = |to: usize| if to == ranks - 1 { bytes as u64 } else { 5 };
        let counts = array((0..ranks).map(length).collect());
        let offsets = array((0..ranks).map(|to| (to * (most + 1)) as u64).collect());
        let counts = VariableCounts::of_parts(&counts, &offsets);
        scatter.launch(&stream, &shown, &counts, Element::U8, Reduction::Sum).unwrap();
        let outcome = stream.synchronize(soon()).map_err(|error| error.message().to_owned());
        let mut seen = vec![0_u8; most + 1];
        output.download(0, &mut seen, soon()).unwrap();
        let mine = if rank.me() as usize == ranks - 1 { bytes } else { 5 };
        (outcome, seen, mine)
    };
    let sum = (1..=ranks as u8).sum::<u8>();
    for bytes in [most, most + 1, most] {
        let (outcome, seen, mine) = call(bytes);
        if bytes > most {
            let message = outcome.unwrap_err();
            let words = format!("longer than the {most} bytes of scratch");
            assert!(message.contains(&words), "{message} does not say {words}");
            assert_eq!(seen, vec![CANARY; most + 1]);
        } else {
            outcome.unwrap();
            assert!(
                seen[..mine].iter().all(|&byte| byte == sum)
                    && seen[mine..].iter().all(|&byte| byte == CANARY)
            );
        }
    }
    rank.barrier();
}

/// Messages to other hosts pass through memory of a size, and others do not.
fn long_messages(rank: &Rank) {
    const ROOM: usize = 1000;
    let (comm, me, ranks) = (&rank.comm, rank.me() as usize, rank.comm.size() as usize);
    let peers = comm.peers();
    let is_far = |from: usize, to: usize| !peers[from].same_host(&peers[to]);
    // Rounded up to 1024.
    let config = CollectiveConfig::default().with_staging_bytes(ROOM);
    let group = PointToPoint::prepare_with(comm, config, soon()).unwrap();
    let [from, to]: [Arc<GpuBuffer>; 2] = [(); 2].map(|()| rank.buffer(4 * ROOM * ranks));
    let shown = group.buffer(&to, soon()).unwrap();
    let stream = Stream::new(comm.context()).unwrap();
    let receives: Vec<_> =
        (0..ranks).map(|peer| (peer as u32, peer * 4 * ROOM..(peer + 1) * 4 * ROOM)).collect();
    // What a rank sends to each: where it begins in its memory, and how long it is.
    let calls = std::cell::Cell::new(0);
    let call = |sent: &dyn Fn(usize, usize) -> (usize, usize), fails: bool| {
        calls.set(calls.get() + 1);
        let byte = |place: usize, from: usize| (7 * place + 31 * from + 57 * calls.get()) as u8;
        let data: Vec<u8> = (0..4 * ROOM * ranks).map(|place| byte(place, me)).collect();
        from.upload(0, &data, soon()).unwrap();
        to.fill(CANARY, soon()).unwrap();
        rank.barrier();
        let sends = (0..ranks).map(|peer| {
            let (at, len) = sent(me, peer);
            (peer as u32, from.slice(at..at + len).unwrap())
        });
        group.launch(&stream, &shown, &sends.collect::<Vec<_>>(), &receives).unwrap();
        let outcome = stream.synchronize(soon());
        let mut seen = vec![0_u8; 4 * ROOM * ranks];
        to.download(0, &mut seen, soon()).unwrap();
        if fails {
            let error = outcome.unwrap_err();
            let words =
                "rank 0 sends more to ranks of other hosts than it has memory for (its log says how much";
            assert!(error.message().contains(words), "{error} does not say {words}");
            assert_eq!(seen, vec![CANARY; 4 * ROOM * ranks]);
            return;
        }
        outcome.unwrap();
        for (peer, seen) in seen.chunks_exact(4 * ROOM).enumerate() {
            let (at, len) = sent(peer, me);
            let expected = (at..at + len).map(|place| byte(place, peer));
            let expected: Vec<u8> = expected.chain(std::iter::repeat(CANARY)).take(4 * ROOM).collect();
            assert_eq!(seen, expected, "rank {peer} to rank {me}");
        }
    };
    // To this host goes more than there is of that memory, and the same to all others.
    call(&|from, to| if is_far(from, to) { (9, 1024) } else { (to, 4 * ROOM - 8) }, false);
    call(&|from, to| if is_far(from, to) { (9, 1025 - usize::from(from > 0)) } else { (to, 4) }, true);
    // Pieces that begin at one place and are not equally long.
    call(&|from, to| if is_far(from, to) { (50, 100 + to) } else { (to, 4) }, false);
    let far = |from: usize| (0..ranks).filter(move |&to| is_far(from, to));
    if (0..ranks).all(|from| far(from).count() < 3) {
        // Two of 500 bytes are two of 512.
        call(&|from, to| if is_far(from, to) { (10 * to, 500) } else { (to, 4) }, false);
        let most = far(0).count();
        call(
            &|from, to| if is_far(from, to) { (10 * to, 512 + usize::from(from == 0)) } else { (to, 4) },
            most > 1,
        );
    }
    rank.barrier();
}

/// Calls that nobody waits for between: memory that proxies read and write is used again in each.
fn in_a_row(rank: &Rank, calls: usize) {
    const MOST: usize = 3000;
    let (comm, me, ranks) = (&rank.comm, rank.me() as usize, rank.comm.size() as usize);
    let config = CollectiveConfig::default().with_staging_bytes(ranks * (MOST + 128));
    let group = PointToPoint::prepare_with(comm, config, soon()).unwrap();
    let variants = CollectiveConfig::default().with_variants([(Element::U8, Reduction::Sum)]);
    let scatter = VariableCollective::prepare(comm, Kind::ReduceScatter, variants, soon()).unwrap();
    let stream = Stream::new(comm.context()).unwrap();
    // Of each call, where a part for a rank or of a rank begins in the buffers, and how long it is.
    let at = |call: usize, peer: usize| (call * ranks + peer) * MOST;
    let length = |call: usize, from: usize, to: usize| (call * 977 + from * 131 + to * 37) % MOST;
    let part = |call: usize, to: usize| (call * 613 + to * 251) % MOST;
    let byte = |place: usize, from: usize| (place * 3 + from * 13) as u8;
    let [input, moved] = [(); 2].map(|()| rank.buffer(calls * ranks * MOST));
    let data: Vec<u8> = (0..calls * ranks * MOST).map(|place| byte(place, me)).collect();
    input.upload(0, &data, soon()).unwrap();
    moved.fill(CANARY, soon()).unwrap();
    let shown = group.buffer(&moved, soon()).unwrap();
    let numbers = rank.buffer(calls * 16 * ranks);
    let reductions: Vec<_> = (0..calls)
        .map(|call| {
            let reduced = rank.buffer(MOST);
            reduced.fill(CANARY, soon()).unwrap();
            let buffers = scatter.buffers(&input, &reduced, soon()).unwrap();
            let array = |nth: usize, numbers_of: &dyn Fn(usize) -> usize| {
                let array =
                    numbers.slice((2 * call + nth) * 8 * ranks..(2 * call + nth + 1) * 8 * ranks).unwrap();
                array
                    .upload(0, &(0..ranks).map(|to| numbers_of(to) as u64).collect::<Vec<_>>(), soon())
                    .unwrap();
                array
            };
            let (counts, offsets) = (array(0, &|to| part(call, to)), array(1, &|to| at(call, to)));
            (reduced, buffers, VariableCounts::of_parts(&counts, &offsets))
        })
        .collect();
    rank.barrier();
    for (call, (_, buffers, counts)) in reductions.iter().enumerate() {
        let sent = |peer: usize| at(call, peer)..at(call, peer) + length(call, me, peer);
        let sends: Vec<_> = (0..ranks).map(|peer| (peer as u32, input.slice(sent(peer)).unwrap())).collect();
        let receives = (0..ranks).map(|peer| (peer as u32, at(call, peer)..at(call, peer + 1)));
        group.launch(&stream, &shown, &sends, &receives.collect::<Vec<_>>()).unwrap();
        scatter.launch(&stream, buffers, counts, Element::U8, Reduction::Sum).unwrap();
    }
    stream.synchronize(soon()).unwrap();
    let mut seen = vec![0_u8; calls * ranks * MOST];
    moved.download(0, &mut seen, soon()).unwrap();
    for (call, (reduced, ..)) in reductions.iter().enumerate() {
        for from in 0..ranks {
            let came = (0..length(call, from, me)).map(|place| byte(at(call, me) + place, from));
            let expected: Vec<u8> = came.chain(std::iter::repeat(CANARY)).take(MOST).collect();
            assert!(seen[at(call, from)..][..MOST] == expected, "call {call}: rank {from} to rank {me}");
        }
        let mut sum = vec![0_u8; MOST];
        reduced.download(0, &mut sum, soon()).unwrap();
        let of_all = |place: usize| {
            (0..ranks).fold(0_u8, |sum, from| sum.wrapping_add(byte(at(call, me) + place, from)))
        };
        let expected = (0..part(call, me)).map(of_all).chain(std::iter::repeat(CANARY));
        assert!(sum == expected.take(MOST).collect::<Vec<_>>(), "call {call}: the sum of rank {me}");
    }
    rank.barrier();
}

mod hardware {
    use super::*;

    /// Ranks that take each other for ones of another host.
    #[test]
    #[ignore = "needs two NVIDIA GPUs"]
    fn of_one_rank() {
        let test = "variable::over_hosts::hardware::of_one_rank";
        threads_on_hosts_with(Machine::Hardware, &["a", "b"], test, &little(), |rank| every_case(&rank));
    }
}
