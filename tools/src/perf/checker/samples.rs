//! The blocks of a buffer that the host compares after the kernel.

use crate::perf::data::Expected;

/// Number of blocks of each buffer, and their bytes.
pub(super) const SAMPLES: usize = 16;
pub(super) const SAMPLE: usize = 16 << 10;

/// Offset and length of the samples of `len` bytes: the first and the last ones, and others that differ from call to call.
/// They do not overlap.
pub(super) fn samples(len: usize, expected: Expected) -> Vec<(usize, usize)> {
    if len <= SAMPLES * SAMPLE {
        return (0..len).step_by(SAMPLE).map(|at| (at, SAMPLE.min(len - at))).collect();
    }
    // One in each of as many equal parts.
    let share = len / SAMPLES;
    let place = |number: usize| {
        let room = if number == SAMPLES - 1 { len - number * share } else { share } - SAMPLE;
        let chance = expected.iteration.wrapping_mul(0x9E37_79B1).wrapping_add(number as u32);
        let within = match number {
            0 => 0,
            _ if number == SAMPLES - 1 => room,
            _ => chance.wrapping_mul(0x85EB_CA6B) as usize % (room + 1),
        };
        let at = number * share + within;
        // A whole element. Elements of at most 8 bytes and buffers of whole elements keep the end within the buffer.
        (at - at % expected.kind.bytes(), SAMPLE)
    };
    (0..SAMPLES).map(place).collect()
}

#[cfg(test)]
mod tests {
    use aqueduct::plan::{Element, Reduction};

    use super::*;
    use crate::perf::data::Kind;

    #[test]
    fn samples_are_apart_and_cover_both_ends() {
        for kind in Element::ALL.map(Kind::Element).into_iter().chain([Kind::Byte]) {
            for len in [0, 8, 1000, SAMPLES * SAMPLE, SAMPLES * SAMPLE + 8, (64 << 20) + 24] {
                for iteration in 0..20 {
                    let expected = Expected {
                        kind,
                        op: Reduction::Sum,
                        first: 1,
                        ranks: 3,
                        iteration,
                        mask: !0,
                        thin: 0,
                    };
                    let samples = samples(len, expected);
                    let mut end = 0;
                    for (at, sample) in &samples {
                        assert!(*at >= end && at.is_multiple_of(kind.bytes()), "{len} {samples:?}");
                        end = at + sample;
                    }
                    assert_eq!((samples.first().map_or(0, |(at, _)| *at), end), (0, len), "{samples:?}");
                    assert!(samples.len() <= SAMPLES);
                }
            }
        }
    }
}
