#!/usr/bin/env bash
# Runs the main job and checks what a user would look at: the last line and the exit code. Then the self-test.
#
#   ci/main-job.sh             of the command as tests are built, without optimisation: nothing is compiled again
#   ci/main-job.sh --release   by the README's first command, which compiles for minutes
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1-} in
    '') build=(cargo build --workspace --bin aqueduct) run=("${CARGO_TARGET_DIR:-target}/debug/aqueduct") ;;
    --release) build=(cargo build --release -p aqueduct-tools) run=(cargo run --release --quiet -p aqueduct-tools) ;;
    *) echo "usage: ci/main-job.sh [--release]" >&2 && exit 2 ;;
esac
"${build[@]}" --quiet
start=$SECONDS
out=$("${run[@]}")
seconds=$((SECONDS - start))
printf '%s\n' "$out"
[ "$(printf '%s\n' "$out" | tail -n 1)" = "# Out of bounds values : 0 OK" ] || { echo "main-job: the last line is not the verdict"; exit 1; }
[ "$seconds" -lt 60 ] || { echo "main-job: took $seconds s, more than 60"; exit 1; }
[ $# = 0 ] || run+=(--)
start=$SECONDS
AQUEDUCT_DRIVER=soft timeout 120 "${run[@]}" selftest --quick
[ $((SECONDS - start)) -lt 20 ] || { echo "main-job: the quick self-test took $((SECONDS - start)) s, more than 20"; exit 1; }
echo "main-job: ok in $seconds s"
