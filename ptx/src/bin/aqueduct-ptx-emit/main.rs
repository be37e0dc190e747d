//! Writes what the crate generates.
//!
//! `aqueduct-ptx-emit DIR [sm ...]`: every variant of every catalog row, kernels of plans, and the linkable functions, for every
//! target; one file each, `<kernel>[.<value>...].sm_<n>.ptx`. `ci/ptx.sh` assembles them. `aqueduct-ptx-emit
//! --include DIR`: the C and C++ header and the declarations of the functions.

mod plans;

use aqueduct_ptx::{Target, catalog, declarations, functions, header, instantiate, plan};
use std::{env, error::Error, fs, path::Path};

const DEFAULT_TARGETS: &[u32] = &[70, 80, 90, 100];

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let directory = args.next().ok_or("usage: aqueduct-ptx-emit DIR [sm ...]")?;
    if directory == "--include" {
        let directory = args.next().ok_or("usage: aqueduct-ptx-emit --include DIR")?;
        let directory = Path::new(&directory);
        fs::write(directory.join("aqueduct_device.h"), header()?)?;
        return Ok(fs::write(directory.join("aqueduct_device.ptx"), declarations()?)?);
    }
    if directory.starts_with('-') {
        return Err(format!(
            "{directory} is no option; usage: aqueduct-ptx-emit DIR [sm ...], or --include DIR"
        )
        .into());
    }
    let mut targets = args.map(|sm| sm.parse()).collect::<Result<Vec<u32>, _>>()?;
    if targets.is_empty() {
        targets.extend(DEFAULT_TARGETS);
    }
    fs::create_dir_all(&directory)?;
    for &sm in &targets {
        let name = format!("functions.sm_{sm}.ptx");
        fs::write(Path::new(&directory).join(name), functions(Target::new(sm))?.text)?;
    }
    for (name, kernel) in plans::all() {
        for target in targets.iter().map(|&sm| Target::new(sm)) {
            let file = format!("{name}.sm_{}.ptx", target.sm);
            fs::write(Path::new(&directory).join(file), plan::render(&kernel, target)?.text)?;
        }
    }
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
