#!/usr/bin/env bash
# The test command of the README: everything that must hold before a change lands. At most 25 minutes on 2 cores, on
# a bare Debian 12 with Rust and a C compiler; what else it needs it installs (apt as root) or caches in .cache/.
#
#   ci/test.sh             all lanes
#   ci/test.sh LANE...     only these (see the calls of `lane` below)
#
# A lane that cannot run here says why, with the command that would make it run, and is counted as not run.
set -uo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=never RUST_BACKTRACE=1
wanted=" $* "
passed=0 failed=0 not_run=0
summary=()

# lane NAME COMMAND...: exit 0 passed, 77 not run (its last line of output says why), anything else failed.
lane() {
    local name=$1 start=$SECONDS status log
    shift
    [ "$wanted" = "  " ] || case $wanted in *" $name "*) ;; *) return ;; esac
    log=.cache/ci/$name.log
    mkdir -p .cache/ci
    echo "== $name"
    "$@" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    case $status in
        0) passed=$((passed + 1)) && summary+=("passed   $name ($((SECONDS - start)) s)") ;;
        77) not_run=$((not_run + 1)) && summary+=("not run  $name: $(tail -n 1 "$log")") ;;
        *) failed=$((failed + 1)) && summary+=("FAILED   $name (exit $status, $((SECONDS - start)) s)") ;;
    esac
}

tests() { timeout 1200 cargo test --workspace --quiet --no-fail-fast; }
loom() { RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom LOOM_MAX_PREEMPTIONS=3 timeout 300 cargo test -p aqueduct --lib --quiet --release loom_; }
main_job() { timeout 300 ci/main-job.sh; }

lane format cargo fmt --all --check
lane layers ci/layers.sh
lane clippy cargo clippy --workspace --all-targets --quiet -- -D warnings
lane docs env RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
lane sync-tags ci/sync-tags.sh
lane tests tests
lane loom loom
lane ptx ci/ptx.sh
lane linkage ci/linkage.sh
lane main-job main_job

echo
printf '%s\n' "${summary[@]}"
echo "lanes: $passed passed, $failed failed, $not_run not run"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
