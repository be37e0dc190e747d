//! Writes outputs of the real encoders into the corpora, as files `seed-N`.

use std::collections::BTreeMap;

use aqueduct_fuzz::{corpus, seeds};

fn main() -> std::io::Result<()> {
    let mut count = BTreeMap::<&str, u32>::new();
    for (name, bytes) in seeds() {
        let number = count.entry(name).and_modify(|number| *number += 1).or_insert(0);
        std::fs::create_dir_all(corpus::folder(name))?;
        std::fs::write(corpus::folder(name).join(format!("seed-{number}")), bytes)?;
    }
    Ok(())
}
