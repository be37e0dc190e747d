//! The text of instantiated modules.

use aqueduct_ptx::{Target, catalog, functions, instantiate};

#[path = "../src/bin/aqueduct-ptx-emit/plans.rs"]
mod plans;

const TARGETS: &[u32] = &[70, 75, 80, 86, 89, 90, 100, 120];

#[test]
fn every_row_instantiates_for_every_target_and_variant() {
    for row in catalog::rows() {
        for target in TARGETS.iter().map(|&sm| Target::new(sm)).filter(|t| t.sm >= row.min_sm) {
            // Targets between those that CI assembles differ in the header only: one variant each.
            let all = [70, 80, 90, 100].contains(&target.sm);
            for variant in row.variants().into_iter().take(if all { usize::MAX } else { 1 }) {
                let context = format!("{} {variant:?} sm_{}", row.name, target.sm);
                let module =
                    instantiate(row.name, target, &variant).unwrap_or_else(|e| panic!("{context}: {e}"));
                let expected =
                    format!(".version {}.{}\n.target sm_{}\n", target.ptx / 10, target.ptx % 10, target.sm);
                assert!(module.text.starts_with(&expected), "{context}");
                assert!(module.text.is_ascii(), "{context}: the driver's JIT takes ASCII");
                for entry in &module.entries {
                    assert!(module.text.contains(&format!(".visible .entry {entry}(")), "{context}: {entry}");
                }
                assert_eq!(module.text.matches(".entry").count(), module.entries.len(), "{context}");
                check_ordering(&context, &module.text);
                check_atomics(&context, &module.text);
                check_convergence(&context, &module.text);
                check_commit(&context, &module.text);
                check_labels(&context, &module.text);
            }
        }
    }
}

#[test]
fn kernels_of_plans_obey_the_same_rules() {
    for (name, kernel) in plans::all() {
        for sm in [70, 89, 90] {
            let module = aqueduct_ptx::plan::render(&kernel, Target::new(sm)).unwrap();
            let context = format!("{name} sm_{sm}");
            assert_eq!(module.entries, [kernel.symbol.as_str()]);
            assert!(module.text.is_ascii(), "{context}");
            check_ordering(&context, &module.text);
            check_atomics(&context, &module.text);
            check_convergence(&context, &module.text);
            check_commit(&context, &module.text);
            check_labels(&context, &module.text);
        }
    }
}

#[test]
fn the_functions_obey_the_same_rules() {
    for &sm in TARGETS {
        let module = functions(Target::new(sm)).unwrap();
        assert_eq!(module.text.matches(".visible .func").count(), module.entries.len());
        check_ordering("functions", &module.text);
        check_atomics("functions", &module.text);
        check_convergence("functions", &module.text);
        check_commit("functions", &module.text);
        check_labels("functions", &module.text);
    }
}

/// Nothing of the template is left, and every global access spells its semantics.
fn check_ordering(context: &str, text: &str) {
    for line in text.lines() {
        let code = line.split("//").next().unwrap_or("").trim();
        assert!(!code.contains("${") && !code.starts_with('#'), "{context}: {code}");
        assert!(!code.contains("volatile") && !code.contains("membar"), "{context}: {code}");
        for access in code.split_whitespace().filter(|word| word.contains(".global.")) {
            let spelt = ["weak", "relaxed", "acquire", "release", "acq_rel"];
            assert!(
                access.split('.').any(|part| spelt.contains(&part)),
                "{context}: {access} does not spell its semantics"
            );
        }
    }
}

/// The instructions of a text, without comments, labels and directives.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .map(|line| line.split("//").next().unwrap_or("").trim())
        .filter(|code| !code.is_empty() && !code.ends_with(':') && !code.starts_with('.'))
}

/// No atomic operation leaves the device: many links between devices and hosts carry no atomics.
fn check_atomics(context: &str, text: &str) {
    for code in code(text).filter(|code| code.contains("atom.") || code.contains("red.global")) {
        assert!(!code.contains(".sys"), "{context}: {code}: an atomic of system scope");
    }
}

/// Warps reconverge before each barrier of a group: divergent lanes may not reach it one after the other. No fence stands
/// before it: a fence orders what its own thread wrote or observed, so the fence that publishes what a group wrote comes
/// behind the group's barrier.
fn check_convergence(context: &str, text: &str) {
    let all: Vec<&str> = code(text).collect();
    for (at, code) in
        all.iter().enumerate().filter(|(_, code)| code.starts_with("bar.sync") || code.starts_with("bar.red"))
    {
        assert_eq!(all[at - 1], "bar.warp.sync 0xffffffff;", "{context}: {code} without reconvergence");
        assert!(!all[at - 2].starts_with("fence."), "{context}: {} stands before {code}", all[at - 2]);
    }
}

/// A push writes its slot inside the loop that waits for room, under a predicate and before the branch that leaves the
/// loop. Behind the loop, a lane that has room may be held at the point of reconvergence by lanes of its warp that wait for
/// just this slot to be popped.
fn check_commit(context: &str, text: &str) {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let commits =
        lines.iter().enumerate().filter(|(_, line)| line.contains("SYNC fifo.commit (release, with"));
    let mut waiting = 0;
    for (at, commit) in commits {
        let label =
            lines[..at].iter().rev().find(|line| line.ends_with(':')).expect("a label before the store");
        let back = format!("bra {};", label.trim_end_matches(':'));
        let branch =
            lines[at..].iter().find(|line| line.contains("bra ")).expect("a branch behind the store");
        // The fragment ends with this label; the text may have the fragment more than once.
        let end = lines[at..].iter().position(|line| *line == "DONE:").map_or(lines.len(), |end| at + end);
        let looped = lines[at..end].iter().any(|line| line.ends_with(&back));
        if looped {
            waiting += 1;
            assert!(commit.starts_with('@'), "{context}: {commit} is not predicated");
            assert!(
                branch.starts_with('@') && !branch.ends_with(&back),
                "{context}: {branch} does not leave the loop"
            );
        } else {
            // A lane that need not wait: it goes on before the paths of its warp join.
            assert!(!commit.starts_with('@'), "{context}: {commit} stands in no loop");
            assert!(branch.starts_with("bra "), "{context}: {branch} may go on to the loop");
        }
    }
    assert!(
        waiting > 0 || !text.contains("SYNC fifo.commit (release, with"),
        "{context}: no store stands in a loop"
    );
}

/// ptxas looks for a label that a block lacks when the block ends, in the blocks around it, among the labels that it has read so
/// far. So a branch out of a block to a label further down goes elsewhere, and silently, if a block further out has had a label
/// of that name.
fn check_labels(context: &str, text: &str) {
    let taken = misread_label(text);
    assert_eq!(taken, None, "{context}: the branch goes to a label of that name further out");
}

/// The first label that ptxas would take from the wrong block.
fn misread_label(text: &str) -> Option<&str> {
    #[derive(Default)]
    struct Block<'a> {
        labels: Vec<&'a str>,
        /// Targets of branches that have found no label yet, and whether a block further out has one.
        wanted: Vec<(&'a str, bool)>,
    }
    let mut blocks = vec![Block::default()];
    for line in text.lines() {
        let code = line.split("//").next().unwrap_or("").trim();
        let last = blocks.len() - 1;
        if code == "{" {
            blocks.push(Block::default());
        } else if code == "}" {
            let ended = blocks.pop()?;
            for (name, taken) in ended.wanted {
                if ended.labels.contains(&name) {
                    if taken {
                        return Some(name);
                    }
                } else if !blocks.last()?.labels.contains(&name) {
                    let further = blocks.iter().any(|block| block.labels.contains(&name));
                    blocks.last_mut()?.wanted.push((name, taken || further));
                }
            }
        } else if let Some(label) = code.strip_suffix(':') {
            blocks[last].labels.push(label);
        } else if let Some((_, target)) = code.split_once("bra ").or_else(|| code.split_once("bra.uni ")) {
            blocks[last].wanted.push((target.trim_end_matches(';').trim(), false));
        }
    }
    None
}

#[test]
fn a_branch_that_ptxas_misreads_is_seen() {
    let nested =
        |branch: &str, label: &str| format!("{{\nNEXT:\n{{\n{{\n@%p bra {branch};\n}}\n{label}:\n}}\n}}");
    assert_eq!(misread_label(&nested("NEXT", "NEXT")), Some("NEXT"));
    assert_eq!(misread_label(&nested("NEXT", "OTHER")), None, "backwards and outwards");
    assert_eq!(misread_label(&nested("OTHER", "OTHER")), None, "forwards to the block around it");
    assert_eq!(misread_label("{\nNEXT:\n{\nbra NEXT;\nNEXT:\n}\n}"), None, "its own block's");
}

#[test]
fn golden_text() {
    let module = instantiate("element", Target::new(70), &[("TYPE", "u32")]).unwrap();
    let golden = include_str!("golden/element.u32.sm_70.ptx");
    assert!(
        module.text == golden,
        "the text changed; if that is meant, replace the golden file by:\n{}",
        module.text
    );
}

#[test]
fn wrong_requests_say_what_there_is() {
    let fails = |kernel, sm, params: &[(&str, &str)]| {
        instantiate(kernel, Target::new(sm), params).unwrap_err().to_string()
    };
    assert!(fails("chanel", 90, &[]).contains("no such kernel; there are: channel, "));
    assert!(fails("channel", 90, &[("ROLL", "4")]).contains("kernel channel has no parameter ROLL"));
    assert!(fails("channel", 90, &[("UNROLL", "5")]).contains("UNROLL = 5 is not one of: 4, 8"));
    assert!(fails("channel", 60, &[]).contains("needs sm_70"));
}
