//! The example of docs/first-crate.md, built and run as a user does: outside the workspace.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::{aqueduct, command, run, run_within};

/// Time limit of the build, which compiles the library with one job if nothing is cached.
const BUILD: Duration = Duration::from_secs(600);

const PAGE: &str = include_str!("../../../docs/first-crate.md");
const MANIFEST: &str = include_str!("../../../examples/first-crate/Cargo.toml");
const PROGRAM: &str = include_str!("../../../examples/first-crate/src/main.rs");
const LOCK: &str = include_str!("../../../Cargo.lock");

/// A copy of the example in a folder outside the workspace, which is removed at the end.
struct Copy {
    folder: PathBuf,
}

impl Copy {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("aqueduct-first-crate-{}", std::process::id()));
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
        let manifest = MANIFEST.replace("../../", &format!("{}/", root.display()));
        std::fs::create_dir_all(folder.join("src")).expect("a folder can be made");
        let copy = Self { folder };
        // With the lock file of the workspace, Cargo needs no network.
        for (file, text) in
            [("Cargo.toml", manifest.as_str()), ("src/main.rs", PROGRAM), ("Cargo.lock", LOCK)]
        {
            std::fs::write(copy.folder.join(file), text).expect("a file can be written");
        }
        copy
    }

    /// Builds the program and returns its path. The target folder beside the tests' own keeps what it compiled.
    fn build(&self) -> PathBuf {
        let target = Path::new(env!("CARGO_BIN_EXE_aqueduct")).ancestors().nth(2).expect("target");
        let target = target.join("first-crate");
        let cargo = |arguments: &[&str]| {
            let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            let mut command = command(cargo);
            command.args(arguments).current_dir(&self.folder).env("CARGO_TARGET_DIR", &target);
            // Half the time of the build, which nobody debugs or repeats.
            command.envs([("CARGO_INCREMENTAL", "0"), ("CARGO_PROFILE_DEV_DEBUG", "0")]);
            run_within(&mut command, BUILD).exited(0)
        };
        // Programs of earlier copies, which differ in their path.
        cargo(&["clean", "--offline", "--quiet", "-p", "first-crate"]);
        // One job, because tests that wait for each other run at the same time.
        cargo(&["build", "--offline", "--jobs", "1"]);
        target.join("debug/first-crate")
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            eprintln!("cannot remove {}: {error}", self.folder.display());
        }
    }
}

/// `examples/tests/run.rs` runs the same program as a member of the workspace.
#[test]
#[ignore = "compiles the library anew, for more than a minute: ci/deep.sh first-crate"]
fn the_first_crate_works_outside_the_workspace() {
    let copy = Copy::new();
    let program = copy.build();
    let program = program.to_str().expect("the path is UTF-8");
    for ranks in [2, 4] {
        let outcome = run(&mut aqueduct(&["run", "-n", &ranks.to_string(), "--", program])).exited(0);
        let mut lines: Vec<_> = outcome.stdout.lines().collect();
        lines.sort_unstable();
        let expected: Vec<_> = (0..ranks)
            .map(|rank| format!("[{rank}] rank {rank} of {ranks} on software: all 1048576 sums are right"))
            .collect();
        assert_eq!(lines, expected, "{outcome:#?}");
        if ranks == 2 {
            assert!(
                PAGE.contains(&format!("```\n{}\n```\n", expected.join("\n"))),
                "the page shows these lines"
            );
        }
    }
    run(&mut command(program)).exited(1).says(&["aqueduct run -n 2 -- first-crate"]);
}

#[test]
fn the_page_shows_the_example() {
    let manifest = MANIFEST.replace("../../", "../aqueduct/");
    assert!(
        PAGE.contains(&format!("```toml\n{manifest}```\n")),
        "copy the example's Cargo.toml into the page"
    );
    assert!(
        PAGE.contains(&format!("```rust,no_run\n{PROGRAM}```\n")),
        "copy the example's main.rs into the page"
    );
}
