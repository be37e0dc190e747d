#!/usr/bin/env bash
# Mutants of the PTX kernels (docs/mutants.md): each must make a test fail, or is proved harmless.
#
#   ci/mutants.sh [OPTION]... [PART]...    options and parts as of tests/src/bin/mutants
#   ci/mutants.sh sample                   only those of ci/mutants/sample.txt, each with the test that it names
#
# MUTANTS (default .cache/mutants) keeps what was found. A run goes on where the last one ended; remove the folder after a
# change of kernels or tests.
cd "$(dirname "$0")/.." || exit 1
set -uo pipefail
folder=${MUTANTS:-.cache/mutants}
mkdir -p "$folder/bin"
folder=$(cd "$folder" && pwd)

command=run packages=(-p aqueduct-ptx -p aqueduct-tests -p aqueduct-tools --features aqueduct-ptx/mutants)
if [ "${1-}" = sample ]; then
    command=sample packages=(-p aqueduct-ptx --features mutants)
    shift
fi
log=$(cargo test --no-run --locked "${packages[@]}" 2>&1) || { printf '%s\n' "$log"; exit 1; }
cargo build --quiet --locked --workspace --bin mutants || exit 1
suites=()
suite() { # PATH-OF-SOURCE [PREFIX,...]: a test binary, and which of its tests
    local binary name
    binary=$(sed -n "s|.* $1 (\(.*\))$|\1|p" <<<"$log")
    [ -x "$binary" ] || { echo "mutants: no test binary of $1"; exit 1; }
    name=$(basename "$binary" | sed 's/-[0-9a-f]*$//')
    # A link of its own: a build during the run does not replace it.
    ln -f "$binary" "$folder/bin/$name"
    suites+=(--suite "$name=$folder/bin/$name${2:+=$2}")
}
for name in channel fifo half ll128 patience port turn watched; do suite "tests/$name.rs"; done
for name in perf plan weak; do suite "tests/$name/main.rs"; done
suite tests/library/main.rs memory::linked,port::linked,synchronisation::linked
if [ $command = run ]; then
    suite it/main.rs litmus::soft,channels::soft,collectives::soft,device_library::soft,ports::software::cuda_ipc,given_up::,plans::soft,plans::turns::soft,plans::multicast::three,built_in::soft,variable::over_hosts
    suite tests/command/main.rs perf
fi
ln -f target/debug/mutants "$folder/bin/mutants"
"$folder/bin/mutants" $command "$folder" "${suites[@]}" "$@"
