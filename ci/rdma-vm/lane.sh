#!/usr/bin/env bash
# The steps of the lanes, in one boot: ci/rdma-vm/lane.sh smoke|long. To add one, add a line here.
set -euo pipefail
cd "$(dirname "$0")/../.."
options=(--timeout 900 --step 120)
steps=(
    'hosts 1 "ibv_devinfo -d \$NIC | grep PORT_ACTIVE"'
    'verbs-pair --gid -g ibv_rc_pingpong -n 100'
)
[ "${1:-smoke}" = smoke ] || steps+=(
    'verbs-pair ib_write_bw -s 65536 -n 1000'
    'verbs-pair ib_write_lat -s 8 -n 1000'
    'verbs-pair --hosts-options "--expect !,137 --at 5 \"kill_rank 1\"" ib_write_bw -s 65536 -D 20'
)
# The library's own verbs tests, once there are any.
tests=$(cargo test -q -p aqueduct --lib --no-run --message-format=json |
    sed -nE 's/.*"executable":"([^"]+)".*/\1/p' | tail -n 1)
if [ -n "$tests" ] && "$tests" --list rdma 2>/dev/null | grep -q ': test$'; then
    options+=(--put "$tests=core-tests")
    steps+=('hosts 1 "core-tests rdma --test-threads 1"')
else
    echo "rdma-vm: the library has no tests named rdma"
fi
exec ci/rdma-vm/run "${options[@]}" "${steps[@]}"
