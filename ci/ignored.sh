#!/usr/bin/env bash
# Checks that every test that `cargo test` ignores says why, and that a lane runs it. Proves first that it can fail.
set -euo pipefail
cd "$(dirname "$0")/.."

# `lane_of REASON`: the lane of ci/test.sh or ci/deep.sh that runs tests ignored for this reason.
lane_of() {
    case $1 in
        *"NVIDIA GPU"*) echo gpus ;;
        *"RDMA NIC"* | *"RDMA device"*) echo rdma-vm ;;
        *mpirun* | *mpiexec* | *torchrun* | *pmix.h*) echo launchers ;;
        *libibverbs-dev*) echo bindings ;;
        *"mount namespace"*) echo namespaces ;;
        "needs root, "*) echo two-users ;;
        *"a lane of its own runs it") echo messages ;;
        *"ci/deep.sh first-crate") echo first-crate ;;
        *"ci/deep.sh faults") echo faults ;;
        *"ci/deep.sh scale") echo scale ;;
        *"ci/deep.sh programs") echo programs ;;
        *AQUEDUCT_TEST_PLANS) echo plans ;;
        # Other tests start these as processes of their own.
        *"another test"* | *"the next test"* | *"other tests start"* | *"by the tests of this file" | "runs only as the child of"*) echo tests ;;
        *) return 1 ;;
    esac
}

# `judge`: reads `FILE:LINE:ATTRIBUTE` lines, and prints those that no lane runs.
judge() {
    local where reason lane
    while IFS= read -r where; do
        reason=$(sed -nE 's/.*#\[ignore = "(.*)"\].*/\1/p' <<<"$where")
        # A macro's reason stands where the macro is used.
        case $where in *'#[ignore = $'*) continue ;; esac
        if [ -z "$reason" ]; then
            echo "ignored: no reason: $where"
        elif ! lane=$(lane_of "$reason"); then
            echo "ignored: no lane runs tests that are ignored because of '$reason': $where"
        elif ! grep -qE "^lane $lane " ci/test.sh ci/deep.sh; then
            echo "ignored: there is no lane $lane: $where"
        fi
    done
}

for planted in 'a.rs:1:    #[ignore]' 'a.rs:1:#[ignore = "flaky"]' 'a.rs:1:#[ignore = ""]'; do
    [ -n "$(judge <<<"$planted")" ] || { echo "ignored: $planted is not noticed"; exit 1; }
done
# Without git, which a machine that only builds need not have.
all=$(find . \( -name target -o -name '.?*' \) -prune -o -name '*.rs' -print0 | xargs -0 grep -HnE '^\s*#\[ignore')
wrong=$(judge <<<"$all")
[ -z "$wrong" ] || { echo "$wrong"; exit 1; }
echo "ignored: ok ($(wc -l <<<"$all") attributes)"
