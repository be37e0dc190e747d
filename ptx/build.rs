//! Gives the crate a fingerprint of its own sources: whoever keeps what was compiled from a text that it wrote, under the
//! description and not the text, can tell texts of different builds apart.

use std::hash::{DefaultHasher, Hasher as _};
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the package's folder"));
    let mut files = Vec::new();
    for folder in ["src", "kernels"] {
        println!("cargo:rerun-if-changed={folder}");
        collect(&root.join(folder), &mut files);
    }
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in &files {
        let name = file.strip_prefix(&root).expect("it lies in the package").to_string_lossy();
        let text = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        for part in [name.as_bytes(), &text] {
            hasher.write_usize(part.len());
            hasher.write(part);
        }
    }
    println!("cargo:rustc-env=PTX_SOURCES={:016x}", hasher.finish());
}

/// All files in a folder and those below it.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let path = entry.expect("the folder can be read").path();
        if path.is_dir() { collect(&path, files) } else { files.push(path) }
    }
}
