//! Each mistake of a call is an error with the author's line, the operation and the chunk.

use super::super::{CollectiveProgram, Pattern};

#[test]
fn a_chunk_of_another_rank() {
    let program = CollectiveProgram::new("wrong", Pattern::all_reduce(2, 1));
    let (rank, other) = (program.rank(0), program.rank(1));
    rank.copy(rank.output().chunk(0), rank.input().chunk(0), 0);
    let line = line!() + 1;
    rank.copy(rank.output().chunk(1), other.input().chunk(1), 0);
    let error = program.build().unwrap_err().to_string();
    let expected = format!(
        "{}:{line}:10: rank 0 block 0 operation 1: the source is input chunk 1 of rank 1; use a chunk of rank 0 here",
        file!()
    );
    assert!(error.contains(&expected), "{error}");
}
