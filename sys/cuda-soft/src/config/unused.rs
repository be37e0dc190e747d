//! Warnings about variables of the environment that have no effect.

use super::Config;

/// How the names of all variables begin.
const PREFIX: &str = "AQUEDUCT_SOFT_";
/// How they end.
const VARIABLES: [&str; 13] = [
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

/// [`Config::from_env`], with warnings on standard error.
///
/// # Errors
/// A sentence that names the variable whose value is invalid.
pub(super) fn from_env() -> Result<Config, String> {
    let config = Config::from_env()?;
    let set = std::env::vars_os().filter(|(_, value)| !value.is_empty());
    let mut names: Vec<String> = set.map(|(name, _)| name.to_string_lossy().into_owned()).collect();
    names.sort();
    for sentence in without_effect(&config, names.into_iter()) {
        eprintln!("cuda-soft: warning: {sentence}");
    }
    Ok(config)
}

/// Sentences about the variables in `set` that have no effect on `config`.
fn without_effect(config: &Config, set: impl Iterator<Item = String>) -> Vec<String> {
    let said = |name: String| {
        let why = match name.strip_prefix(PREFIX)? {
            "SEED" | "LINES" if config.check.weak.is_none() => {
                "has no effect without AQUEDUCT_SOFT_CHECK=weak"
            }
            "SHADOW" if !config.check.races => "has no effect without AQUEDUCT_SOFT_CHECK=races",
            known if VARIABLES.contains(&known) => return None,
            _ => "is not a variable of the software device, and has no effect",
        };
        Some(format!("{name} {why}"))
    };
    set.filter_map(said).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_without_effect_are_named() {
        let said = |check: &str, name: &str| {
            let get = |asked: &str| (asked == "AQUEDUCT_SOFT_CHECK").then(|| check.to_owned());
            let config = Config::from_lookup(get).expect("parses");
            without_effect(&config, std::iter::once(name.to_owned()))
        };
        let (weak, races) = (
            "has no effect without AQUEDUCT_SOFT_CHECK=weak",
            "has no effect without AQUEDUCT_SOFT_CHECK=races",
        );
        for (check, word, why) in [
            ("races", "SEED", weak),
            ("aligned", "LINES", weak),
            ("aligned", "SHADOW", races),
            ("races", "CHEK", "is not a variable of the software device, and has no effect"),
        ] {
            let name = format!("{PREFIX}{word}");
            assert_eq!(said(check, &name), [format!("{name} {why}")], "with {check}");
        }
        for (check, word) in
            [("weak", "SEED"), ("weak", "LINES"), ("weak", "SHADOW"), ("races", "SHADOW"), ("races", "CHECK")]
        {
            assert_eq!(said(check, &format!("{PREFIX}{word}")), [""; 0], "{word} with {check}");
        }
        assert_eq!(said("races", "HOME"), [""; 0]);
    }

    #[test]
    fn the_list_has_every_variable() {
        let asked = std::cell::RefCell::new(Vec::new());
        let ask = |name: &str| {
            asked.borrow_mut().push(name.to_owned());
            None
        };
        Config::from_lookup(ask).expect("nothing is invalid");
        let (mut asked, mut all) = (asked.into_inner(), VARIABLES.map(|word| format!("{PREFIX}{word}")));
        asked.sort();
        all.sort();
        assert_eq!(asked, all);
    }
}
