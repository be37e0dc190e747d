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

    #[test]
    #[ignore = "the child of another test"]
    fn reads_its_environment() {
        super::super::current().expect("it is valid");
    }

    /// A variable that is set to nothing is as one that is not set.
    #[test]
    fn a_process_warns_of_the_variables_that_are_set_in_vain() {
        let output = std::process::Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "config::unused::tests::reads_its_environment", "--ignored", "--nocapture"])
            .envs(
                [("SEED", "7"), ("LINES", ""), ("CHEK", "races"), ("OLD", ""), ("SMS", "2")]
                    .map(|(word, value)| (format!("{PREFIX}{word}"), value)),
            )
            .env_remove(format!("{PREFIX}CHECK"))
            .output()
            .expect("the child runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let warnings = said.lines().filter_map(|line| line.split_once("warning: ")?.1.strip_prefix(PREFIX));
        let words: Vec<&str> = warnings.filter_map(|warning| warning.split(' ').next()).collect();
        assert_eq!(words, ["CHEK", "SEED"], "{said}");
    }
}
