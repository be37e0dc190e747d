//! The suite covers every driver function that the library and the tools call.

use std::collections::BTreeSet;
use std::path::Path;

/// All functions of the driver's table.
const FUNCTIONS: &str = include_str!("../../../sys/cuda-driver-sys/functions.txt");

/// Functions that are called and need no case, with the reason.
const WITHOUT_CASE: &[(&str, &str)] = &[];

/// The words of `code` that name a driver function; comments, string literals and unit tests do not count.
fn named(code: &str) -> BTreeSet<String> {
    let all: BTreeSet<&str> = FUNCTIONS
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|word| *word != "#")
        .collect();
    let end = ["#[cfg(test)]\nmod tests {", "#[cfg(all(test, not(loom)))]\nmod tests {"];
    let end = end.iter().filter_map(|tests| code.find(tests)).min().unwrap_or(code.len());
    let mut found = BTreeSet::new();
    for line in code[..end].lines() {
        let line = line.split("//").next().unwrap_or_default();
        let outside: String = line.split('"').step_by(2).collect::<Vec<_>>().join(" ");
        let words = outside.split(|c: char| !c.is_alphanumeric() && c != '_');
        found.extend(words.filter(|word| all.contains(word)).map(str::to_owned));
    }
    found
}

/// The driver functions that the files below `folder`, a path in the repository, name outside of tests.
fn named_in(folder: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in
            std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        {
            let path = entry.unwrap().path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            match name {
                "tests" | "tests.rs" | "coverage.rs" => {}
                _ if path.is_dir() => folders.push(path),
                _ if name.ends_with(".rs") => found.extend(named(&std::fs::read_to_string(&path).unwrap())),
                _ => {}
            }
        }
    }
    found
}

#[test]
fn every_driver_function_that_is_called_has_a_case() {
    let called: BTreeSet<String> = ["core/src", "tools/src"].into_iter().flat_map(named_in).collect();
    assert!(called.len() > 80, "only {called:?} are called");
    let suite = named_in("tests/it/conformance");
    let excused: BTreeSet<&str> = WITHOUT_CASE.iter().map(|(name, _)| *name).collect();
    let missing: Vec<_> = called.difference(&suite).filter(|name| !excused.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "called, and in no case of the conformance suite: {missing:?}");
    let idle: Vec<_> =
        excused.into_iter().filter(|name| !called.contains(*name) || suite.contains(*name)).collect();
    assert!(idle.is_empty(), "need no excuse: {idle:?}");
}

/// The opcodes that the software device lowers in one of `modules`, from the table of its handlers.
fn lowered_in(modules: &[&str]) -> Vec<&'static str> {
    let table = include_str!("../../../sys/cuda-soft/src/lower/isa/mod.rs");
    let rows = table.lines().filter_map(|line| line.split_once(" => "));
    rows.filter(|(_, handler)| modules.iter().any(|module| handler.starts_with(module)))
        .flat_map(|(names, _)| names.split('"').skip(1).step_by(2))
        .collect()
}

/// Whether a statement in a string literal of `code` begins with the instruction `name`: messages have such words further on.
fn has_form(code: &str, name: &str) -> bool {
    let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.flat_map(|line| line.split('"').skip(1).step_by(2))
        .flat_map(|literal| literal.split(';'))
        .filter_map(|statement| statement.trim_start().split(|c: char| !c.is_alphanumeric()).next())
        .any(|word| word == name)
}

#[test]
fn every_arithmetic_instruction_has_a_form() {
    let modules = ["arithmetic::", "bits::", "carry::", "compare::", "convert::cvt,", "float::", "video::"];
    let opcodes = lowered_in(&modules);
    assert!(opcodes.len() > 60, "only {opcodes:?}");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("it/conformance/instructions");
    let forms: String = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    // Forms on two halves and on four bytes have the name of the instruction on words.
    let name = |opcode: &'static str| {
        if opcode.starts_with('v') { opcode.trim_end_matches(['2', '4']) } else { opcode }
    };
    let missing: Vec<_> = opcodes.iter().filter(|opcode| !has_form(&forms, name(opcode))).collect();
    assert!(missing.is_empty(), "in no form of the conformance suite: {missing:?}");
}

#[test]
fn only_code_names_functions() {
    let code = "/// Calls cuMemAlloc_v2.\nlet x = call!(d, cuInit(0)); // cuMemFree_v2\nlog(\"cuCtxSynchronize\", t.cuDeviceGet);\n\
                #[cfg(test)]\nmod tests {\n    cuMemCreate();\n}\n";
    assert_eq!(named(code), ["cuDeviceGet", "cuInit"].map(str::to_owned).into());
}
