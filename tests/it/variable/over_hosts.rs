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
    let far: Vec<usize> = (0..ranks).filter(|&peer| !peers[me].same_host(&peers[peer])).collect();
    let near: Vec<usize> = (0..ranks).filter(|peer| !far.contains(peer)).collect();
    let config = CollectiveConfig::default().with_staging_bytes(ROOM);
    let group = PointToPoint::prepare_with(comm, config, soon()).unwrap();
    let [from, to]: [Arc<GpuBuffer>; 2] = [(); 2].map(|()| rank.buffer(4 * ROOM * ranks));
    let shown = group.buffer(&to, soon()).unwrap();
    let stream = Stream::new(comm.context()).unwrap();
    let refused = |peers: &[usize], bytes: usize| {
        let sends: Vec<_> = peers.iter().map(|&peer| (peer as u32, from.slice(..bytes).unwrap())).collect();
        let error = group.launch(&stream, &shown, &sends, &[]).unwrap_err();
        let words = "bytes go to ranks of other hosts, and the memory for such has 1000";
        assert!(error.message().contains(words), "{error} does not say {words}");
    };
    refused(&far[..1], 1025);
    if far.len() > 1 {
        refused(&far, 900);
    }
    // To this host goes more than there is of that memory, and to one other rank all of it, from and to one who is far from both.
    from.fill(1 + rank.me() as u8, soon()).unwrap();
    to.fill(CANARY, soon()).unwrap();
    let partner = |of: usize| (0..ranks).find(|&peer| !peers[of].same_host(&peers[peer])).unwrap();
    let mut sends: Vec<_> = near.iter().map(|&peer| (peer as u32, from.slice(..4 * ROOM).unwrap())).collect();
    sends.push((partner(me) as u32, from.slice(..ROOM).unwrap()));
    let receives: Vec<_> =
        (0..ranks).map(|peer| (peer as u32, peer * 4 * ROOM..(peer + 1) * 4 * ROOM)).collect();
    group.launch(&stream, &shown, &sends, &receives).unwrap();
    stream.synchronize(soon()).unwrap();
    let mut seen = vec![0_u8; 4 * ROOM * ranks];
    to.download(0, &mut seen, soon()).unwrap();
    for (peer, seen) in seen.chunks_exact(4 * ROOM).enumerate() {
        let came = match (near.contains(&peer), partner(peer) == me) {
            (true, _) => 4 * ROOM,
            (_, true) => ROOM,
            _ => 0,
        };
        let expected = |place: usize| if place < came { 1 + peer as u8 } else { CANARY };
        assert!(
            seen.iter().enumerate().all(|(place, &byte)| byte == expected(place)),
            "rank {peer} to rank {me}"
        );
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
