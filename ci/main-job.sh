#!/usr/bin/env bash
# Runs the README's first command and checks what a user would look at: the last line and the exit code. Then the self-test.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --quiet -p aqueduct-tools
start=$SECONDS
out=$(cargo run --release --quiet -p aqueduct-tools)
seconds=$((SECONDS - start))
printf '%s\n' "$out"
[ "$(printf '%s\n' "$out" | tail -n 1)" = "# Out of bounds values : 0 OK" ] || { echo "main-job: the last line is not the verdict"; exit 1; }
[ "$seconds" -lt 60 ] || { echo "main-job: took $seconds s, more than 60"; exit 1; }
# The self-test as users run it: the lanes with tests compile without optimisation.
start=$SECONDS
AQUEDUCT_DRIVER=soft timeout 120 cargo run --release --quiet -p aqueduct-tools -- selftest --quick
[ $((SECONDS - start)) -lt 20 ] || { echo "main-job: the quick self-test took $((SECONDS - start)) s, more than 20"; exit 1; }
echo "main-job: ok in $seconds s"
