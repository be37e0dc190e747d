//! Operands: boundary values of a type in all pairs, and pseudo-random ones.

use super::table::Operands;

/// Pseudo-random numbers; the same in every run.
pub(super) struct Noise(u64);

impl Noise {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn of(&mut self, all: &[u64]) -> u64 {
        all[(self.next() >> 33) as usize % all.len()]
    }
}

/// All pairs of `edges` as `a` and `b` with one of them as `c`, then `count` operands that `random` makes.
fn operands(edges: &[u64], count: usize, mut random: impl FnMut(&mut Noise) -> u64) -> Vec<Operands> {
    let mut noise = Noise::new(edges.len() as u64);
    let mut all = Vec::new();
    for a in edges {
        for b in edges {
            all.push([*a, *b, noise.of(edges)]);
        }
    }
    all.extend((0..count).map(|_| std::array::from_fn(|_| random(&mut noise))));
    all
}

pub(super) fn integers() -> Vec<Operands> {
    let edges = [
        0,
        1,
        2,
        3,
        7,
        8,
        15,
        16,
        17,
        31,
        32,
        33,
        63,
        64,
        65,
        0x7f,
        0x80,
        0xff,
        0x100,
        0x7fff,
        0x8000,
        0xffff,
        0x7f_ffff,
        0x80_0000,
        0xff_ffff,
        0x7fff_ffff,
        0x8000_0000,
        0x8000_0001,
        0xffff_ffff,
        0x1_0000_0000,
        i64::MAX as u64,
        1 << 63,
        u64::MAX,
        0x0123_4567_89ab_cdef,
    ];
    // Numbers of every length.
    operands(&edges, 1500, |noise| {
        let shift = noise.next() % 64;
        noise.next() >> shift
    })
}

pub(super) fn singles() -> Vec<Operands> {
    let edges = [
        0x0000_0000,
        0x8000_0000,
        0x0000_0001,
        0x8000_0001,
        0x007f_ffff,
        0x0080_0000,
        0x8080_0000,
        0x0080_0001,
        0x3f80_0000,
        0xbf80_0000,
        0x3f7f_ffff,
        0x3f80_0001,
        0x3f00_0000,
        0x3fc0_0000,
        0x4040_0000,
        0x4b80_0000,
        0x7f7f_ffff,
        0xff7f_ffff,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0001,
        0x7f80_0001,
        0x3380_0000,
        0x3300_0000,
        0x4f00_0000,
        0xcf00_0000,
        0x4f80_0000,
        0x5f00_0000,
        0x1f80_0000,
        0x2000_0000,
    ];
    // Half of the numbers have exponents near each other, so that sums cancel.
    operands(&edges, 1500, |noise| {
        let bits = noise.next() & 0xffff_ffff;
        if noise.next() & 1 == 0 { bits } else { bits & 0x807f_ffff | (115 + noise.next() % 24) << 23 }
    })
}

pub(super) fn doubles() -> Vec<Operands> {
    let edges = [
        0,
        1 << 63,
        1,
        1 << 63 | 1,
        0x000f_ffff_ffff_ffff,
        0x0010_0000_0000_0000,
        0x0010_0000_0000_0001,
        0x3ff0_0000_0000_0000,
        0xbff0_0000_0000_0000,
        0x3fef_ffff_ffff_ffff,
        0x3ff0_0000_0000_0001,
        0x3fe0_0000_0000_0000,
        0x3ff8_0000_0000_0000,
        0x4008_0000_0000_0000,
        0x7fef_ffff_ffff_ffff,
        0xffef_ffff_ffff_ffff,
        0x7ff0_0000_0000_0000,
        0xfff0_0000_0000_0000,
        0x7ff8_0000_0000_0000,
        0x3ca0_0000_0000_0000,
        0x43e0_0000_0000_0000,
        0xc3e0_0000_0000_0000,
        0x43f0_0000_0000_0000,
        0x41e0_0000_0000_0000,
        0x47ef_ffff_f000_0000,
        0x3810_0000_0000_0000,
        0x36a0_0000_0000_0000,
    ];
    operands(&edges, 1200, |noise| {
        let bits = noise.next();
        if noise.next() & 1 == 0 {
            bits
        } else {
            bits & 0x800f_ffff_ffff_ffff | (1000 + noise.next() % 60) << 52
        }
    })
}

/// Pairs of 16-bit floats; forms on one take the low half.
pub(super) fn halves() -> Vec<Operands> {
    let edges: Vec<u64> = [
        0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x0401, 0x3c00, 0xbc00, 0x3bff, 0x3c01, 0x3800,
        0x3e00, 0x4200, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e01, 0x7c01, 0x1400, 0x3f80, 0xbf80, 0x3f7f,
        0x7f7f, 0x7f80, 0xff80, 0x7fc1, 0x0080, 0x007f,
    ]
    .into_iter()
    .map(|low: u64| low | (low.wrapping_mul(0x9e37) & 0xffff) << 16)
    .collect();
    operands(&edges, 1500, |noise| noise.next() & 0xffff_ffff)
}

/// Every number of 16 bits, in the low half, with others in the high half.
pub(super) fn all_halves() -> Vec<Operands> {
    (0..1 << 16).map(|low: u64| [low | (low.wrapping_mul(0x9e37) & 0xffff) << 16, 0, 0]).collect()
}

/// `count` numbers between `low` and `high`, which are among them, as `f32`.
pub(super) fn between(low: f32, high: f32, count: usize) -> Vec<Operands> {
    let mut noise = Noise::new(count as u64);
    let mut all = vec![low, high];
    all.extend((2..count).map(|_| {
        let share = (noise.next() >> 40) as f32 / (1 << 24) as f32;
        low + (high - low) * share
    }));
    all.into_iter().map(|value| [value.to_bits().into(), 0, 0]).collect()
}
