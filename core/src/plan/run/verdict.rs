//! The checks of a plan before it is prepared, and the memory of plans that were found right.

use std::path::Path;

use super::agreement::Offer;
use super::check;
use super::config::ExecutorConfig;
use super::ir::Plan;
use super::sizes::refused;
use crate::error::Result;
use crate::gpu::{DiskCache, Key};

/// Returns an error that names the first mistake of a plan. A plan that this build of the library has found right before, as the
/// folder `cache` says, is not checked again: checks take longer than everything else where compiled kernels are kept.
pub(super) fn checked(
    plan: &Plan,
    config: &ExecutorConfig,
    offer: &Offer,
    cache: Option<&Path>,
) -> Result<()> {
    let kept = cache.map(|folder| (DiskCache::new(folder), key(offer)));
    if !config.unchecked && kept.as_ref().is_some_and(|(cache, key)| cache.read(*key).is_some()) {
        log::debug!("{}: an earlier check has found the plan right", plan.name);
        return Ok(());
    }
    let findings = if config.unchecked { check::structure(plan) } else { check::check(plan) };
    if let Some(finding) = findings.first() {
        return Err(refused(finding.to_string()));
    }
    if let Some((cache, key)) = kept.filter(|_| !config.unchecked) {
        cache.write(key, b"");
    }
    Ok(())
}

/// Stands for a plan that is right. Another build may have other checks.
fn key(offer: &Offer) -> Key {
    let plan = format!("{:02x?}", offer.digest());
    Key::of(&["a right plan", env!("CARGO_PKG_VERSION"), env!("PLAN_SOURCES"), &plan])
}

#[cfg(test)]
mod tests {
    use super::super::ir::Op;
    use super::*;
    use crate::plan::samples;

    /// A plan of which one rank does not wait for its peer.
    fn wrong() -> Plan {
        let mut plan = samples::two_shot(2);
        let ops = &mut plan.ranks[0].blocks[0].ops;
        let wait = ops.iter().position(|operation| matches!(operation.op, Op::Wait { .. }));
        ops.remove(wait.expect("it waits for its peer"));
        plan
    }

    #[test]
    fn right_plans_are_checked_once_and_wrong_ones_every_time() {
        let folder = std::env::temp_dir().join(format!("aqueduct-verdicts-{}", std::process::id()));
        let files = || std::fs::read_dir(&folder).map_or(0, Iterator::count);
        let judge = |plan: &Plan, config: &ExecutorConfig| {
            checked(plan, config, &Offer::new(plan, config, None), Some(&folder)).is_ok()
        };
        let (full, structure) =
            (ExecutorConfig::default(), ExecutorConfig { unchecked: true, ..Default::default() });
        let right = samples::two_shot(2);
        let wrong = wrong();
        for _ in 0..2 {
            assert!(!judge(&wrong, &full) && judge(&wrong, &structure));
            assert_eq!(files(), 0, "neither is a verdict of all checks");
        }
        for _ in 0..2 {
            assert!(judge(&right, &full));
            assert_eq!(files(), 1);
        }
        assert!(!judge(&wrong, &full), "the verdict is another plan's");
        // Only a kept verdict lets a wrong plan pass: so the checks did not run again.
        DiskCache::new(&folder).write(key(&Offer::new(&wrong, &full, None)), b"");
        assert!(judge(&wrong, &full));
        assert!(
            checked(&wrong, &full, &Offer::new(&wrong, &full, None), None).is_err(),
            "without the folder"
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// They may be of other checks, which have overlooked what these find.
    #[test]
    fn verdicts_of_other_builds_are_not_believed() {
        let folder = std::env::temp_dir().join(format!("aqueduct-other-verdicts-{}", std::process::id()));
        let wrong = wrong();
        let config = ExecutorConfig::default();
        let offer = Offer::new(&wrong, &config, None);
        let (plan, version) = (format!("{:02x?}", offer.digest()), env!("CARGO_PKG_VERSION"));
        for (version, sources) in
            [(version, ""), (version, "0123456789abcdef"), ("0.0.0", env!("PLAN_SOURCES"))]
        {
            let of_another = Key::of(&["a right plan", version, sources, &plan]);
            DiskCache::new(&folder).write(of_another, b"");
        }
        checked(&wrong, &config, &offer, Some(&folder)).unwrap_err();
        DiskCache::new(&folder).write(key(&offer), b"");
        checked(&wrong, &config, &offer, Some(&folder)).expect("this build's own");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
