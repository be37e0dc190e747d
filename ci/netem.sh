#!/usr/bin/env bash
# The conformance suite of connections over TCP on a bad network: loss, delay and reordering by `tc netem`, on the loopback
# interface of a network namespace of its own. Needs root and a kernel with sch_netem; exit status 77 and a last line
# that says why where there is none.
#
#   ci/netem.sh [PATH OF THE TEST BINARY it]
set -uo pipefail
cd "$(dirname "$0")/.."
if [ "${1:-}" != --inside ]; then
    . ci/need.sh
    need tc iproute2
    [ "$(id -u)" = 0 ] || { echo "netem needs root: sudo ci/netem.sh"; exit 77; }
    it=${1:-}
    # Before anything is compiled.
    unshare -n sh -c 'ip link set lo up && tc qdisc add dev lo root netem delay 1ms' >/dev/null 2>&1 ||
        { echo "this kernel has no network namespaces or no sch_netem: modprobe sch_netem, or a kernel with CONFIG_NET_SCH_NETEM"; exit 77; }
    [ -n "$it" ] || it=$(cargo test --release -p aqueduct-tests --no-run --message-format=json |
        sed -n 's/.*"executable":"\([^"]*\/it-[^"]*\)".*/\1/p' | tail -n 1)
    [ -x "$it" ] || { echo "netem: there is no test binary"; exit 1; }
    failed=0
    for trouble in "loss 1%" "delay 5ms 2ms" "delay 5ms reorder 10% 50%" "delay 5ms 2ms loss 1% reorder 10% 50%"; do
        echo "-- $trouble"
        # shellcheck disable=SC2086 # words are wanted
        timeout 300 unshare -n "$0" --inside "$it" $trouble || failed=1
    done
    exit $failed
fi
shift
it=$1
shift
ip link set lo up && tc qdisc add dev lo root netem "$@" || exit 1
"$it" transports::software::ethernet_ --test-threads=1 || exit 1
# It did something to what passed: otherwise the run above says nothing.
tc -s qdisc show dev lo
[ "$(tc -s qdisc show dev lo | sed -n 's/.* \([0-9]*\) pkt .*/\1/p' | head -n 1)" -gt 1000 ]
