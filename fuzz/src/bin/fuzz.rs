//! The libFuzzer entry point. `FUZZ_TARGET` names the target.
#![no_main]

use std::sync::OnceLock;

use aqueduct_fuzz::memory::Counting;
use aqueduct_fuzz::{Target, target};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static TARGET: OnceLock<&'static Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let wanted = || {
        let name = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET names the target");
        target(&name).expect("FUZZ_TARGET is one of the table")
    };
    TARGET.get_or_init(wanted).check(bytes);
});
