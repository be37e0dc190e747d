//! Variables with this library's prefix that no code reads, and the nearest name that exists.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::variables::{PREFIX, SOFT, VARIABLES};

/// Returns a warning for every `AQUEDUCT_` variable in `variables` that no code reads.
pub fn unknown(variables: &BTreeMap<String, String>) -> Vec<String> {
    let known = |name: &str| VARIABLES.iter().any(|v| v.name == name);
    variables
        .keys()
        .filter(|name| name.starts_with(PREFIX) && !name.starts_with(SOFT) && !known(name))
        .map(|name| {
            let near = VARIABLES.iter().map(|v| (distance(name, v.name), v.name)).min();
            match near {
                Some((d, near)) if d <= 4 => {
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
        let names = ["TIMOUT", "SOFT_DEVICES", "XYZZY_PLUGH_LONG", "LOG"];
        let found = unknown(&names.map(|name| (format!("{PREFIX}{name}"), String::new())).into());
        assert_eq!(found.len(), 2);
        assert!(found[0].contains("did you mean AQUEDUCT_TIMEOUT?"), "{found:?}");
        assert!(found[1].contains("aqueduct info --env"), "{found:?}");
    }

    #[test]
    fn edit_distance() {
        assert_eq!((distance("", "abc"), distance("kitten", "sitting"), distance("same", "same")), (3, 3, 0));
    }
}
