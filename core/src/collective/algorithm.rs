//! Which all-reduce serves a size.

use std::fmt;

/// A way to all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Every rank sends its whole input to every other as LL16 packets; one latency, n times the bytes.
    OneShotLl16,
    /// Push to the owner's scratch, reduce, push back: two latencies, twice the bytes whatever n.
    TwoShotHb,
}

impl Algorithm {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneShotLl16 => "1shot-ll",
            Self::TwoShotHb => "2shot-hb",
        }
    }

    /// The faster one for `bytes`, given the largest call that one-shot serves.
    pub(super) fn select(bytes: usize, one_shot_limit: usize) -> Self {
        if bytes <= one_shot_limit { Self::OneShotLl16 } else { Self::TwoShotHb }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The largest call, in bytes, that one-shot serves: its scratch is sized for it.
///
/// One-shot sends `n - 1` times the bytes at half the efficiency, so the point where its lower latency no longer pays
/// moves down as ranks are added: on 4 H200s it takes 5 us at 128 KiB where two-shot takes 10. An interpreter pays per
/// packet, not per latency, and changes over much earlier.
pub(super) fn one_shot_limit(ranks: u32, software: bool) -> usize {
    let total: usize = if software { 32 << 10 } else { 1 << 20 };
    total / ranks.next_power_of_two().max(2) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_calls_are_one_shot_and_the_limit_falls_with_ranks() {
        let limit = one_shot_limit(4, false);
        assert_eq!(limit, 256 << 10);
        assert_eq!(Algorithm::select(0, limit), Algorithm::OneShotLl16);
        assert_eq!(Algorithm::select(limit, limit), Algorithm::OneShotLl16);
        assert_eq!(Algorithm::select(limit + 1, limit), Algorithm::TwoShotHb);
        assert!(one_shot_limit(16, false) < one_shot_limit(2, false));
        assert!(one_shot_limit(4, true) < limit);
    }
}
