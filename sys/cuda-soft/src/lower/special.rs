//! Special registers (PTX ISA 10).

use crate::code::Ty;
use crate::code::op::Special;

/// The result of reading a special register.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reading {
    /// The engine provides the value.
    Special(Special),
    /// The value is constant, because this device has no clusters.
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
            "%ctaid" | "%clusterid" => vector(Special::Ctaid),
            "%nctaid" | "%nclusterid" => vector(Special::Nctaid),
            "%cluster_ctaid" => Some((Constant(0), Ty::U32)),
            "%cluster_nctaid" => Some((Constant(u64::from(member < 3)), Ty::U32)),
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
        "%cluster_ctarank" => Some((Constant(0), Ty::U32)),
        "%cluster_nctarank" => Some((Constant(1), Ty::U32)),
        _ => {
            let number: u8 = name.strip_prefix("%envreg")?.parse().ok()?;
            if number < 32 { word(Special::EnvReg(number)) } else { None }
        }
    }
}
