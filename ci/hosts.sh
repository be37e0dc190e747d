#!/usr/bin/env bash
# Runs the ranks of several hosts on this machine: each host is a network namespace with a name and an address of its own, and
# ports between hosts go over TCP. Nothing of it is seen outside, and nothing stays behind. Needs root. Without the permission
# to make namespaces the exit status is 77 and the last line says why.
#
#   ci/hosts.sh                               hierarchical all-reduce plans of 2 hosts of 4 ranks, and of 4 of 2; built-in
#                                             collectives of 2 of 2
#   ci/hosts.sh HOSTS RANKS COMMAND...        this command as each of RANKS ranks of each host
set -uo pipefail
cd "$(dirname "$0")/.."
. ci/need.sh

if [ "${1:-}" != --inside ]; then
    need ip iproute2
    unshare -mn true 2>/dev/null || { echo "no network namespaces can be made here: run as root"; exit 77; }
    [ $# -gt 0 ] || cargo build --quiet --workspace --bin aqueduct || exit 1
    exec unshare -mn bash "$0" --inside "$@"
fi
shift

mount -t tmpfs none /run && mkdir /run/netns || exit 1

# hosts HOSTS RANKS COMMAND...: the first HOSTS hosts run it. Exit status: 0 if all ranks do.
hosts() {
    local count=$1 local=$2 rank=0 failed=0 pids=() host near
    shift 2
    rm -f /run/rendezvous
    for ((host = 0; host < count; host++)); do
        for ((near = 0; near < local; near++)); do
            AQUEDUCT_RANK=$rank AQUEDUCT_LOCAL_RANK=$near AQUEDUCT_WORLD_SIZE=$((count * local)) \
                AQUEDUCT_RENDEZVOUS_FILE=/run/rendezvous AQUEDUCT_SOCKET_IFNAME=eth0 AQUEDUCT_DRIVER=soft \
                timeout 120 ip netns exec "host$host" unshare --uts sh -c 'hostname "$0" && exec "$@"' "host$host" "$@" &
            pids+=($!)
            rank=$((rank + 1))
        done
    done
    for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
    return $failed
}

make() { # HOSTS: with addresses 10.77.0.1, 10.77.0.2 ... on one switch
    ip link add lan type bridge && ip link set lan up || return
    for ((host = 0; host < $1; host++)); do
        ip netns add "host$host" && ip link add "t$host" type veth peer name eth0 netns "host$host" &&
            ip link set "t$host" master lan up && ip -n "host$host" link set lo up &&
            ip -n "host$host" address add "10.77.0.$((host + 1))/24" dev eth0 && ip -n "host$host" link set eth0 up || return
    done
}

if [ $# -gt 0 ]; then
    make "$1" && hosts "$@"
    exit
fi
make 4 || exit 1
aqueduct=${CARGO_TARGET_DIR:-target}/debug/aqueduct
for shape in "2 4" "4 2"; do
    read -r count local <<<"$shape"
    echo "-- $count hosts of $local ranks"
    $aqueduct plan new all-reduce -a hierarchical -n 8 --ranks-per-host "$local" >/run/plan.json || exit 1
    hosts "$count" "$local" "$aqueduct" plan run /run/plan.json -b 64K -e 256K -f 4 -d half -o sum -n 2 >/run/table 2>&1
    status=$?
    cat /run/table
    # Ranks that took each other for neighbours would have gone past the network.
    [ $status = 0 ] && grep -q '^# Out of bounds values : 0 OK' /run/table &&
        [ "$(grep -o ' on host[0-9]*' /run/table | sort -u | wc -l)" = "$count" ] || exit 1
done
for collective in all-reduce all-gather reduce-scatter all-to-all all-to-all-v reduce-scatter-v point-to-point; do
    echo "-- $collective of 2 hosts of 2 ranks"
    hosts 2 2 "$aqueduct" perf $collective -b 4K -e 256K -f 64 -d half -n 2 >/run/table 2>&1
    status=$?
    cat /run/table
    [ $status = 0 ] && grep -q '^# Out of bounds values : 0 OK' /run/table && grep -q ' hosts ' /run/table || exit 1
done
