//! The collectives by their definitions, to judge results by.
//!
//! Shares nothing with the simulator or the checks: neither chunks nor layouts nor plans occur here.

use super::collective::Kind;

/// The expected output of each rank, `None` where nothing is promised.
///
/// `inputs` holds every rank's input, all of one length; `combine` reduces two elements. Elements are combined in the order
/// of ranks.
///
/// # Panics
/// If the root is none of the ranks.
pub fn outputs<T: Copy>(kind: &Kind, inputs: &[Vec<T>], combine: impl Fn(T, T) -> T) -> Vec<Option<Vec<T>>> {
    let ranks = inputs.len();
    let reduced = || {
        let mut sum: Vec<T> = inputs.first().cloned().unwrap_or_default();
        for input in inputs.iter().skip(1) {
            sum.iter_mut().zip(input).for_each(|(sum, &value)| *sum = combine(*sum, value));
        }
        sum
    };
    let part = |data: &[T], part: usize| {
        let size = data.len() / ranks;
        data[part * size..(part + 1) * size].to_vec()
    };
    let all = |data: Vec<T>| vec![Some(data); ranks];
    let only =
        |root: usize, data: Vec<T>| (0..ranks).map(|rank| (rank == root).then(|| data.clone())).collect();
    match *kind {
        Kind::AllReduce => all(reduced()),
        Kind::AllGather => all(inputs.concat()),
        Kind::ReduceScatter => {
            let sum = reduced();
            (0..ranks).map(|rank| Some(part(&sum, rank))).collect()
        }
        Kind::AllToAll => {
            (0..ranks).map(|rank| Some(inputs.iter().flat_map(|input| part(input, rank)).collect())).collect()
        }
        Kind::Broadcast { root } => all(inputs[root as usize].clone()),
        Kind::Reduce { root } => only(root as usize, reduced()),
        Kind::Gather { root } => only(root as usize, inputs.concat()),
        Kind::Scatter { root } => (0..ranks).map(|rank| Some(part(&inputs[root as usize], rank))).collect(),
        Kind::SendRecv => (0..ranks).map(|rank| Some(inputs[(rank + ranks - 1) % ranks].clone())).collect(),
        Kind::Custom(_) => vec![None; ranks],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions() {
        let inputs = vec![vec![1, 2, 3, 4], vec![10, 20, 30, 40]];
        let of = |kind| outputs(&kind, &inputs, |a, b| a + b);
        let both = |data: &[i32]| vec![Some(data.to_vec()); 2];
        assert_eq!(of(Kind::AllReduce), both(&[11, 22, 33, 44]));
        assert_eq!(of(Kind::AllGather), both(&[1, 2, 3, 4, 10, 20, 30, 40]));
        assert_eq!(of(Kind::ReduceScatter), [Some(vec![11, 22]), Some(vec![33, 44])]);
        assert_eq!(of(Kind::AllToAll), [Some(vec![1, 2, 10, 20]), Some(vec![3, 4, 30, 40])]);
        assert_eq!(of(Kind::Broadcast { root: 1 }), both(&[10, 20, 30, 40]));
        assert_eq!(of(Kind::Reduce { root: 1 }), [None, Some(vec![11, 22, 33, 44])]);
        assert_eq!(of(Kind::Gather { root: 0 }), [Some(vec![1, 2, 3, 4, 10, 20, 30, 40]), None]);
        assert_eq!(of(Kind::Scatter { root: 1 }), [Some(vec![10, 20]), Some(vec![30, 40])]);
        assert_eq!(of(Kind::SendRecv), [Some(inputs[1].clone()), Some(inputs[0].clone())]);
        assert_eq!(of(Kind::Custom("test".into())), [None, None]);
    }
}
