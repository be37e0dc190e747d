#!/usr/bin/env bash
# Runs the tests of TCP connections on a bad network: loss, delay and reordering by `tc netem`, on the loopback
# interface of a new network namespace. Needs root and a kernel with sch_netem; without them it runs in the guest of
# ci/rdma-vm. If that is not possible either, the exit status is 77 and the last line says why.
set -uo pipefail
cd "$(dirname "$0")/.."
troubles=("loss 1%" "delay 5ms 2ms" "delay 5ms reorder 10% 50%" "delay 5ms 2ms loss 1% reorder 10% 50%")

if ! unshare -n sh -c 'PATH=$PATH:/usr/sbin; ip link set lo up && tc qdisc add dev lo root netem delay 1ms' >/dev/null 2>&1; then
    echo "netem: not root, or no sch_netem in this kernel; running in the guest"
    exec ci/rdma-vm/lane.sh netem "${troubles[@]}"
fi
it=$(cargo test --release -p aqueduct-tests --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*\/it-[^"]*\)".*/\1/p' | tail -n 1)
[ -x "$it" ] || { echo "netem: cargo built no test binary"; exit 1; }
failed=0
for trouble in "${troubles[@]}"; do
    echo "-- $trouble"
    timeout 300 sh ci/rdma-vm/scenarios/netem "$trouble" "'$it' transports::software::ethernet_ --test-threads=1" || failed=1
done
exit $failed
