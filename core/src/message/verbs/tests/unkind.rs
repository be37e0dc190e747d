//! Reads by devices that begin late, and tell later still, in a process of their own: all that the stand-in carries there is late.

use std::process::Command;

/// The tests of reads again, with what two seeds choose.
#[test]
fn reads_by_devices_that_are_late() {
    let (_, module) = module_path!().split_once("::").expect("a module of this crate");
    let module = module.strip_suffix("unkind").expect("the name of this file");
    for seed in ["1", "2"] {
        let mut tests = Command::new(std::env::current_exe().unwrap());
        // Not those of windows: they count registrations, of which there are more if a device is too late for a window.
        tests.args([format!("{module}reading::"), format!("{module}refused::")]);
        let out = tests.env("AQUEDUCT_SOFT_UNKIND", seed).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success(), "seed {seed}: {text}{}", String::from_utf8_lossy(&out.stderr));
        assert!(!text.contains("running 0 tests"), "{text}");
    }
}
