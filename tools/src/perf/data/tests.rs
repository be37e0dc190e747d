use half::{bf16, f16};

use super::*;

fn call(ty: Element) -> Call {
    Call { ty, op: Reduction::Sum, ranks: 3, iteration: 7, count: 3000 }
}

/// How many of 3000 elements differ at least if none is right but by chance: FP8 has few numbers, and most of ours are large.
fn most(ty: Element) -> u64 {
    match ty {
        Element::F8E5m2 => 2750,
        Element::F8E4m3 => 2850,
        _ => 2960,
    }
}

#[test]
fn one_rank_reduces_to_its_own_input() {
    for (ty, op) in Element::ALL.into_iter().flat_map(|ty| Reduction::ALL.map(|op| (ty, op))) {
        let one = Call { op, ranks: 1, ..call(ty) };
        assert_eq!(one.wrong(&one.input(0)), 0, "{ty:?} {op:?}");
    }
}

#[test]
fn a_stale_or_foreign_or_missing_element_is_wrong() {
    for ty in Element::ALL {
        let (three, most) = (call(ty), most(ty));
        assert!(three.wrong(&three.input(0)) > most, "{ty:?}: one rank's input is not the sum");
        let one = Call { ranks: 1, ..three };
        let stale = Call { iteration: 6, ..one };
        assert!(one.wrong(&stale.input(0)) > most, "{ty:?}: the last call's data");
        assert!(one.wrong(&one.input(1)) > most, "{ty:?}: another rank's data");
        assert_eq!(one.wrong(&one.input(0)[..2999 * ty.bytes()]), 1, "{ty:?}: one element short");
    }
}

/// Each byte of an element matters: a kernel may lose a half of one of eight bytes.
#[test]
fn every_byte_of_an_element_shows_what_is_stale() {
    for ty in Element::ALL {
        let one = Call { ranks: 1, ..call(ty) };
        let (right, stale) = (one.input(0), Call { iteration: 6, ..one }.input(0));
        for byte in 0..ty.bytes() {
            let mut mixed = right.clone();
            let of = mixed.iter_mut().zip(&stale).skip(byte).step_by(ty.bytes());
            of.for_each(|(seen, old)| *seen = *old);
            // The upper byte of a real number has few values, as its exponent has.
            assert!(one.wrong(&mixed) > 1500, "{ty:?}: byte {byte}");
        }
    }
}

/// A value of any type, by the type's definition.
#[derive(Clone, Copy, Debug)]
enum Number {
    Real(f64),
    Integer(i128),
}

fn number(ty: Element, bytes: &[u8]) -> Number {
    let f8 = |fraction_bits: i32, bias: i32| {
        let code = i32::from(bytes[0] & 0x7F);
        let (exponent, fraction) = (code >> fraction_bits, code & ((1 << fraction_bits) - 1));
        let hidden = if exponent > 0 { 1 << fraction_bits } else { 0 };
        let size = f64::from(hidden + fraction) * 2_f64.powi(exponent.max(1) - bias - fraction_bits);
        Number::Real(if bytes[0] & 0x80 == 0 { size } else { -size })
    };
    match ty {
        Element::F32 => Number::Real(f32::from_le_bytes(bytes.try_into().unwrap()).into()),
        Element::F64 => Number::Real(f64::from_le_bytes(bytes.try_into().unwrap())),
        Element::F16 => Number::Real(f16::from_le_bytes(bytes.try_into().unwrap()).into()),
        Element::Bf16 => Number::Real(bf16::from_le_bytes(bytes.try_into().unwrap()).into()),
        Element::F8E4m3 => f8(3, 7),
        Element::F8E5m2 => f8(2, 15),
        Element::I8 => Number::Integer(i8::from_le_bytes(bytes.try_into().unwrap()).into()),
        Element::U8 => Number::Integer(bytes[0].into()),
        Element::I32 => Number::Integer(i32::from_le_bytes(bytes.try_into().unwrap()).into()),
        Element::U32 => Number::Integer(u32::from_le_bytes(bytes.try_into().unwrap()).into()),
        Element::I64 => Number::Integer(i64::from_le_bytes(bytes.try_into().unwrap()).into()),
        Element::U64 => Number::Integer(u64::from_le_bytes(bytes.try_into().unwrap()).into()),
    }
}

/// The element nearest to a number; integers wrap.
fn element(ty: Element, number: Number) -> Vec<u8> {
    match (ty, number) {
        (Element::F32, Number::Real(real)) => (real as f32).to_le_bytes().into(),
        (Element::F64, Number::Real(real)) => real.to_le_bytes().into(),
        (Element::F16, Number::Real(real)) => f16::from_f64(real).to_le_bytes().into(),
        (Element::Bf16, Number::Real(real)) => bf16::from_f64(real).to_le_bytes().into(),
        (_, Number::Real(real)) => {
            // The even one of two that are as near.
            let finite = if ty == Element::F8E4m3 { 0..=0x7E_u8 } else { 0..=0x7B };
            let far = |code: u8| match self::number(ty, &[code]) {
                Number::Real(one) => (one - real.abs()).abs(),
                Number::Integer(_) => f64::INFINITY,
            };
            let nearest =
                finite.min_by(|&a, &b| far(a).total_cmp(&far(b)).then((a & 1).cmp(&(b & 1)))).unwrap();
            vec![nearest | if real.is_sign_negative() { 0x80 } else { 0 }]
        }
        (_, Number::Integer(integer)) => integer.to_le_bytes()[..ty.bytes()].into(),
    }
}

/// Reduces in this order. Reals of up to 4 bytes are combined as f32; `between` says what becomes of each result but the last.
fn reduced(ty: Element, op: Reduction, inputs: &[Number], between: impl Fn(Number) -> Number) -> Number {
    let single = |real: f64| if ty == Element::F64 { real } else { f64::from(real as f32) };
    let step = |a: Number, b: Number| match (a, b) {
        // f64 holds the exact sum, and nearly the exact product, of two f32.
        (Number::Real(a), Number::Real(b)) => Number::Real(match op {
            Reduction::Sum | Reduction::Avg => single(a + b),
            Reduction::Prod => single(a * b),
            Reduction::Min => a.min(b),
            Reduction::Max => a.max(b),
        }),
        (Number::Integer(a), Number::Integer(b)) => {
            let wrapped = |value: i128| number(ty, &element(ty, Number::Integer(value)));
            match op {
                Reduction::Sum | Reduction::Avg => wrapped(a + b),
                Reduction::Prod => wrapped(a.wrapping_mul(b)),
                Reduction::Min => Number::Integer(a.min(b)),
                Reduction::Max => Number::Integer(a.max(b)),
            }
        }
        _ => panic!("one type"),
    };
    let (&first, others) = inputs.split_first().unwrap();
    let combined = others.iter().enumerate().fold(first, |sum, (index, &next)| {
        let sum = step(sum, next);
        if index + 1 == others.len() { sum } else { between(sum) }
    });
    match (op, combined) {
        (Reduction::Avg, Number::Real(sum)) => Number::Real(single(sum / inputs.len() as f64)),
        (Reduction::Avg, Number::Integer(sum)) => Number::Integer(sum / inputs.len() as i128),
        _ => combined,
    }
}

/// Of every type and reduction: the elements of `expected`'s ranks one by one, reduced, against what the whole says.
fn compare(expected: Expected, indices: &[u64], backwards: bool, rounds_between: bool) {
    let Kind::Element(ty) = expected.kind else { panic!("elements") };
    for &index in indices {
        let mut inputs: Vec<Number> = (0..expected.ranks)
            .map(|rank| {
                let mut bytes = vec![0; ty.bytes()];
                Expected { first: expected.first + rank, ranks: 1, ..expected }.fill(index, &mut bytes);
                number(ty, &bytes)
            })
            .collect();
        if backwards {
            inputs.reverse();
        }
        let round = |value| {
            if !rounds_between {
                return value;
            }
            let rounded = number(ty, &element(ty, value));
            if let (Number::Real(exact), Number::Real(rounded)) = (value, rounded) {
                assert_eq!(exact, rounded, "{expected:?} {index}");
            }
            rounded
        };
        let right = element(ty, reduced(ty, expected.op, &inputs, round));
        assert_eq!(expected.wrong(index, &right), 0, "{expected:?} {index}: {inputs:?} {right:02x?}");
    }
}

/// The reduction of a few elements, computed one by one in the order of the ranks.
#[test]
fn a_reduction_is_that_of_the_ranks_inputs() {
    for (ty, op) in Element::ALL.into_iter().flat_map(|ty| Reduction::ALL.map(|op| (ty, op))) {
        for ranks in [3, 16] {
            let expected = Expected { first: 1, ..Call { op, ranks, ..call(ty) }.result() };
            let few: Vec<u64> = (0..24).chain([1023, 1024, 2999, (1 << 32) - 1, 1 << 32]).collect();
            compare(expected, &few, false, false);
        }
    }
}

/// In the opposite order, rounded to the element's type after each operation, exact data gives the same bits.
#[test]
fn exact_results_do_not_depend_on_the_order() {
    for (ty, op) in Element::ALL.into_iter().flat_map(|ty| Reduction::ALL.map(|op| (ty, op))) {
        for ranks in [2, 3, 8, 16, 31, 300] {
            let call = Call { op, ranks, ..call(ty) };
            let few: Vec<u64> = (0..if ranks > 31 { 6 } else { 24 }).collect();
            compare(call.result().exact(ranks), &few, true, true);
        }
    }
}

/// Coarse data, too, shows that one rank's is missing or that another call's was taken.
#[test]
fn exact_data_shows_a_missing_rank_and_a_stale_one() {
    for (ty, op) in Element::ALL.into_iter().flat_map(|ty| Reduction::ALL.map(|op| (ty, op))) {
        for ranks in [2, 16] {
            let call = Call { op, ranks, count: 800, ..call(ty) };
            let all = call.result().exact(ranks);
            let bytes = |data: Expected| {
                let mut bytes = vec![0; call.count * ty.bytes()];
                data.fill(0, &mut bytes);
                bytes
            };
            // The extremes of many ranks seldom are the missing one's.
            let least = if matches!(op, Reduction::Min | Reduction::Max) { 2 } else { 40 };
            let missing = all.wrong(0, &bytes(Expected { ranks: ranks - 1, ..all }));
            assert!(missing > least, "{ty:?} {op:?} {ranks} ranks: {missing} show the missing one");
            let stale = all.wrong(0, &bytes(Expected { iteration: 6, ..all }));
            assert!(stale > 40, "{ty:?} {op:?} {ranks} ranks: {stale} show the last call");
        }
    }
}

/// Also swapped ranks, which a sum does not show: the test of a transfer does.
#[test]
fn bytes_show_a_wrong_offset_a_stale_iteration_and_a_swapped_rank() {
    let (data, mut right) = (Expected::bytes(1, 7), vec![0; 10_000]);
    data.fill(0, &mut right);
    assert_eq!(data.wrong(0, &right), 0);
    for offset in [1, 2, 3, 4, 8, 128, 4096] {
        assert!(data.wrong(offset, &right) > 9900, "shifted by {offset}");
    }
    assert!(Expected::bytes(0, 7).wrong(0, &right) > 9900);
    assert!(Expected::bytes(1, 6).wrong(0, &right) > 9900);
    assert!(data.wrong(0, &[0xA5; 10_000]) > 9900, "nothing arrived");
    assert_eq!(data.wrong(0, &right[..9000]), 0, "as many as there are");
    right[9999] ^= 1;
    right[0] ^= 0x80;
    assert_eq!(data.wrong(0, &right), 2);
}

/// Parts of any size give the same elements, across blocks and where the index outgrows 32 bits.
#[test]
fn elements_do_not_depend_on_where_a_part_begins() {
    let kinds = Element::ALL.map(Kind::Element).into_iter().chain([Kind::Byte]);
    for kind in kinds {
        for origin in [0, (1 << 32) - 1500, (1 << 34) - 6001] {
            let data =
                Expected { kind, op: Reduction::Max, first: 2, ranks: 3, iteration: 9, mask: !0, thin: 0 };
            let mut whole = vec![0; 9000 * kind.bytes()];
            data.fill(origin, &mut whole);
            for (from, count) in [(0, 9000), (1, 17), (1021, 4099), (4093, 3), (5000, 4000)] {
                let bytes = from * kind.bytes()..(from + count) * kind.bytes();
                let mut part = vec![0; bytes.len()];
                data.fill(origin + from as u64, &mut part);
                assert!(part == whole[bytes.clone()], "{kind:?} {origin} {from} {count}");
                assert_eq!(data.wrong(origin + from as u64, &whole[bytes]), 0);
            }
        }
    }
}
