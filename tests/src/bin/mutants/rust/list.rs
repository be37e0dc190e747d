//! The mutants that cargo-mutants lists, with a name that outlives changes elsewhere in the file.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::syntax::{Nodes, Place, Wanted};

/// One mutant of the library.
#[derive(Clone, Debug)]
pub(super) struct Mutant {
    /// File below `core/src`, description, and the text that it changes; `#2` if two are alike.
    pub(super) name: String,
    /// Path from the root of the repository.
    pub(super) file: String,
    /// cargo-mutants' genre.
    pub(super) kind: String,
    pub(super) line: usize,
    pub(super) replacement: String,
    pub(super) place: Place,
    /// Where cargo-mutants puts the replacement: lines and columns from 1.
    pub(super) span: Range<(usize, usize)>,
}

const SOURCES: &str = "core/src/";

/// All mutants of the library in the repository at `root`, by the rules of `.cargo/mutants.toml`.
pub(super) fn all(root: &Path) -> Vec<Mutant> {
    let mut mutants = Vec::new();
    let mut nodes: HashMap<String, Nodes> = HashMap::new();
    let mut seen: HashMap<String, u32> = HashMap::new();
    for listed in listed(root, &[]) {
        let text = |key: &str| listed[key].as_str().expect("cargo-mutants writes a text").to_owned();
        let (file, kind, replacement) = (text("file"), text("genre"), text("replacement"));
        let nodes = nodes.entry(file.clone()).or_insert_with(|| {
            let path = root.join(&file);
            let source = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            Nodes::parse(&source).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        });
        let span = position(&listed["span"]["start"])..position(&listed["span"]["end"]);
        if nodes.is_test(span.start.0) {
            continue;
        }
        let function_end = listed["function"]["span"]["end"].is_object();
        let function_end = function_end.then(|| position(&listed["function"]["span"]["end"]));
        let wanted = Wanted { kind: &kind, start: span.start, function_end, replacement: &replacement };
        let (place, old) = nodes.place(&wanted);
        let name = name(&text("name"), &file, &old);
        let count = seen.entry(name.clone()).or_default();
        *count += 1;
        let name = if *count == 1 { name } else { format!("{name} #{count}") };
        mutants.push(Mutant { name, file, kind, line: span.start.0, replacement, place, span });
    }
    mutants
}

/// Mutants of `all` that the changes since the commit `base` concern.
pub(super) fn changed(root: &Path, base: &str, all: &[Mutant]) -> HashSet<String> {
    let diff = Command::new("git").arg("-C").arg(root).args(["diff", base, "--", SOURCES]).output();
    let diff = diff.expect("git runs");
    assert!(diff.status.success(), "git diff {base}: {}", String::from_utf8_lossy(&diff.stderr));
    if diff.stdout.is_empty() {
        return HashSet::new();
    }
    let file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    std::fs::write(file.path(), diff.stdout).expect("a temporary file can be written");
    let listed = listed(root, &["--in-diff", file.path().to_str().expect("its path is UTF-8")]);
    let concerns = |mutant: &&Mutant| {
        listed.iter().any(|listed| {
            listed["file"] == *mutant.file
                && listed["replacement"] == *mutant.replacement
                && position(&listed["span"]["start"]) == mutant.span.start
                && position(&listed["span"]["end"]) == mutant.span.end
        })
    };
    all.iter().filter(concerns).map(|mutant| mutant.name.clone()).collect()
}

fn listed(root: &Path, more: &[&str]) -> Vec<Value> {
    let mut command = Command::new("cargo");
    command.args(["mutants", "--list", "--json", "--package", "aqueduct"]).args(more).current_dir(root);
    let output = command.output().expect("cargo runs");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo install --locked cargo-mutants@27.1.0: {complaint}");
    let text = String::from_utf8(output.stdout).expect("cargo-mutants writes UTF-8");
    if text.trim().is_empty() {
        return Vec::new();
    }
    match serde_json::from_str(&text).expect("cargo-mutants writes JSON") {
        Value::Array(listed) => listed,
        other => panic!("cargo-mutants wrote no list: {other}"),
    }
}

fn position(value: &Value) -> (usize, usize) {
    let number = |key: &str| value[key].as_u64().and_then(|n| usize::try_from(n).ok()).expect("a number");
    (number("line"), number("column"))
}

/// Takes line and column out of cargo-mutants' name, and adds what is changed.
fn name(theirs: &str, file: &str, old: &str) -> String {
    let words: Vec<&str> = theirs.split_whitespace().collect();
    let words = words.join(" ");
    let described = words.split_once(": ").map_or(words.as_str(), |(_, described)| described);
    let file = file.strip_prefix(SOURCES).unwrap_or(file);
    let old: String = old.chars().take(80).collect();
    if old.is_empty() { format!("{file}: {described}") } else { format!("{file}: {described}: {old}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_depend_on_lines() {
        let theirs = "core/src/a/b.rs:10:5: replace + with - in f";
        assert_eq!(name(theirs, "core/src/a/b.rs", "x +  y"), "a/b.rs: replace + with - in f: x +  y");
        assert_eq!(name(theirs, "core/src/a/b.rs", ""), "a/b.rs: replace + with - in f");
    }
}
