//! Special registers (PTX ISA 10).

use crate::code::Ty;
use crate::code::op::Special;

/// The result of reading a special register.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reading {
    /// The engine provides the value.
    Special(Special),
    /// The value is constant.
    Constant(u64),
}

/// The meaning and type of `name`, with component `component`; `None` if there is no such register.
pub(super) fn special(name: &str, component: Option<char>) -> Option<(Reading, Ty)> {
    use Reading::Constant;
    let member = component.map(|c| match c {
        'x' => 0u8,
        'y' => 1,
        'z' => 2,
        _ => 3,
    });
    if let Some(member) = member {
        let vector = |make: fn(u8) -> Special| {
            Some((if member < 3 { Reading::Special(make(member)) } else { Constant(0) }, Ty::U32))
        };
        return match name {
            "%tid" => vector(Special::Tid),
            "%ntid" => vector(Special::Ntid),
            "%ctaid" => vector(Special::Ctaid),
            "%nctaid" => vector(Special::Nctaid),
            "%clusterid" => vector(Special::ClusterId),
            "%nclusterid" => vector(Special::NClusterId),
            "%cluster_ctaid" => vector(Special::ClusterCtaId),
            "%cluster_nctaid" => vector(Special::ClusterNCtaId),
            _ => None,
        };
    }
    let word = |special| Some((Reading::Special(special), Ty::U32));
    let wide = |special| Some((Reading::Special(special), Ty::U64));
    match name {
        "%laneid" => word(Special::LaneId),
        "%warpid" => word(Special::WarpId),
        "%nwarpid" => word(Special::NWarpId),
        "%smid" => word(Special::SmId),
        "%nsmid" => word(Special::NSmId),
        "%gridid" => wide(Special::GridId),
        "%lanemask_eq" => word(Special::LaneMaskEq),
        "%lanemask_le" => word(Special::LaneMaskLe),
        "%lanemask_lt" => word(Special::LaneMaskLt),
        "%lanemask_ge" => word(Special::LaneMaskGe),
        "%lanemask_gt" => word(Special::LaneMaskGt),
        "%clock" => word(Special::Clock),
        "%clock_hi" => word(Special::ClockHi),
        "%clock64" => wide(Special::Clock64),
        "%globaltimer" => wide(Special::GlobalTimer),
        "%globaltimer_lo" => word(Special::GlobalTimer),
        "%globaltimer_hi" => word(Special::GlobalTimerHi),
        "%dynamic_smem_size" => word(Special::DynamicSharedSize),
        "%total_smem_size" => word(Special::TotalSharedSize),
        "%cluster_ctarank" => word(Special::ClusterCtaRank),
        "%cluster_nctarank" => word(Special::ClusterNCtaRank),
        "%aggr_smem_size" => word(Special::TotalSharedSize),
        // The second part of the reserved memory is that of cooperative groups.
        "%reserved_smem_offset_begin" | "%reserved_smem_offset_0" => word(Special::ReservedShared(0)),
        "%reserved_smem_offset_1" => word(Special::ReservedShared(512)),
        "%reserved_smem_offset_end" | "%reserved_smem_offset_cap" => word(Special::ReservedShared(1024)),
        _ => {
            let number: u8 = name.strip_prefix("%envreg")?.parse().ok()?;
            if number < 32 { word(Special::EnvReg(number)) } else { None }
        }
    }
}
