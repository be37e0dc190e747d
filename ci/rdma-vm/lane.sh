#!/usr/bin/env bash
# The steps of the lanes, in one boot: ci/rdma-vm/lane.sh smoke|long. To add one, add a line here.
set -euo pipefail
cd "$(dirname "$0")/../.."

# The programs of the lane `tests` of ci/test.sh.
built=$(cargo test --workspace --no-run --quiet --message-format=json)
program() { # KIND NAME IS_TEST
    local file
    file=$(sed -nE "s/.*\"kind\":\[\"$1\"\],.*\"name\":\"$2\".*\"profile\":\{[^}]*\"test\":$3\}.*\"executable\":\"([^\"]+)\".*/\1/p" <<<"$built" | tail -n 1)
    [ -n "$file" ] || { echo "rdma-vm: cargo has built no $1 $2" >&2 && return 1; }
    echo "$file"
}
core=$(program lib aqueduct true)
it=$(program test it true)
tool=$(program bin aqueduct false)
options=(--timeout 800 --step 300 --put "$core=core-tests" --put "$it=it" --put "$tool=aqueduct")

steps=(
    'verbs-pair --gid -g ibv_rc_pingpong -n 100'
    'nics 2 tests core-tests rdma::tests::nic::nic_'
    'nics 1 tests it transports::verbs::device_to_device'
    'hosts 2 "aqueduct perf write --transport Ib0 --memory device -b 64 -e 64K -f 32 -W 16 -n 2"'
)
# Losses show within seconds. Sooner, a slow machine would look like a lost one.
soon='AQUEDUCT_IB_TIMEOUT=17 AQUEDUCT_IB_RETRY_CNT=3'
[ "${1:-smoke}" = smoke ] || options+=(--timeout 1700 --step 300)
[ "${1:-smoke}" = smoke ] || steps+=(
    'nics 1 tests it transports::verbs::host_to_host'
    'nics 1 tests it transports::verbs::host_to_device'
    'nics 1 tests it transports::verbs::device_to_host'
    'hosts 4 "aqueduct perf write --transport Ib0 --memory device --pattern all-to-all -b 8K -e 64K -f 8 -W 8 -n 2"'
    "nics 2 'AQUEDUCT_TEST_LOSE_NIC=\"/sbin/ip link delete r1\" tests core-tests rdma::tests::nic::lost_nic'"
    "hosts 3 --expect 0,137,0 '$soon tests it transports::losses::a_killed_peer'"
    "hosts 3 '$soon tests it transports::losses::memory_that_its_owner_drops'"
    "hosts 3 '$soon AQUEDUCT_TEST_LOSE_NIC=\"nsenter --net=/proc/1/ns/net /sbin/ip link delete r1\" tests it transports::losses::a_nic_that_goes_away'"
    'unshare --net sh -c "ip link set lo up && /sbin/tc qdisc add dev lo root netem loss 1% delay 5ms 2ms reorder 10% && tests it transports::software::ethernet_host_to_host"'
    'verbs-pair ib_write_bw -s 65536 -n 1000'
    'verbs-pair ib_write_lat -s 8 -n 1000'
)
exec ci/rdma-vm/run "${options[@]}" "${steps[@]}"
