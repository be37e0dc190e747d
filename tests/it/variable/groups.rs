//! Groups of sends and receives: every call has another pattern.

use std::sync::Arc;

use aqueduct::collective::PointToPoint;
use aqueduct::gpu::{CaptureMode, Context, Device, GpuBuffer, GraphExec, Stream};

use super::CANARY;
use super::tables::{Draw, ROOM, Tables};
use crate::data::{assert_same, bytes};
use crate::group::{Rank, soon};

pub(super) fn run(rank: &Rank) {
    let (me, ranks) = (rank.me() as usize, rank.comm.size() as usize);
    let group = PointToPoint::prepare(&rank.comm, soon()).unwrap();
    let (from, to) = (rank.buffer(ROOM), rank.buffer(ROOM));
    let shown = group.buffer(&to, soon()).unwrap();
    let stream = Stream::new(rank.comm.context()).unwrap();
    let sends = |tables: &Tables| -> Vec<_> {
        let part = |r: usize| tables.from[me][r] as usize..(tables.from[me][r] + tables.sent[me][r]) as usize;
        // A rank that sends nothing need not say so.
        let some = (0..ranks).filter(|&r| tables.sent[me][r] > 0 || r % 2 == 0);
        some.map(|r| (r as u32, from.slice(part(r)).unwrap())).collect()
    };
    let receives = |tables: &Tables| -> Vec<_> {
        let part = |s: usize| tables.to[me][s] as usize..(tables.to[me][s] + tables.room[me][s]) as usize;
        let some = (0..ranks).filter(|&s| tables.room[me][s] > 0);
        some.map(|s| (s as u32, part(s))).collect()
    };
    let fill = |call: u32| {
        from.upload(0, &bytes(rank.me(), call, ROOM), soon()).unwrap();
        to.fill(CANARY, soon()).unwrap();
    };
    let check = |tables: &Tables, call: u32, what: &str| {
        let inputs: Vec<_> = (0..ranks).map(|rank| bytes(rank as u32, call, ROOM)).collect();
        let mut seen = vec![0_u8; ROOM];
        to.download(0, &mut seen, soon()).unwrap();
        let expected = tables.output(me, 1, &inputs, &vec![CANARY; ROOM]);
        assert_same(&seen, &expected, format_args!("{what}: rank {me}, call {call}"));
    };
    for call in 0..24 {
        let draw = [Draw::Any, Draw::One, Draw::Exact, Draw::Nothing][call as usize % 4];
        let tables = Tables::draw(ranks, draw, call);
        fill(call);
        group.launch(&stream, &shown, &sends(&tables), &receives(&tables)).unwrap();
        stream.synchronize(soon()).unwrap();
        check(&tables, call, "group");
    }
    // Many groups without a wait between: each keeps its own numbers. The last one alone writes every place that is compared.
    let tables = Tables::draw(ranks, Draw::Any, 40);
    fill(40);
    for _ in 0..40 {
        group.launch(&stream, &shown, &sends(&tables), &receives(&tables)).unwrap();
    }
    stream.synchronize(soon()).unwrap();
    check(&tables, 40, "many");
    // Captured groups are replayed with new data.
    let tables = Tables::draw(ranks, Draw::Any, 50);
    let exec = GraphExec::capture(&stream, CaptureMode::ThreadLocal, |_| {
        group.launch(&stream, &shown, &sends(&tables), &receives(&tables))
    })
    .unwrap();
    for call in 50..53 {
        fill(call);
        exec.launch(&stream).unwrap();
        stream.synchronize(soon()).unwrap();
        check(&tables, call, "replay");
    }
    // The last rank sends something that rank 0 does not receive.
    fill(60);
    let sends = if me == ranks - 1 { vec![(0, from.slice(..8).unwrap())] } else { Vec::new() };
    group.launch(&stream, &shown, &sends, &[]).unwrap();
    let error = stream.synchronize(soon()).unwrap_err().to_string();
    let words = format!("rank {} has 8 bytes for rank 0, which has room for 0", ranks - 1);
    assert!(error.contains(&words), "{error} does not say {words}");
    // The last rank passes a buffer that was not shown together with those of the others, and is named.
    let others = group.buffer(&to, soon()).unwrap();
    fill(61);
    group.launch(&stream, if me == ranks - 1 { &others } else { &shown }, &[], &[]).unwrap();
    let outcome = stream.synchronize(soon());
    if ranks > 1 {
        let error = outcome.unwrap_err().to_string();
        let words =
            format!("ranks {} and {} pass buffers that were not shown together", ranks - 1, ranks - 2);
        assert!(error.contains(&words), "{error} does not say {words}");
    } else {
        outcome.unwrap();
    }
    refusals(rank, &group);
    rank.barrier();
}

/// Lists that cannot be are refused by the host.
fn refusals(rank: &Rank, group: &PointToPoint) {
    let (from, to) = (rank.buffer(64), rank.buffer(64));
    let shown = group.buffer(&to, soon()).unwrap();
    let stream = Stream::new(rank.comm.context()).unwrap();
    let part = from.slice(..8).unwrap();
    let size = rank.comm.size();
    let refused = |sends: &[_], receives: &[_], words: &str| {
        let error = group.launch(&stream, &shown, sends, receives).unwrap_err();
        assert_eq!(error.op(), "PointToPoint::launch", "{error}");
        assert!(error.message().contains(words), "{error} does not say {words}");
    };
    refused(&[(size, part.clone())], &[], "there is no rank");
    refused(&[(0, part.clone()), (0, part.clone())], &[], "two sends of rank 0");
    refused(&[], &[(0, 0..8), (0, 8..16)], "two receives of rank 0");
    refused(&[], &[(0, 60..65)], "bytes 60..65 do not lie in the buffer, which has 64");
    refused(&[(0, to.slice(4..12).unwrap())], &[(0, 8..16)], "overlaps what comes from rank 0");
    let mine = rank.comm.context().device();
    let devices = Device::all(mine.driver()).unwrap();
    if let Some(other) = devices.iter().find(|device| device.ordinal() != mine.ordinal()) {
        let buffer = Arc::new(GpuBuffer::new(&Context::new(other).unwrap(), 64).unwrap());
        refused(&[(0, buffer.slice(..8).unwrap())], &[], "device");
    }
    if size > 1 {
        refused(&[], &[(0, 0..8), (1, 7..9)], "the receives of ranks 0 and 1 overlap");
    }
}
