//! Variables with this library's prefix that no code reads, the nearest name that exists, and unknown parts of
//! the log.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::log_spec::LogSpec;
use super::variables::{PREFIX, VARIABLES};

/// Returns a warning for every `AQUEDUCT_` variable in `variables` that no code reads, and one for unknown parts of
/// `AQUEDUCT_LOG`. Variables of this project's tests are known to them only.
pub fn unknown(variables: &BTreeMap<String, String>) -> Vec<String> {
    // A value that cannot be read is an error elsewhere.
    let log = variables.get("AQUEDUCT_LOG").and_then(|text| LogSpec::parse(text).ok()?.unknown());
    unknown_names(variables).into_iter().chain(log).collect()
}

fn unknown_names(variables: &BTreeMap<String, String>) -> Vec<String> {
    let known = |name: &str| VARIABLES.iter().any(|v| v.name == name) || name.starts_with("AQUEDUCT_TEST_");
    variables
        .keys()
        .filter(|name| name.starts_with(PREFIX) && !known(name))
        .map(|name| {
            // A typing error for every three letters.
            let tolerated = (name.len() - PREFIX.len()).div_ceil(3);
            let near = VARIABLES.iter().map(|v| (distance(name, v.name), v.name)).min();
            match near {
                Some((d, near)) if d <= tolerated => {
                    format!("environment variable {name} is not known; did you mean {near}?")
                }
                _ => format!("environment variable {name} is not known; aqueduct info --env lists all"),
            }
        })
        .collect()
}

/// Levenshtein's edit distance, counted in bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let replaced = corner + usize::from(x != y);
            corner = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_get_a_hint() {
        let of = |names: &[&str]| {
            unknown(&names.iter().map(|name| (format!("{PREFIX}{name}"), String::new())).collect())
        };
        assert_eq!(of(&["SOFT_DEVICES", "LOG", "TEST_SEED"]), Vec::<String>::new());
        for (name, hint) in [
            ("TIMOUT", "did you mean AQUEDUCT_TIMEOUT?"),
            ("SOFT_DEVICE", "did you mean AQUEDUCT_SOFT_DEVICES?"),
            ("DIRVER", "did you mean AQUEDUCT_DRIVER?"),
            // Too short to be a misspelt AQUEDUCT_LOG.
            ("FOO", "aqueduct info --env lists all"),
            ("XYZZY_PLUGH_LONG", "aqueduct info --env lists all"),
        ] {
            let found = of(&[name, "TIMEOUT"]);
            assert!(found.len() == 1 && found[0].contains(hint), "{found:?}");
        }
    }

    #[test]
    fn unknown_parts_of_the_log_are_warned_of() {
        let of = |text: &str| unknown(&BTreeMap::from([("AQUEDUCT_LOG".to_owned(), text.to_owned())]));
        assert!(of("info,net").is_empty() && of("loud,nett").is_empty());
        assert!(of("info,nett")[0].contains("(nett)"));
    }

    #[test]
    fn edit_distance() {
        assert_eq!((distance("", "abc"), distance("kitten", "sitting"), distance("same", "same")), (3, 3, 0));
    }
}
