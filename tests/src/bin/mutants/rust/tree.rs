//! The copy of the workspace in which the mutants are planted, without those that do not compile.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::list::Mutant;
use super::plant::{Planted, plant};
use super::syntax::Place;

const LIBRARY: &str = "core/src/lib.rs";

/// Mutants without a program that could be run, by name, with the reason.
pub(super) type Refused = BTreeMap<String, Refusal>;

/// Why a mutant is not planted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// Its program does not compile, so there is no such mutant. Otherwise it can only be judged by a build of its own.
    pub(super) unviable: bool,
    pub(super) why: String,
}

/// Results of an earlier [`grow`] in `folder`.
pub(super) fn refused(folder: &Path) -> Refused {
    let text = std::fs::read_to_string(folder.join("refused.tsv")).unwrap_or_default();
    let parse = |line: &str| {
        let mut fields = line.split('\t');
        let (name, unviable, why) = (fields.next()?, fields.next()? == "unviable", fields.next()?);
        Some((name.to_owned(), Refusal { unviable, why: why.to_owned() }))
    };
    text.lines().filter_map(parse).collect()
}

fn save(folder: &Path, refused: &Refused) {
    let line = |(name, Refusal { unviable, why }): (&String, &Refusal)| {
        let kind = if *unviable { "unviable" } else { "constant" };
        format!("{name}\t{kind}\t{}\n", why.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let text: String = refused.iter().map(line).collect();
    std::fs::write(folder.join("refused.tsv"), text).expect("the folder can be written");
}

/// The number of each mutant, for ever: `folder` remembers them, so that what it knows of a number stays true.
pub(super) fn numbers(folder: &Path, mutants: &[Mutant]) -> HashMap<String, u32> {
    let path = folder.join("numbers.tsv");
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let mut numbers: HashMap<String, u32> = HashMap::new();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for (line, number) in text.lines().zip(1..) {
        numbers.insert(line.to_owned(), number);
    }
    for mutant in mutants {
        if !numbers.contains_key(&mutant.name) {
            lines.push(mutant.name.clone());
            numbers.insert(mutant.name.clone(), u32::try_from(lines.len()).expect("few mutants"));
        }
    }
    assert!(lines.len() < 1 << 16, "too many mutants for planted.rs: remove {}", folder.display());
    std::fs::write(&path, lines.join("\n") + "\n").expect("the folder can be written");
    numbers
}

/// Copies the repository at `root` to `folder/tree`, plants `mutants`, and takes out those that the compiler refuses.
pub(super) fn grow(root: &Path, folder: &Path, mutants: &[Mutant]) {
    let tree = folder.join("tree");
    let numbers = numbers(folder, mutants);
    let mut refused = refused(folder);
    refused.retain(|name, _| numbers.contains_key(name));
    for mutant in mutants {
        if let Place::Nowhere(why) = mutant.place {
            refused.insert(
                mutant.name.clone(),
                Refusal { unviable: why.contains("`let`"), why: why.to_owned() },
            );
        }
    }
    let mut files: BTreeMap<&str, Vec<&Mutant>> = BTreeMap::from([(LIBRARY, Vec::new())]);
    mutants.iter().for_each(|mutant| files.entry(&mutant.file).or_default().push(mutant));
    copy(root, &tree, &files.keys().map(PathBuf::from).collect());
    loop {
        let mut planted: HashMap<&str, Planted> = HashMap::new();
        for (file, mutants) in &files {
            let source = read(&root.join(file));
            let left = mutants.iter().filter(|mutant| !refused.contains_key(&mutant.name));
            let left = left.map(|m| (numbers[&m.name], m.place.clone(), m.replacement.clone()));
            let mut text = plant(&source, &left.collect::<Vec<_>>());
            if *file == LIBRARY {
                text.text.push_str("\nmod planted;\n");
            }
            write(&tree.join(file), text.text.as_bytes());
            planted.insert(file, text);
        }
        write(&tree.join("core/src/planted.rs"), include_bytes!("planted.rs"));
        // Some functions exist only for tests.
        let mut errors = errors(folder, "dev");
        if errors.is_empty() {
            errors = self::errors(folder, "test");
        }
        let mut found = 0;
        for error in &errors {
            let Some((numbers_, own)) = blame(error, &planted) else { continue };
            for mutant in mutants.iter().filter(|mutant| numbers_.contains(&numbers[&mutant.name])) {
                let code = error["code"]["code"].as_str().unwrap_or("");
                // The compiler ran a function that has mutants: the mutant is a program, but cannot be chosen at run time.
                let wrong = own || code == "E0004" || mutant.kind == "FnValue";
                let unviable = wrong && code != "E0080";
                let why = format!("{code} {}", error["message"].as_str().unwrap_or(""));
                found +=
                    usize::from(refused.insert(mutant.name.clone(), Refusal { unviable, why }).is_none());
            }
        }
        save(folder, &refused);
        if errors.is_empty() {
            break;
        }
        println!("mutants: {} errors of the compiler, {found} mutants taken out", errors.len());
        let first = errors[0]["rendered"].as_str().unwrap_or("");
        assert!(found > 0, "no mutant is to blame:\n{first}");
    }
    println!("mutants: {} planted, {} not", mutants.len() - refused.len(), refused.len());
}

/// The mutants that the first of an error's places inside one belongs to.
fn blame(error: &Value, planted: &HashMap<&str, Planted>) -> Option<(Vec<u32>, bool)> {
    let spans = |of: &Value| of["spans"].as_array().cloned().unwrap_or_default();
    let mut places = spans(error);
    places.sort_by_key(|span| span["is_primary"] != true);
    places.extend(error["children"].as_array().into_iter().flatten().flat_map(spans));
    let blamed: Vec<(Vec<u32>, bool)> = places
        .iter()
        .filter_map(|span| {
            let file = span["file_name"].as_str()?.replace("/./", "/");
            let byte = |key: &str| span[key].as_u64().and_then(|n| usize::try_from(n).ok());
            planted.get(file.as_str())?.blame(&(byte("byte_start")?..byte("byte_end")?))
        })
        .collect();
    blamed.iter().find(|(_, own)| *own).or(blamed.first()).cloned()
}

/// The errors of the compiler in the library, or in the library with its tests.
fn errors(folder: &Path, profile: &str) -> Vec<Value> {
    let mut command = Command::new("cargo");
    command.args([
        "check",
        "--locked",
        "-p",
        "aqueduct",
        "--lib",
        "--profile",
        profile,
        "--message-format",
        "json",
    ]);
    command.current_dir(folder.join("tree")).env("CARGO_TARGET_DIR", folder.join("build"));
    // Items that mutants leave unused are no error, and neither is arithmetic that is sure to overflow.
    let output = command.env("RUSTFLAGS", "--cap-lints=warn").output().expect("cargo runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let messages =
        lines.filter(|line| line["reason"] == "compiler-message").map(|line| line["message"].clone());
    // The last error only counts the others.
    let errors: Vec<Value> = messages
        .filter(|m| m["level"] == "error" && m["spans"].as_array().is_some_and(|s| !s.is_empty()))
        .collect();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || !errors.is_empty(), "cargo check failed:\n{complaint}");
    errors
}

/// Makes `tree` a copy of the files of the repository at `root`, without those that get mutants.
fn copy(root: &Path, tree: &Path, without: &BTreeSet<PathBuf>) {
    let mut command = Command::new("git");
    command.arg("-C").arg(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let output = command.output().expect("git runs");
    let listed = String::from_utf8(output.stdout).expect("paths are UTF-8");
    let files: BTreeSet<PathBuf> =
        listed.split('\0').filter(|path| root.join(path).is_file()).map(PathBuf::from).collect();
    let known = tree.with_extension("files");
    for old in std::fs::read_to_string(&known).unwrap_or_default().lines().map(PathBuf::from) {
        if !files.contains(&old) {
            let _ = std::fs::remove_file(tree.join(old));
        }
    }
    for file in files.iter().filter(|file| !without.contains(*file)) {
        let (from, to) = (root.join(file), tree.join(file));
        let bytes = std::fs::read(&from).unwrap_or_else(|e| panic!("{}: {e}", from.display()));
        if write(&to, &bytes) {
            let rights = std::fs::metadata(&from).expect("it was read").permissions();
            std::fs::set_permissions(&to, rights).expect("it was written");
        }
    }
    let list: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    std::fs::write(&known, list.join("\n")).expect("the folder can be written");
}

/// Writes the file if it differs, because Cargo compiles what is younger.
fn write(path: &Path, bytes: &[u8]) -> bool {
    if std::fs::read(path).is_ok_and(|old| old == bytes) {
        return false;
    }
    std::fs::create_dir_all(path.parent().expect("it is in a folder")).expect("the folder can be made");
    std::fs::write(path, bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    true
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
