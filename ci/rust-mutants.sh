#!/usr/bin/env bash
# Mutants of the library (docs/mutants.md): each must make a test fail, or ci/mutants/rust-proved.txt says why none can.
#
#   ci/rust-mutants.sh [OPTION]... [PART]...    options as of tests/src/bin/mutants; without a part, the rooms below
#   ci/rust-mutants.sh --changed BASE           only what the changes since the commit BASE concern
#
# RUST_MUTANTS (default target/rust-mutants) keeps the tree, its build and what was found. A run goes on where the last one
# ended, with what survived; remove results.tsv there to judge all again.
# SUITES (default "library ranks it command"): the tests that judge. MOST (default 60000): milliseconds of tests for a mutant.
cd "$(dirname "$0")/.." || exit 1
set -uo pipefail
cargo mutants --version >/dev/null 2>&1 ||
    { echo "cargo mutants is missing: cargo install --locked cargo-mutants --version 27.1.0"; exit 77; }
folder=${RUST_MUTANTS:-target/rust-mutants}
mkdir -p "$folder/bin" && touch "$folder/cover.tsv" || exit 1
folder=$(cd "$folder" && pwd)
cargo build --quiet --locked --workspace --bin mutants || exit 1
ln -f target/debug/mutants "$folder/bin/mutants"
"$folder/bin/mutants" rust plant "$folder" || exit 1

suites=${SUITES:-library ranks it command} most=${MOST:-60000}
packages=()
[[ " $suites " != *" library "* && " $suites " != *" ranks "* ]] || packages+=(-p aqueduct)
[[ " $suites " != *" it "* ]] || packages+=(-p aqueduct-tests)
[[ " $suites " != *" command "* ]] || packages+=(-p aqueduct-tools)
log=$(cd "$folder/tree" && RUSTFLAGS=--cap-lints=warn CARGO_TARGET_DIR=$folder/build \
    cargo test --no-run --locked --lib --tests "${packages[@]}" 2>&1) || { printf '%s\n' "$log"; exit 1; }
options=()
suite() { # NAME SOURCE CRATE: a test binary
    local binary
    binary=$(sed -n "s|.* $2 (\(.*\))$|\1|p" <<<"$log" | grep "/$3-")
    [ -x "$binary" ] || { echo "rust-mutants: no test binary of $2"; exit 1; }
    # Other tests may reach other mutants.
    cmp -s "$binary" "$folder/bin/$1" || sed -i "/^[^\t]*\t$1\t/d" "$folder/cover.tsv"
    # A link of its own: a build during the run does not replace it.
    ln -f "$binary" "$folder/bin/$1"
    options+=(--suite "$1=$folder/bin/$1")
}
[[ " $suites " != *" library "* ]] || suite library unittests\ src/lib.rs aqueduct
[[ " $suites " != *" ranks "* ]] || suite ranks tests/comm_ranks/main.rs comm_ranks
[[ " $suites " != *" it "* ]] || suite it it/main.rs it
[[ " $suites " != *" command "* ]] || suite command tests/command/main.rs command
# The choices of ci/test.sh on every run; what failed with a mutant is not kept for runs without it.
export AQUEDUCT_TEST_SEED=1 PROPTEST_RNG_SEED=1 PROPTEST_DISABLE_FAILURE_PERSISTENCE=1
parts=(^wire.rs: ^abort.rs: ^proxy/ ^memory/ ^setup/ ^channel/ ^transport/ ^group/ ^net/)
for ((at = 1; at <= $#; at++)); do
    case ${!at} in
        --changed) parts=() at=$((at + 1)) ;;
        --*) at=$((at + 1)) ;;
        *) parts=() ;;
    esac
done
"$folder/bin/mutants" rust run "$folder" --most "$most" "${options[@]}" "$@" "${parts[@]}"
