//! Warnings about variables of the environment that have no effect.

/// The first part of the name of each variable.
pub(super) const PREFIX: &str = "AQUEDUCT_SOFT_";
/// The second part.
pub(super) const VARIABLES: [&str; 13] = [
    "DEVICES",
    "SMS",
    "MEMORY",
    "SHADOW",
    "CORES",
    "WATCHDOG",
    "CC",
    "MULTICAST",
    "UNKIND",
    "LACKS",
    "CHECK",
    "SEED",
    "LINES",
];

/// Warns on standard error of variables that have no effect with these checks.
pub(super) fn warn(races: bool, weak: bool) {
    let set = std::env::vars_os().filter(|(_, value)| !value.is_empty());
    let mut names: Vec<String> = set.map(|(name, _)| name.to_string_lossy().into_owned()).collect();
    names.sort();
    for sentence in names.iter().filter_map(|name| without_effect(name, races, weak)) {
        eprintln!("cuda-soft: warning: {sentence}");
    }
}

/// A sentence about a variable, if it has no effect with these checks.
fn without_effect(name: &str, races: bool, weak: bool) -> Option<String> {
    let why = match name.strip_prefix(PREFIX)? {
        "SEED" | "LINES" if !weak => "has no effect without AQUEDUCT_SOFT_CHECK=weak",
        "SHADOW" if !races => "has no effect without AQUEDUCT_SOFT_CHECK=races",
        known if VARIABLES.contains(&known) => return None,
        _ => "is not a variable of the software device, and has no effect",
    };
    Some(format!("{name} {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_without_effect_are_named() {
        let (for_weak, for_races) = (
            "has no effect without AQUEDUCT_SOFT_CHECK=weak",
            "has no effect without AQUEDUCT_SOFT_CHECK=races",
        );
        for (word, races, weak, why) in [
            ("SEED", true, false, for_weak),
            ("LINES", false, false, for_weak),
            ("SHADOW", false, false, for_races),
            ("CHEK", true, true, "is not a variable of the software device, and has no effect"),
        ] {
            let name = format!("{PREFIX}{word}");
            assert_eq!(without_effect(&name, races, weak), Some(format!("{name} {why}")));
        }
        for (word, races, weak) in
            [("SEED", true, true), ("LINES", true, true), ("SHADOW", true, false), ("SMS", false, false)]
        {
            assert_eq!(without_effect(&format!("{PREFIX}{word}"), races, weak), None);
        }
        assert_eq!(without_effect("HOME", false, false), None);
    }
}
