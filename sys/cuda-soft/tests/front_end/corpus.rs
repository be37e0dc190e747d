//! What nvcc emits for our CUDA C++ examples (`tests/corpus`, made by `ci/corpus.sh`) compiles.

use std::fs;
use std::path::Path;

use super::compile;

/// Every `.ptx` of the corpus: name and text.
pub(crate) fn all() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut files: Vec<_> = fs::read_dir(&folder)
        .expect("the corpus is there")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|e| e == "ptx"))
        .map(|path| {
            let name = path.file_name().expect("a file").to_string_lossy().into_owned();
            (name, fs::read_to_string(&path).expect("text"))
        })
        .collect();
    files.sort();
    files
}

#[test]
fn every_file_compiles_and_has_its_kernels() {
    let files = all();
    assert!(files.len() >= 15, "{} files", files.len());
    let mut errors = Vec::new();
    for (name, text) in &files {
        match compile(text) {
            Ok(module) => {
                let declared = text.matches(".visible .entry").count();
                let kernels = module.functions.iter().filter(|f| f.kernel).count();
                assert_eq!(kernels, declared, "{name}");
                assert!(module.functions.iter().all(|f| !f.code.is_empty()), "{name}");
            }
            Err(error) => errors.push(format!("{name}:\n{error}")),
        }
    }
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}
