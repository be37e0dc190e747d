//! docs/porting.md names only what exists: public items, device functions and environment variables.

use aqueduct::internals::env::VARIABLES;

const PAGE: &str = include_str!("../../docs/porting.md");
const ITEMS: &str = include_str!("../../ci/public-items.txt");

/// The rows of the tables below a heading, without the headings of the tables.
fn rows(heading: &str) -> impl Iterator<Item = Vec<&'static str>> {
    let begin = PAGE.find(&format!("\n## {heading}\n")).expect("the page has this heading") + 4;
    let section = PAGE[begin..].split("\n## ").next().expect("a split has a first part");
    section.lines().filter(|line| line.starts_with("| ")).skip(1).map(|line| line.split(" | ").collect())
}

/// The texts between backticks.
fn names(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Whether `name` stands in `text` behind `before`, and does not go on.
fn has(text: &str, before: &str, name: &str) -> bool {
    let full = format!("{before}{name}");
    text.match_indices(&full).any(|(at, _)| {
        !text[at + full.len()..].starts_with(|next: char| next.is_ascii_alphanumeric() || next == '_')
    })
}

#[test]
fn every_item_is_public() {
    let mut seen = 0;
    for row in ["MSCCL++: host API", "NCCL"].into_iter().flat_map(rows) {
        let paths = row[2..].iter().flat_map(|note| names(note)).filter(|name| name.contains("::"));
        for name in names(row[1]).chain(paths).filter(|name| !name.starts_with("aqueduct ")) {
            let name = name.strip_prefix("trait ").unwrap_or(name);
            assert!(has(ITEMS, "::", name), "{name} is no public item");
            seen += 1;
        }
    }
    assert!(seen > 80, "the page has only {seen} names");
}

#[test]
fn every_device_function_exists() {
    let declared = aqueduct_ptx::declarations().unwrap();
    let mut seen = 0;
    for row in rows("MSCCL++: device API") {
        for name in names(row[1]) {
            assert!(has(&declared, " aqueduct_device_", name), "{name} is no function of the device library");
            seen += 1;
        }
    }
    assert!(seen > 30, "the page has only {seen} names");
}

#[test]
fn every_variable_is_there() {
    let shown: Vec<_> =
        rows("Environment variables").flat_map(|row| names(row[2]).collect::<Vec<_>>()).collect();
    for name in shown.iter().filter(|name| name.starts_with("AQUEDUCT_")) {
        assert!(VARIABLES.iter().any(|variable| variable.name == *name), "{name} does not exist");
    }
    // Variables without a counterpart elsewhere: a launcher sets them, or they hold the driver's path.
    let own = [
        "AQUEDUCT_CUDA_LIBRARY",
        "AQUEDUCT_IB_PORT",
        "AQUEDUCT_RANK",
        "AQUEDUCT_LAUNCHER",
        "AQUEDUCT_PROGRESS",
        "AQUEDUCT_FAILURES",
    ];
    for variable in VARIABLES {
        let launcher = variable.name.ends_with("WORLD_SIZE") || variable.name.ends_with("LOCAL_RANK");
        assert!(
            launcher
                || variable.name.starts_with("AQUEDUCT_SOFT_")
                || own.contains(&variable.name)
                || shown.contains(&variable.name),
            "{} is missing in the page",
            variable.name
        );
    }
}
