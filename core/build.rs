//! Gives the crate a fingerprint of the sources of its plans, so that what an earlier build has found out about a plan does not
//! pass for a finding of this one.

use std::hash::{DefaultHasher, Hasher as _};
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let folder = "src/plan";
    println!("cargo:rerun-if-changed={folder}");
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the package's folder"));
    let mut files = Vec::new();
    collect(&root.join(folder), &mut files);
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in &files {
        let text = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        hasher.write_usize(text.len());
        hasher.write(&text);
    }
    println!("cargo:rustc-env=PLAN_SOURCES={:016x}", hasher.finish());
}

/// All files in a folder and those below it.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let path = entry.expect("the folder can be read").path();
        if path.is_dir() { collect(&path, files) } else { files.push(path) }
    }
}
