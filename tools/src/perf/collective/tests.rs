use aqueduct::plan::{Element, Kind, Reduction};

use super::*;
use crate::job::tests::as_two_ranks;
use crate::perf::args::Args;
use crate::perf::progress::Progress;

/// The guard of a result of ten elements holds what a call for eleven writes there.
#[test]
fn a_call_that_writes_behind_the_result_is_found() {
    let wrong = as_two_ranks(|rank| {
        let session = Session { rank, progress: Progress::default() };
        let args = Args::all_reduce().common;
        let shape = Shape::built_in(Kind::AllReduce, 2);
        let mut bench = Bench::built_in(&session, &args, shape, true, &[64]).unwrap();
        let right = bench.checked_call(44, Place::OutOfPlace).unwrap();
        let Common { datatype: ty, op, .. } = args;
        let shorter = Call { ty, op, ranks: 2, iteration: bench.iteration, count: 10 };
        (right, bench.wrong(&shorter, Place::OutOfPlace).unwrap())
    });
    assert_eq!(wrong, [(Some(0), Some(4)); 2]);
}

/// Each call has data of its own, or the result of an earlier one would pass for that of a call that writes nothing.
#[test]
fn the_result_of_an_earlier_call_is_wrong() {
    let wrong = as_two_ranks(|rank| {
        let session = Session { rank, progress: Progress::default() };
        let args = Args::all_reduce().common;
        let mut bench =
            Bench::built_in(&session, &args, Shape::built_in(Kind::AllReduce, 2), true, &[64]).unwrap();
        let right = bench.checked_call(44, Place::OutOfPlace).unwrap();
        let next = bench.paint(44, Place::OutOfPlace).unwrap();
        (right, bench.wrong(&next, Place::OutOfPlace).unwrap() > Some(0))
    });
    assert_eq!(wrong, [(Some(0), true); 2]);
}

/// Calls of every type and reduction are right, and one wrong bit of one rank's result is one wrong value.
#[test]
fn every_type_and_reduction_is_right_and_a_wrong_value_is_found() {
    as_two_ranks(|rank| {
        let session = Session { rank, progress: Progress::default() };
        for (index, ty) in Element::ALL.into_iter().enumerate() {
            for (turn, op) in Reduction::ALL.into_iter().enumerate() {
                let common = Common { datatype: ty, op, ..Args::all_reduce().common };
                let kind = [Kind::AllReduce, Kind::ReduceScatter, Kind::Reduce { root: 1 }]
                    [(index + turn) % 3]
                    .clone();
                let shape = Shape::built_in(kind.clone(), 2);
                let bytes = 514 * ty.bytes();
                let mut bench = Bench::built_in(&session, &common, shape, true, &[bytes as u64]).unwrap();
                let what = format!("{kind:?} {ty:?} {op:?}");
                assert_eq!(bench.checked_call(bytes, Place::OutOfPlace).unwrap(), Some(0), "{what}");
                if turn == index % Reduction::ALL.len() {
                    spoil(&bench, bytes, &what);
                }
            }
        }
    });
}

/// Flips each bit of one element of the result in turn: one wrong value where the rank has a result.
fn spoil(bench: &Bench<'_>, bytes: usize, what: &str) {
    let (rank, common) = (bench.session.rank, bench.common);
    let call = Call {
        ty: common.datatype,
        op: common.op,
        ranks: 2,
        iteration: bench.iteration,
        count: bytes / common.datatype.bytes(),
    };
    let has_result = !bench.shape.expected(&call, rank.bootstrap.rank() as usize, bytes).is_empty();
    let at = 100 * call.ty.bytes();
    for bit in 0..8 * call.ty.bytes() {
        let mut byte = [0_u8];
        bench.output.download(at + bit / 8, &mut byte, rank.deadline()).unwrap();
        bench.output.upload(at + bit / 8, &[byte[0] ^ 1 << (bit % 8)], rank.deadline()).unwrap();
        let wrong = bench.wrong(&call, Place::OutOfPlace).unwrap();
        assert_eq!(wrong, Some(u64::from(has_result)), "{what}, bit {bit}");
        bench.output.upload(at + bit / 8, &byte, rank.deadline()).unwrap();
    }
}
