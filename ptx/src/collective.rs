//! Constants and layouts for host code that launches the built-in collectives: names of variants, layout of regions,
//! shape of launches.

/// Element type of a reduction.
///
/// 16-bit types are accumulated in f32 over all ranks and rounded once, to nearest even, on every architecture alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ElementType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
    /// Two's complement; sums wrap.
    I32,
}

impl ElementType {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::I32];

    /// Bytes in one element, also the alignment that kernels assume of user data.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Value of the template parameter `TYPE`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I32 => "i32",
        }
    }
}

/// Operation of a reduction. Operands are combined in the order rank 0, 1, ... on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReduceOp {
    /// Sum.
    Sum,
    /// Minimum; a NaN loses against a number, and -0 is below +0.
    Min,
    /// Maximum; a NaN loses against a number, and -0 is below +0.
    Max,
}

impl ReduceOp {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Sum, Self::Min, Self::Max];

    /// Value of the template parameter `OP`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Min => "min",
            Self::Max => "max",
        }
    }
}

/// Value of the template parameter `RANKS` for a world of `ranks`: the unrolled variant, or "0" where there is none.
pub const fn ranks_variant(ranks: usize) -> &'static str {
    match ranks {
        2 => "2",
        4 => "4",
        8 => "8",
        _ => "0",
    }
}

/// LL16 packets that `bytes` of data take, and an empty call too: no call of a region may be silent.
pub const fn ll16_packets(bytes: u64) -> u64 {
    let packets = bytes.div_ceil(8);
    if packets == 0 { 1 } else { packets }
}

/// Bytes that one half of the one-shot all-reduce's region must have for calls of up to `bytes`.
pub const fn one_shot_half_bytes(ranks: usize, bytes: u64) -> u64 {
    (16 * ll16_packets(bytes) * ranks as u64).next_multiple_of(128)
}

/// Bytes of packets that `bytes` of data take as LL128 lines: units of 960 bytes are sent whole.
pub const fn ll128_bytes(bytes: u64) -> u64 {
    1024 * bytes.div_ceil(960)
}

/// Grid and block of a launch, both one-dimensional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks.
    pub grid: u32,
    /// Threads in a block, a multiple of 32.
    pub block: u32,
}

/// A shape for the one-shot all-reduce: one packet per thread as far as `max_blocks` goes, in blocks small enough to
/// spread over the multiprocessors.
pub fn one_shot_shape(bytes: u64, max_blocks: u32) -> LaunchShape {
    let packets = ll16_packets(bytes);
    let block = packets.next_multiple_of(32).min(if packets > 4096 { 512 } else { 128 });
    let grid = packets.div_ceil(block).min(u64::from(max_blocks.max(1)));
    LaunchShape { grid: as_u32(grid), block: as_u32(block) }
}

/// Region of the two-shot HB all-reduce: two sets of flags, then two sets of slots, per block and rank.
///
/// Fixed for the life of the region. `epochs` of its [`crate::abi::ScratchRegion`] is the address of `max_blocks` u64
/// entries; region and entries are zeroed once, before any rank launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HbLayout {
    /// Ranks.
    pub ranks: u32,
    /// Largest grid: a multiple of 8.
    pub max_blocks: u32,
    /// Largest slice of one launch: a multiple of 16.
    pub slot_bytes: u32,
}

impl HbLayout {
    /// The largest layout for `ranks` and `max_blocks` (rounded up to a multiple of 8) that fits into `limit` bytes,
    /// with slots of at most 64 KiB; `None` if not even slots of 16 bytes fit.
    pub fn within(ranks: u32, max_blocks: u32, limit: u64) -> Option<Self> {
        let max_blocks = max_blocks.max(1).checked_next_multiple_of(8)?;
        let pairs = u64::from(ranks).checked_mul(u64::from(max_blocks))?;
        let slots = limit.checked_sub(pairs.checked_mul(16)?)?;
        let slot = (slots / (2 * pairs).max(1)).min(64 << 10) & !15;
        (slot > 0).then_some(Self { ranks, max_blocks, slot_bytes: as_u32(slot) })
    }

    /// Bytes of the whole region.
    pub const fn bytes(&self) -> u64 {
        let pairs = self.ranks as u64 * self.max_blocks as u64;
        16 * pairs + 2 * pairs * self.slot_bytes as u64
    }

    /// `slice_bytes` for a call of `bytes` by `grid` blocks: one tile per block if that fits into the slots.
    pub fn slice_bytes(&self, bytes: u64, grid: u32) -> u32 {
        let share = bytes.div_ceil(u64::from(self.ranks.max(1)) * u64::from(grid.max(1)));
        as_u32(share.next_multiple_of(16).clamp(16, u64::from(self.slot_bytes)))
    }
}

/// For values that a minimum has already bounded.
fn as_u32(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_exist() {
        let row = crate::catalog::kernel("all_reduce_hb").expect("in the catalog");
        let allowed = |name| row.params.iter().find(|p| p.name == name).expect("a parameter").values;
        assert!(ElementType::ALL.iter().all(|t| allowed("TYPE").contains(&t.name())));
        assert!(ReduceOp::ALL.iter().all(|op| allowed("OP").contains(&op.name())));
        assert!((1..=72).all(|ranks| allowed("RANKS").contains(&ranks_variant(ranks))));
    }

    #[test]
    fn the_layout_fits_its_limit() {
        for ranks in [1, 2, 3, 8, 72] {
            let layout = HbLayout::within(ranks, 61, 32 << 20).expect("32 MiB suffice");
            assert_eq!(layout.max_blocks % 8, 0);
            assert!(layout.bytes() <= 32 << 20);
            for bytes in [0, 1, 16, 17, 1 << 20, 1 << 40] {
                let slice = layout.slice_bytes(bytes, 5);
                assert!(slice.is_multiple_of(16) && (16..=layout.slot_bytes).contains(&slice));
            }
        }
        assert_eq!(HbLayout::within(8, 64, 100), None);
    }

    #[test]
    fn small_calls_use_one_packet_per_thread() {
        assert_eq!(one_shot_shape(0, 64), LaunchShape { grid: 1, block: 32 });
        assert_eq!(one_shot_shape(1024, 64), LaunchShape { grid: 1, block: 128 });
        assert_eq!(one_shot_shape(1025, 64), LaunchShape { grid: 2, block: 128 });
        assert_eq!(one_shot_shape(1 << 30, 64), LaunchShape { grid: 64, block: 512 });
    }
}
