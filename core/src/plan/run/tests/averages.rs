//! Averages of plans that sum up in several steps.

use aqueduct_ptx::oracle::half::{bf16_from_f32, f16_from_f32};

use super::super::super::{Kind, Plan, Reduction, programs};
use super::{Element, Executor, ExecutorConfig, LIMIT, Rig, Side, alone, close, everywhere, ranks};
use crate::comm::Communicator;
use crate::gpu::{GpuBuffer, Stream};
use std::sync::Arc;

fn plan(collective: &str, algorithm: &str, ranks: u32) -> Plan {
    programs::find(collective, Some(algorithm))
        .unwrap()
        .program(ranks, &programs::Choices::default())
        .unwrap()
        .compile()
        .unwrap()
}

/// Plans in which an average is not reduced at once, and one that is.
fn stepwise() -> Vec<Plan> {
    vec![
        plan("all-reduce", "ring", 3),
        plan("all-reduce", "ring", 4),
        plan("all-reduce", "recursive-halving", 4),
        plan("all-reduce", "two-shot-packets", 3),
    ]
}

#[test]
fn averages_are_divided_once_where_the_sum_is_complete() {
    let _alone = alone();
    for plan in stepwise() {
        let comms = ranks(plan.ranks.len());
        let mut rig = Rig::new(&comms, &plan, 1200, &[Some(Reduction::Avg)]).unwrap();
        for elements in [96, 1, 1200, 37] {
            rig.as_simulated(elements, Some(Reduction::Avg));
        }
        drop(rig);
        close(&comms);
    }
}

/// The average of whole numbers, whose sums are exact in every type: only the division rounds.
#[test]
fn averages_of_short_types_round_once() {
    let _alone = alone();
    const ELEMENTS: usize = 400;
    let value = |rank: usize, index: usize| u16::try_from((rank * 5 + index * 3) % 17).unwrap();
    let types = [Element::F32, Element::F16, Element::Bf16];
    for plan in stepwise() {
        let count = plan.ranks.len();
        let comms = ranks(count);
        let config =
            ExecutorConfig::default().with_variants(types.map(|element| (element, Some(Reduction::Avg))));
        let prepared =
            everywhere(&comms, |comm: &Communicator| Executor::prepare(comm, &plan, config.clone(), LIMIT));
        let executors: Vec<Executor> = prepared.into_iter().map(Result::unwrap).collect();
        let sides: Vec<Side> = comms
            .iter()
            .map(|comm| {
                let input = Arc::new(GpuBuffer::new(comm.context(), 4 * ELEMENTS).unwrap());
                Side { output: input.clone(), input, stream: Stream::new(comm.context()).unwrap() }
            })
            .collect();
        let shown = executors[0].reaches_buffers().then(|| {
            everywhere(&comms, |comm| {
                let side = &sides[comm.rank() as usize];
                executors[comm.rank() as usize].prepare_buffers(&side.input, &side.output, LIMIT)
            })
        });
        for element in types {
            let code = |value: f32| match element {
                Element::F32 => value.to_le_bytes().to_vec(),
                Element::F16 => f16_from_f32(value).to_le_bytes().to_vec(),
                _ => bf16_from_f32(value).to_le_bytes().to_vec(),
            };
            for (rank, side) in sides.iter().enumerate() {
                let bytes: Vec<u8> =
                    (0..ELEMENTS).flat_map(|index| code(f32::from(value(rank, index)))).collect();
                side.input.upload(0, &bytes, LIMIT).unwrap();
            }
            for (rank, (side, executor)) in sides.iter().zip(&executors).enumerate() {
                let called = match &shown {
                    Some(shown) => {
                        let shown = shown[rank].as_ref().unwrap();
                        executor.execute_on(&side.stream, shown, ELEMENTS, element, Reduction::Avg)
                    }
                    None => {
                        let all = side.input.slice(..).unwrap();
                        executor.execute(&side.stream, &all, &all, ELEMENTS, element, Reduction::Avg)
                    }
                };
                called.unwrap();
            }
            let expected: Vec<u8> = (0..ELEMENTS)
                .flat_map(|index| {
                    let sum: u16 = (0..count).map(|rank| value(rank, index)).sum();
                    code(f32::from(sum) / f32::from(u16::try_from(count).unwrap()))
                })
                .collect();
            for (rank, side) in sides.iter().enumerate() {
                side.stream.synchronize(LIMIT).unwrap();
                let mut seen = vec![0_u8; expected.len()];
                side.input.download(0, &mut seen, LIMIT).unwrap();
                assert_eq!(seen, expected, "{} of {element:?}, rank {rank}", plan.name);
            }
        }
        drop((shown, executors, sides));
        close(&comms);
    }
}

/// A custom collective does not say what is summed up, and a plan that is wrong has no complete sum.
#[test]
fn averages_without_a_complete_sum_are_refused() {
    let average = |plan: &Plan| {
        let error = super::super::super::ptx(plan, 0, Element::I32, Some(Reduction::Avg), 90).unwrap_err();
        error.message().to_owned()
    };
    let mut custom = plan("all-reduce", "ring", 3);
    custom.collective.kind = Kind::Custom("mine".into());
    let message = average(&custom);
    assert!(
        message.contains("rank 0 block 0 operation") && message.contains("custom collective"),
        "{message}"
    );
    let mut wrong = plan("all-reduce", "ring", 3);
    // Without its last operation, rank 2 keeps a signal to itself.
    wrong.ranks[2].blocks[0].ops.pop();
    let message = average(&wrong);
    assert!(message.contains("where checks find the sum complete"), "{message}");
    // Sums that need no division are not asked about.
    assert!(super::super::super::ptx(&custom, 0, Element::I32, None, 90).is_ok());
}
