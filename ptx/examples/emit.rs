//! Writes every variant of every catalog row, for every target, to a directory: `emit DIR [sm ...]`.
//!
//! One file per variant, `<kernel>[.<value>...].sm_<n>.ptx`; `ci/ptx.sh` assembles them.

use aqueduct_ptx::{Target, catalog, instantiate};
use std::{env, error::Error, fs, path::Path};

const DEFAULT_TARGETS: &[u32] = &[70, 80, 90, 100];

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let directory = args.next().ok_or("usage: emit DIR [sm ...]")?;
    let mut targets = args.map(|sm| sm.parse()).collect::<Result<Vec<u32>, _>>()?;
    if targets.is_empty() {
        targets.extend(DEFAULT_TARGETS);
    }
    fs::create_dir_all(&directory)?;
    for row in catalog::rows() {
        for target in targets.iter().map(|&sm| Target::new(sm)).filter(|target| target.sm >= row.min_sm) {
            for variant in row.variants() {
                let values: String = variant.iter().map(|(_, value)| format!(".{value}")).collect();
                let name = format!("{}{values}.sm_{}.ptx", row.name, target.sm);
                fs::write(Path::new(&directory).join(name), instantiate(row.name, target, &variant)?.text)?;
            }
        }
    }
    Ok(())
}
