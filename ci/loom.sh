#!/usr/bin/env bash
# Checks the loom models of the library, in every execution with at most so many preemptions.
#
#   ci/loom.sh 2        in ci/test.sh
#   ci/loom.sh 3        in ci/deep.sh: four times as long
#
# A target folder of its own, or this lane and the others would rebuild each other's dependencies. The models do not use the software
# device, so it is built without optimisation, and nothing has line numbers, which models do not need.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
preemptions=${1:?how many preemptions: ci/loom.sh 2}
out=$(RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom CARGO_PROFILE_DEV_DEBUG=0 LOOM_MAX_PREEMPTIONS=$preemptions timeout 600 \
    cargo test -p aqueduct --lib --quiet --config 'profile.dev.package.aqueduct-cuda-soft.opt-level=0' \
    --config 'profile.test.package.aqueduct-cuda-soft.opt-level=0' loom_ 2>&1)
status=$?
printf '%s\n' "$out"
[ $status = 0 ] || exit $status
grep -qE '^test result: ok\. [1-9]' <<<"$out" || { echo "loom: no model ran"; exit 1; }
