//! The value of `AQUEDUCT_LOG`: which messages are shown.
#![forbid(unsafe_code)]

/// The parts of this library that write messages: `net` for the code in `src/net`. Sorted.
const PARTS: &[&str] = &[
    "abort",
    "bootstrap",
    "collective",
    "comm",
    "device_messages",
    "env",
    "gpu",
    "group",
    "ledger",
    "memory",
    "message",
    "net",
    "plan",
    "proxy",
    "rdma",
    "setup",
    "transport",
];

/// Level and parts of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSpec {
    /// The most detailed level shown.
    pub level: log::LevelFilter,
    /// Module names to show, or to leave out if `exclude`; empty shows all.
    pub parts: Vec<String>,
    /// Whether `parts` are left out rather than selected.
    pub exclude: bool,
}

impl Default for LogSpec {
    fn default() -> Self {
        Self { level: log::LevelFilter::Warn, parts: Vec::new(), exclude: false }
    }
}

impl LogSpec {
    /// Parses `text`. The error says what the variable takes.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let mut spec = Self::default();
        for (index, word) in text.split(',').map(str::trim).filter(|w| !w.is_empty()).enumerate() {
            if index == 0 {
                spec.level = word
                    .parse()
                    .map_err(|_| "off, error, warn, info, debug or trace first, then parts of the library")?;
                continue;
            }
            let part = word.trim_start_matches('^');
            if index > 1 && spec.exclude != (part.len() < word.len()) {
                return Err("parts that are all selected or all excluded with ^");
            }
            spec.exclude = part.len() < word.len();
            spec.parts.push(part.to_owned());
        }
        Ok(spec)
    }

    /// Whether messages of `part` are shown, at the level or a less detailed one.
    pub(crate) fn shows(&self, part: &str) -> bool {
        // The part `env` warns of mistakes in the selection of parts, so it is in every selection.
        let named = self.parts.iter().any(|p| p == part) || part == "env" && !self.exclude;
        self.level != log::LevelFilter::Off && (self.parts.is_empty() || named != self.exclude)
    }

    /// A warning if parts are named that this library does not have. It is no error: the messages of a program that uses this
    /// library's logger are a part by the name of its crate.
    pub(super) fn unknown(&self) -> Option<String> {
        let unknown: Vec<&str> =
            self.parts.iter().map(String::as_str).filter(|part| !PARTS.contains(part)).collect();
        (!unknown.is_empty()).then(|| {
            let (unknown, all) = (unknown.join(", "), PARTS.join(", "));
            format!("AQUEDUCT_LOG names parts that aqueduct does not have ({unknown}); its parts are {all}")
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn unknown_parts_are_named_with_those_that_exist() {
        let of = |text: &str| LogSpec::parse(text).unwrap().unknown();
        for fine in ["", "info", "info,net,bootstrap", "debug,^gpu"] {
            assert_eq!(of(fine), None, "{fine}");
        }
        for (text, named) in [("info,nett", "(nett)"), ("info,^nett,^gpu,^grup", "(nett, grup)")] {
            let warning = of(text).unwrap();
            assert!(
                warning.contains(named) && warning.contains("memory, message, net, plan, proxy"),
                "{warning}"
            );
        }
    }

    #[test]
    fn parts_are_selected_or_excluded() {
        let spec = |parts: &[&str], exclude| LogSpec {
            parts: parts.iter().map(|p| (*p).to_owned()).collect(),
            exclude,
            ..LogSpec::default()
        };
        assert!(spec(&[], false).shows("net"));
        assert!(spec(&["net"], false).shows("net") && !spec(&["net"], false).shows("gpu"));
        assert!(!spec(&["net"], true).shows("net") && spec(&["net"], true).shows("gpu"));
        assert!(spec(&["net"], false).shows("env") && !spec(&["env"], true).shows("env"));
        assert!(!LogSpec { level: log::LevelFilter::Off, ..LogSpec::default() }.shows("env"));
    }

    /// A room of this crate is a part if a file in it writes messages.
    #[test]
    fn the_parts_are_those_that_write_messages() {
        fn writes(path: &Path) -> bool {
            if path.is_dir() {
                return std::fs::read_dir(path).unwrap().any(|entry| writes(&entry.unwrap().path()));
            }
            let text = std::fs::read_to_string(path).unwrap_or_default();
            ["error", "warn", "info", "debug", "trace"]
                .iter()
                .any(|level| text.contains(&format!("log::{level}!(")))
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let rooms = std::fs::read_dir(source).unwrap().map(|entry| entry.unwrap().path());
        let rooms = rooms.filter(|room| writes(room));
        let found: BTreeSet<String> =
            rooms.map(|room| room.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
        assert_eq!(Vec::from_iter(found), PARTS);
    }
}
