//! The inputs that are kept: one folder for each target, one file for each input.

use std::io;
use std::path::{Path, PathBuf};

/// Where the inputs of a target are.
pub fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

/// The files of a target with their contents, in order of their names.
///
/// # Errors
/// Those of reading.
pub fn inputs(target: &str) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let paths: io::Result<Vec<PathBuf>> = folder(target).read_dir()?.map(|entry| Ok(entry?.path())).collect();
    let mut paths = paths?;
    paths.sort();
    paths.into_iter().map(|path| Ok((path.clone(), std::fs::read(path)?))).collect()
}

/// `input` cut short at every place, and with every single byte changed in two ways; at `steps` places at most.
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
