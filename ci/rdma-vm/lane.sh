#!/usr/bin/env bash
# Runs the steps of a lane in the guest: ci/rdma-vm/lane.sh smoke|long, or netem RULE... To add a step, add a line here.
# Each lane boots once; the speed measurement boots again.
set -euo pipefail
cd "$(dirname "$0")/../.."
lane=${1:-smoke}
mkdir -p .cache
# shellcheck source=ci/need.sh
. ci/need.sh
# Check for the guest before compiling anything.
need qemu-system-x86_64 qemu-system-x86
ci/rdma-vm/build >/dev/null

# Build what other lanes of the same script build too: unoptimised in ci/test.sh, optimised in ci/deep.sh.
case $lane in
    smoke) packages=(--workspace) ;;
    *) packages=(--release -p aqueduct -p aqueduct-tests -p aqueduct-tools) ;;
esac
built=$(cargo test "${packages[@]}" --no-run --quiet --message-format=json)
program() { # KIND NAME IS_TEST
    local file
    file=$(sed -nE "s/.*\"kind\":\[\"$1\"\],.*\"name\":\"$2\".*\"profile\":\{[^}]*\"test\":$3\}.*\"executable\":\"([^\"]+)\".*/\1/p" <<<"$built" | tail -n 1)
    [ -n "$file" ] || { echo "rdma-vm: cargo has built no $1 $2" >&2 && return 1; }
    echo "$file"
}
core=$(program lib aqueduct true)
it=$(program test it true)
tool=$(program bin aqueduct false)
options=(--step 450 --put "$core=core-tests" --put "$it=it" --put "$tool=aqueduct")

perf='aqueduct perf write --transport'
# NIC timeouts of a few seconds. With shorter ones a slow peer would look like a lost one.
soon='AQUEDUCT_IB_TIMEOUT=17 AQUEDUCT_IB_RETRY_CNT=3'
# An all-reduce of 8 ranks with so many on each host: memory within a host, ports over verbs between hosts.
plan() {
    local make="aqueduct plan new all-reduce -a hierarchical -n 8 --ranks-per-host $1 >/tmp/plan\$RANK"
    echo "hosts $((8 / $1)) --ranks $1 '$make && aqueduct plan run /tmp/plan\$RANK -b 64K -e 64K -d half -n 1 --port-transport Ib0'"
}
case $lane in
    smoke)
        options+=(--timeout 800)
        steps=(
            'verbs-pair --gid -g ibv_rc_pingpong -n 100'
            'nics 2 tests core-tests rdma::tests::nic::nic_'
            'nics 1 tests core-tests transport::verbs::tests::nic_'
            'nics 1 tests it transports::verbs::device_to_device'
            'nics 1 tests it messages::verbs_are_used messages::verbs_read messages::verbs::one_sender messages::verbs::a_message_wakes'
            "hosts 2 '$perf Ib0 --memory device -b 64 -e 64K -f 32 -W 16 -n 2'"
        )
        ;;
    long)
        options+=(--timeout 1300)
        steps=(
            'verbs-pair --gid -g ibv_rc_pingpong -n 100'
            'nics 2 tests core-tests rdma::tests::nic::nic_'
            'nics 1 tests core-tests transport::verbs::tests::nic_'
            'nics 1 tests it transports::verbs::'
            'nics 1 tests it ports::nic::'
            'nics 1 tests it messages::verbs'
            "nics 1 'aqueduct perf message -t verbs -n 100 && aqueduct perf message-read -t verbs -b 4K -e 1M -f 16 -n 40 -W 4'"
            "hosts 4 '$perf Ib0 --memory device --pattern all-to-all -b 8K -e 64K -f 8 -W 8 -n 2'"
            "nics 2 'AQUEDUCT_TEST_LOSE_NIC=\"/sbin/ip link delete r1\" tests core-tests rdma::tests::nic::lost_nic'"
            "hosts 3 --expect 0,137,0 '$soon tests it transports::losses::a_killed_peer'"
            "hosts 3 '$soon tests it transports::losses::memory_that_its_owner_drops'"
            "hosts 3 '$soon AQUEDUCT_TEST_LOSE_NIC=\"nsenter --net=/proc/1/ns/net /sbin/ip link delete r1\" tests it transports::losses::a_nic_that_goes_away'"
            'nics 1 tests it transports::losses::too_little_lockable_memory'
            "nics 1 'aqueduct selftest --quick >/tmp/rows 2>&1; cat /tmp/rows; [ \$(grep -c \" verbs  *passed \" /tmp/rows) = 2 ] && ! grep -e FAILED -e WARN /tmp/rows'"
            "$(plan 4)"
            "$(plan 2)"
            "hosts 2 --rdma-netem 'loss 0.1% delay 100us' '$perf Ib0 --memory host -b 64 -e 64K -f 32 -W 16 -n 2'"
            "hosts 2 --netem 'loss 1% delay 5ms 2ms reorder 10%' '$perf Ethernet --memory host -b 64 -e 1M -f 16 -W 16 -n 2'"
        )
        ;;
    netem)
        shift
        options+=(--timeout 1400)
        steps=()
        for trouble in "$@"; do
            steps+=("netem '$trouble' tests it transports::software::ethernet_")
        done
        ;;
    *) echo "lane.sh: no lane $lane" >&2 && exit 2 ;;
esac
status=0
ci/rdma-vm/run "${options[@]}" "${steps[@]}" || status=$?
# In a separate boot with --steady, whose clock does not depend on other load on this machine.
if [ "$lane" = long ]; then
    ci/rdma-vm/run --steady --step 280 --timeout 300 --put "$tool=aqueduct" 'verbs-speed 3' 'read-speed 3' || status=$?
fi
exit $status
