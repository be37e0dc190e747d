//! The checked-in inputs: a folder for each target, a file for each input.

use std::io;
use std::path::{Path, PathBuf};

/// The folder with the inputs of a target.
pub fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

/// The files of a target with their contents, sorted by name.
///
/// # Errors
/// If the folder or a file cannot be read.
pub fn inputs(target: &str) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let paths: io::Result<Vec<PathBuf>> = folder(target).read_dir()?.map(|entry| Ok(entry?.path())).collect();
    let mut paths = paths?;
    paths.sort();
    paths.into_iter().map(|path| Ok((path.clone(), std::fs::read(path)?))).collect()
}

/// Variants of `input`: truncated at every offset, and with each byte changed in two ways, at most at `steps` offsets.
pub fn neighbours(input: &[u8], steps: usize) -> impl Iterator<Item = Vec<u8>> {
    (0..input.len()).step_by(input.len().div_ceil(steps).max(1)).flat_map(move |at| {
        let changed = |byte: u8| {
            let mut copy = input.to_vec();
            copy[at] = byte;
            copy
        };
        [input[..at].to_vec(), changed(input[at] ^ 1), changed(!input[at])]
    })
}
