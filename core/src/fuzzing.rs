//! The decoders, one function each, for the fuzz targets of the `fuzz` package; not part of the API.
//!
//! Each takes what arrived and gives what it means, encoded again, or `None` if it was refused. What has no encoder gives
//! a text that says all of it. Beyond that a function asserts what must hold of its decoder whatever arrives.

pub use crate::bootstrap::fuzzing::*;
pub use crate::collective::fuzzing::collective_word;
pub use crate::comm::fuzzing::*;
pub use crate::message::fuzzing::*;
pub use crate::net::fuzzing::*;
pub use crate::plan::fuzzing::plan_word;

use std::collections::BTreeMap;

use crate::env::Env;
use crate::fault::Rules;
use crate::plan::simulate::Config;
use crate::plan::{Op, Operation, Plan, RankPlan, Reduction, check, file, oracle, programs, simulate};
use crate::rdma::{QpAddress, RemoteRegion};
use crate::wire::{Reader, Writer};

/// A queue pair's address.
pub fn qp_address(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut r = Reader::new(bytes);
    let address = QpAddress::decode(&mut r).ok()?;
    r.finish().ok()?;
    let mut w = Writer::new();
    address.encode(&mut w);
    Some(w.finish())
}

/// A remote memory region, and the ranges in it.
pub fn remote_region(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut r = Reader::new(bytes);
    let region = RemoteRegion::decode(&mut r).ok()?;
    r.finish().ok()?;
    assert!(region.range(0, region.len()).is_ok(), "all of a region is inside it");
    assert!(region.range(1, region.len()).is_err() && region.range(region.len(), 1).is_err());
    let mut w = Writer::new();
    region.encode(&mut w);
    Some(w.finish())
}

/// `NAME=value` lines as the environment: the library's own variables.
pub fn environment(bytes: &[u8]) -> Option<Vec<u8>> {
    Env::parse(&variables(bytes)?).ok().map(|env| {
        assert!(env.rank.zip(env.world_size).is_none_or(|(rank, size)| rank < size));
        assert!(!env.timeout.is_zero() && env.peer_timeout.is_none_or(|timeout| !timeout.is_zero()));
        Vec::new()
    })
}

/// Rules of faults.
pub fn faults(bytes: &[u8]) -> Option<Vec<u8>> {
    Rules::parse(str::from_utf8(bytes).ok()?).ok().map(|rules| format!("{rules:?}").into_bytes())
}

/// A plan file. Looking at the structure of what was read must end, whatever it is. A small plan that the checks let pass must give the
/// collective's result.
pub fn plan_file(bytes: &[u8]) -> Option<Vec<u8>> {
    let plan = file::read(str::from_utf8(bytes).ok()?).ok()?;
    if !is_small(&plan) {
        check::structure(&plan);
    } else if check::check(&plan).is_empty() {
        gives_its_result(&plan);
    }
    // Not every combination that can be read has one operation in the format, so some are refused.
    file::write(&plan).ok().map(String::into_bytes)
}

/// Whether running a plan takes no more time than a fuzz target has.
fn is_small(plan: &Plan) -> bool {
    let few = |rank: &RankPlan| {
        let turns = |operation: &Operation| match &operation.op {
            Op::Loop(repeated) => (repeated.body.len() as u64 + 1).saturating_mul(u64::from(repeated.chunks)),
            _ => 1,
        };
        let all = rank.blocks.iter().flat_map(|block| &block.ops).map(turns).fold(0, u64::saturating_add);
        let chunks = rank.input_chunks.max(rank.output_chunks).max(rank.scratch_chunks);
        rank.blocks.len() <= 8 && all <= 512 && chunks <= 32
    };
    plan.ranks.len() <= 4 && plan.ranks.iter().all(few)
}

/// Runs two calls of a plan whose checks find nothing.
fn gives_its_result(plan: &Plan) {
    let chunks = plan.ranks.iter().map(|rank| rank.input_chunks).max().unwrap_or(0).max(1);
    let input = |rank: u32| (0..chunks * 64).map(|at| (at + 7 * rank).wrapping_mul(0x9e37_79b9)).collect();
    let inputs: Vec<Vec<u32>> = (0..).take(plan.ranks.len()).map(input).collect();
    let config = Config { seed: 1, reduction: Some(Reduction::Sum) };
    // Settings may refuse this size.
    let Ok(outputs) = simulate::run(plan, &[inputs.clone(), inputs.clone()], config) else { return };
    let expected = oracle::outputs(&plan.collective.kind, &inputs, u32::wrapping_add);
    for (output, expected) in outputs.iter().flat_map(|outputs| outputs.iter().zip(&expected)) {
        assert!(expected.as_ref().is_none_or(|expected| expected == output), "checks let {plan:?} pass");
    }
}

/// `NAME=value` lines; `None` if they are no text.
pub(crate) fn variables(bytes: &[u8]) -> Option<BTreeMap<String, String>> {
    let lines = str::from_utf8(bytes).ok()?.lines();
    Some(lines.filter_map(|line| line.split_once('=')).map(|(n, v)| (n.to_owned(), v.to_owned())).collect())
}

/// Outputs of the real encoders, each with the name of its fuzz target.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut all = wire_forms();
    all.extend(messages());
    all.extend(streams());
    all.extend(message_seeds());
    all.extend(crate::collective::fuzzing::said());
    all.extend(crate::plan::fuzzing::said());
    for algorithm in programs::ALGORITHMS {
        let choices = programs::Choices { chunk_factor: Some(1), ..Default::default() };
        let plan = algorithm.program(2, &choices).and_then(|program| program.compile());
        // Some have no words in the format, or are for more ranks.
        if let Ok(text) = plan.and_then(|plan| file::write(&plan)) {
            all.push(("plan-file", text.into_bytes()));
        }
    }
    let region =
        |address: u64, length: u64| [&address.to_le_bytes()[..], &length.to_le_bytes(), &[7; 4]].concat();
    all.push(("remote-region", region(0x1000, 64)));
    all.push(("remote-region", region(u64::MAX - 8, 8)));
    for (gid, lid) in [(true, 0), (false, 3)] {
        let kind = crate::rdma::GidKind::ROCE_V2;
        let gid = gid.then_some((crate::rdma::Gid([7; 16]), kind));
        let mut w = Writer::new();
        QpAddress { qp_number: 17, psn: 1 << 20, lid, gid, mtu: 1024, max_read_atomic: 16 }.encode(&mut w);
        all.push(("qp-address", w.finish()));
    }
    all
}
