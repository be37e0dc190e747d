//! The mutations: what is tried on each statement.
//!
//! | kind | change |
//! |---|---|
//! | `order` | an ordering one step or more weaker, down to a weak access |
//! | `scope` | `sys` becomes `gpu`, `gpu` becomes `cta` |
//! | `fence` | a fence is deleted; `fence.sc` becomes `fence.acq_rel` |
//! | `barrier` | a barrier or a vote is deleted; where it combines predicates, the own one stands in |
//! | `compare` | a comparison of a flag, an epoch or a status is always true, or never |
//! | `flip` | a complement or a lap bit is dropped, a parity is constant |
//! | `select` | a selection takes always the first value, or the second |
//! | `count` | a counter that others see stays as it is |
//! | `store` | a store or an atomic write is deleted |
//! | `load` | a load of data is deleted |
//! | `reload` | the second load of the same words is deleted |
//! | `part` | an included fragment is left out: a tail, a wait, a record |

use std::collections::HashSet;

use crate::statement::{Statement, names, statements};

/// A changed source.
#[derive(Clone, Debug)]
pub(crate) struct Mutant {
    /// `inc/spin.ptxi:24:fence`; two of one kind and line are told apart by a suffix.
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) kind: &'static str,
    pub(crate) line: usize,
    pub(crate) lines: usize,
    /// Counts the mutants of this kind that stand for the same text, from 1.
    pub(crate) nth: usize,
    pub(crate) old: String,
    pub(crate) new: String,
    /// The place of a call that composes a kernel, if it is one that changes.
    pub(crate) place: Option<String>,
}

impl Mutant {
    /// Its name in the lists of `ci/mutants`: without the line, which changes, but with the text there.
    pub(crate) fn key(&self) -> String {
        let kind = self.name.rsplit(':').next().unwrap_or_default();
        let nth = if self.nth == 1 { String::new() } else { format!("#{}", self.nth) };
        format!("{}:{kind}{nth} | {}", self.file, self.old.trim())
    }

    /// The source, or the call that composes a kernel, by which its tests are found.
    pub(crate) fn used(&self) -> &str {
        self.place.as_deref().unwrap_or(&self.file)
    }

    /// The text that stands for what it changes: the whole changed source, in which the old statement stays as a comment, so
    /// that no name of the template goes unused; or how a call differs.
    pub(crate) fn apply(&self, source: &str) -> String {
        if self.place.is_some() {
            return self.new.clone();
        }
        let mut text = String::with_capacity(source.len() + 200);
        for (at, line) in source.lines().enumerate() {
            if at + 1 == self.line {
                text.push_str(&format!(
                    "{} // mutant of: {}\n",
                    self.new,
                    self.old.trim_start().trim_start_matches('#')
                ));
            } else if at + 1 < self.line || at + 1 >= self.line + self.lines {
                text.push_str(line);
                text.push('\n');
            }
        }
        text
    }
}

/// All mutants of the source `file`.
pub(crate) fn mutants(file: &str, source: &str) -> Vec<Mutant> {
    let statements = statements(source);
    let flags = flags(&statements);
    let mut seen = HashSet::new();
    let mut found: Vec<Mutant> = Vec::new();
    for statement in &statements {
        let again = statement.parts[0] == "ld" && !seen.insert(statement.text.clone());
        for (kind, suffix, new) in changes(statement, &flags, again) {
            let name = format!("{file}:{}:{kind}{suffix}", statement.line);
            let (line, lines, old) = (statement.line, statement.lines, statement.text.clone());
            let tail = format!(":{kind}{suffix}");
            let same = |other: &&Mutant| other.old.trim() == old.trim() && other.name.ends_with(&tail);
            let nth = 1 + found.iter().filter(same).count();
            found.push(Mutant { name, file: file.to_owned(), kind, line, lines, nth, old, new, place: None });
        }
    }
    found
}

/// Registers and parameters that hold flags, epochs or statuses: what strong accesses bring, what is called so, and what is
/// computed from those.
fn flags(statements: &[Statement]) -> HashSet<String> {
    const CALLED: [&str; 12] = [
        "ABORTED", "%aborted", "LAST", "%last", "TAKEN", "FLAG", "VALUE", "EPOCH", "%epoch", "%before",
        "SPINS", "POSITION",
    ];
    const COUNTERS: [&str; 2] = ["EXPECTED", "OUTBOUND"];
    const PASS: [&str; 10] = ["mov", "xor", "or", "and", "sub", "add", "cvt", "selp", "shr", "not"];
    let mut flags: HashSet<String> = CALLED.iter().map(|&name| name.to_owned()).collect();
    loop {
        let before = flags.len();
        for statement in statements {
            let Some((to, from)) = statement.operands.split_first() else { continue };
            let load = statement.parts[0] == "ld";
            // Counters that one thread at a time uses are read weakly.
            let counts = load && names(&from.concat()).any(|name| COUNTERS.contains(&name));
            let strong = statement.parts[0] == "atom"
                || counts
                || (load && ["relaxed", "acquire"].contains(&statement.parts[1].as_str()));
            let passed = PASS.contains(&statement.parts[0].as_str())
                && from.iter().any(|operand| is_flag(operand, &flags));
            if strong || passed {
                flags.extend(names(to).map(str::to_owned));
            }
        }
        if flags.len() == before {
            return flags;
        }
    }
}

fn is_flag(operand: &str, flags: &HashSet<String>) -> bool {
    !operand.starts_with('[') && names(operand).any(|name| flags.contains(name))
}

type Change = (&'static str, String, String);

fn changes(statement: &Statement, flags: &HashSet<String>, again: bool) -> Vec<Change> {
    let mut found: Vec<Change> = Vec::new();
    let base = statement.parts[0].as_str();
    let part = |at: usize| statement.parts.get(at).map_or("", String::as_str);
    let ty = part(statement.parts.len() - 1);
    let operand = |at: usize| statement.operands.get(at).map_or("", String::as_str);
    let mut change = |kind, suffix: &str, body: String| {
        let suffix = if suffix.is_empty() { String::new() } else { format!("-{suffix}") };
        let new = if body.is_empty() { String::new() } else { format!("{}{body};", statement.head) };
        if new != statement.text {
            found.push((kind, suffix, new));
        }
    };
    let with = |parts: &[&str]| format!("{} {}", parts.join("."), statement.operands.join(", "));
    let replaced = |old: &str, new: &str| {
        let parts: Vec<&str> = statement.parts.iter().map(|p| if p == old { new } else { p }).collect();
        if statement.operands.is_empty() { parts.join(".") } else { with(&parts) }
    };
    let flagged = || statement.operands.iter().skip(1).any(|operand| is_flag(operand, flags));

    if ["ld", "st", "atom", "red", "fence", "multimem"].contains(&base) {
        // `multimem.st.relaxed.sys` is a store like `st.relaxed.sys`.
        let before = if base == "multimem" { 2 } else { 1 };
        match part(before) {
            "acq_rel" if base != "fence" => {
                for weaker in ["acquire", "release", "relaxed"] {
                    change("order", weaker, replaced("acq_rel", weaker));
                }
            }
            order @ ("acquire" | "release") => change("order", "", replaced(order, "relaxed")),
            "relaxed" if ["ld", "st", "ld_reduce"].contains(&part(before - 1)) => {
                let parts = (0..before).map(part).chain(["weak"]);
                let parts: Vec<&str> = parts.chain((before + 2..statement.parts.len()).map(part)).collect();
                change("order", "", with(&parts));
            }
            "sc" => change("order", "", replaced("sc", "acq_rel")),
            _ => {}
        }
        match part(before + 1) {
            "sys" => change("scope", "", replaced("sys", "gpu")),
            "gpu" => change("scope", "", replaced("gpu", "cta")),
            _ => {}
        }
    }
    match base {
        "fence" => change("fence", "", String::new()),
        "bar" | "barrier" if statement.parts.contains(&"red".to_owned()) => {
            change(
                "barrier",
                "",
                format!("mov.pred {}, {}", operand(0), operand(statement.operands.len() - 1)),
            );
        }
        "bar" | "barrier" => change("barrier", "", String::new()),
        "vote" => change("barrier", "", format!("mov.pred {}, {}", operand(0), operand(1))),
        "st" | "red" => change("store", "", String::new()),
        "multimem" if part(1) != "ld_reduce" => change("store", "", String::new()),
        "multimem" => change("load", "", String::new()),
        "atom" => {
            let order = if part(1) == "acq_rel" { "acquire" } else { part(1) };
            change("store", "", format!("ld.{order}.{}.global.{ty} {}, {}", part(2), operand(0), operand(1)));
        }
        "ld" if part(1) == "weak" => change(if again { "reload" } else { "load" }, "", String::new()),
        "ld" if part(1) != "param" && again => change("reload", "", String::new()),
        "#include" => change("part", "", String::new()),
        "setp" if flagged() => {
            let (p, joined) = (operand(0), operand(3));
            let (yes, no) = (format!("setp.eq.u32 {p}, 0, 0"), format!("setp.ne.u32 {p}, 0, 0"));
            let kept = format!("mov.pred {p}, {joined}");
            change("compare", "always", if part(2) == "and" { kept.clone() } else { yes });
            change("compare", "never", if part(2) == "or" { kept } else { no });
        }
        "xor" if flagged() && ty == "b32" => change("compare", "", format!("mov.{ty} {}, 0", operand(0))),
        "not" => change("flip", "", format!("mov.{ty} {}, {}", operand(0), operand(1))),
        "or" if names(operand(2)).any(|name| name.ends_with("lap")) => {
            change("flip", "", format!("mov.{ty} {}, {}", operand(0), operand(1)));
        }
        "and" if flagged() && operand(2) == "1" => {
            change("flip", "0", format!("mov.{ty} {}, 0", operand(0)));
            change("flip", "1", format!("mov.{ty} {}, 1", operand(0)));
        }
        "selp" => {
            change("select", "first", format!("mov.{ty} {}, {}", operand(0), operand(1)));
            change("select", "second", format!("mov.{ty} {}, {}", operand(0), operand(2)));
        }
        "add" | "sub" if flagged() && operand(2) == "1" => {
            change("count", "", format!("mov.{ty} {}, {}", operand(0), operand(1)));
        }
        _ => {}
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_of(source: &str) -> Vec<(String, String)> {
        mutants("x", source).into_iter().map(|m| (m.name, m.new.trim().to_owned())).collect()
    }

    #[test]
    fn an_atomic_is_weakened_in_each_way() {
        let found = names_of("    atom.acq_rel.gpu.global.add.u64 %o, [%a], 1;\n");
        let expected = [
            ("x:1:order-acquire", "atom.acquire.gpu.global.add.u64 %o, [%a], 1;"),
            ("x:1:order-release", "atom.release.gpu.global.add.u64 %o, [%a], 1;"),
            ("x:1:order-relaxed", "atom.relaxed.gpu.global.add.u64 %o, [%a], 1;"),
            ("x:1:scope", "atom.acq_rel.cta.global.add.u64 %o, [%a], 1;"),
            ("x:1:store", "ld.acquire.gpu.global.u64 %o, [%a];"),
        ];
        assert_eq!(found, expected.map(|(name, new)| (name.to_owned(), new.to_owned())));
    }

    #[test]
    fn accesses_of_several_devices_are_weakened_like_others() {
        let found = names_of(
            "    @%p multimem.st.relaxed.sys.global.v4.f32 [%a], {%x};\n    multimem.red.release.sys.global.add.u32 [%a], 1;\n",
        );
        let expected = [
            ("x:1:order", "@%p multimem.st.weak.global.v4.f32 [%a], {%x};"),
            ("x:1:scope", "@%p multimem.st.relaxed.gpu.global.v4.f32 [%a], {%x};"),
            ("x:1:store", ""),
            ("x:2:order", "multimem.red.relaxed.sys.global.add.u32 [%a], 1;"),
            ("x:2:scope", "multimem.red.release.gpu.global.add.u32 [%a], 1;"),
            ("x:2:store", ""),
        ];
        assert_eq!(found, expected.map(|(name, new)| (name.to_owned(), new.to_owned())));
    }

    #[test]
    fn only_comparisons_of_flags_are_dropped() {
        let source = "ld.acquire.sys.global.u64 %seen, [%at];\nsub.u64 %d, %seen, %w;\nsetp.ge.u64 %p, %d, 5;\nsetp.lt.u32 %p, %i, %n;\n";
        let found: Vec<_> =
            names_of(source).into_iter().filter(|(name, _)| name.contains("compare")).collect();
        assert_eq!(found[0], ("x:3:compare-always".to_owned(), "setp.eq.u32 %p, 0, 0;".to_owned()));
        assert_eq!(found[1], ("x:3:compare-never".to_owned(), "setp.ne.u32 %p, 0, 0;".to_owned()));
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn a_change_keeps_the_other_lines_and_every_name() {
        let source = "a;\n    @%p st.release.sys.global.u64 [${A}],\n        ${B};\nb;\n";
        let found = mutants("x", source);
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(
            found[0].apply(source),
            "a;\n    @%p st.relaxed.sys.global.u64 [${A}], ${B}; // mutant of: @%p st.release.sys.global.u64 [${A}], ${B};\nb;\n"
        );
        assert_eq!(found[2].kind, "store");
        assert_eq!(
            found[2].apply(source),
            "a;\n // mutant of: @%p st.release.sys.global.u64 [${A}], ${B};\nb;\n"
        );
    }
}
