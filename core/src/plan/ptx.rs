//! The text of a rank's kernel.

use aqueduct_ptx::{Target, plan};

use super::check;
use super::ir::{Plan, Reduction};
use super::lower::{Averages, Ways, lower};
use crate::error::{Error, ErrorKind, Result};

/// The PTX of `rank`'s kernel for elements of a type, with `reduction` in place of the plan's own if there is one, as an
/// [`Executor`](super::Executor) gives it to the driver of a device of compute capability `sm` (90 for 9.0).
///
/// # Errors
/// `Plan` for a plan of wrong structure, and for what kernels cannot do; `InvalidUsage` for a rank that the plan lacks;
/// `Unsupported` for a capability below 7.0.
pub fn ptx(
    plan: &Plan,
    rank: u32,
    element: plan::Element,
    reduction: Option<Reduction>,
    sm: u32,
) -> Result<String> {
    let op = "plan::ptx";
    let refused = |message: String| Error::new(ErrorKind::Plan, op, message);
    if let Some(finding) = check::structure(plan).first() {
        return Err(refused(finding.to_string()));
    }
    if rank as usize >= plan.ranks.len() {
        let message = format!("there is no rank {rank}; the plan has ranks 0 to {}", plan.ranks.len() - 1);
        return Err(Error::usage(op, message));
    }
    // Any driver that knows the device knows this target.
    let target = Target::for_device(sm / 10, sm % 10, u32::MAX).ok_or_else(|| {
        let message = format!("compute capability {}.{}: kernels need 7.0 or a later one", sm / 10, sm % 10);
        Error::new(ErrorKind::Unsupported, op, message)
    })?;
    let lowered =
        lower(plan, rank, element, reduction, &Averages::of(plan), Ways::default())?.ok_or_else(|| {
            refused(format!("rank {rank} has no operation, and so no kernel; it only takes part"))
        })?;
    Ok(plan::render(&lowered.kernel, target).map_err(|error| refused(error.to_string()))?.text)
}

#[cfg(test)]
mod tests {
    use super::super::programs::{Choices, find};
    use super::*;

    #[test]
    fn each_rank_type_and_device_has_a_text_of_its_own() {
        let plan =
            find("all-reduce", None).unwrap().program(2, &Choices::default()).unwrap().compile().unwrap();
        let (f32, f16) = (plan::Element::F32, plan::Element::F16);
        let text = |rank, element, reduction, sm| ptx(&plan, rank, element, reduction, sm).unwrap();
        let first = text(0, f32, None, 90);
        assert!(first.contains(".target sm_90") && first.contains(".entry aqueduct_plan("), "{first}");
        assert_eq!(first, text(0, f32, Some(Reduction::Sum), 90));
        for other in [
            text(1, f32, None, 90),
            text(0, f16, None, 90),
            text(0, f32, Some(Reduction::Max), 90),
            text(0, f32, None, 80),
        ] {
            assert_ne!(first, other);
        }
    }

    #[test]
    fn ranks_devices_and_plans_that_there_are_not_are_refused() {
        let plan =
            find("all-reduce", None).unwrap().program(2, &Choices::default()).unwrap().compile().unwrap();
        let error = |plan: &Plan, rank, sm| {
            let error = ptx(plan, rank, plan::Element::F32, None, sm).unwrap_err();
            (error.kind(), error.message().to_owned())
        };
        let (kind, message) = error(&plan, 2, 90);
        assert!(kind == ErrorKind::InvalidUsage && message.contains("ranks 0 to 1"), "{message}");
        let (kind, message) = error(&plan, 0, 61);
        assert!(kind == ErrorKind::Unsupported && message.contains("6.1"), "{message}");
        let mut wrong = plan.clone();
        wrong.ranks[0].memory_channels[0] = 9;
        assert_eq!(error(&wrong, 0, 90).0, ErrorKind::Plan);
        wrong.ranks.clear();
        assert!(ptx(&wrong, 0, plan::Element::F32, None, 90).is_err());
    }
}
