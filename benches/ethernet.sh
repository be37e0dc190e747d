#!/usr/bin/env bash
# Compares connections over TCP with other TCP programs: windowed writes of 1 MiB with iperf3 on one stream, and an 8-byte
# write with its signal with sockperf's ping-pong. Loopback, host memory, alternating, medians of ROUNDS (default 5).
#
#   benches/ethernet.sh [PATH OF THE aqueduct COMMAND]
#
# If one of these programs is not installed, the last lines say so and give our figure alone. The ratios that we want are
# reported and not enforced: on a busy machine they vary by a factor of three from run to run. The exit status is 1 only if
# something could not be measured.
set -uo pipefail
cd "$(dirname "$0")/.."
aqueduct=${1:-${CARGO_TARGET_DIR:-target}/release/aqueduct}
rounds=${ROUNDS:-5}
[ -x "$aqueduct" ] || { echo "ethernet: no $aqueduct: cargo build --release -p aqueduct-tools"; exit 1; }
# Only host memory is used, so the software device is enough.
export AQUEDUCT_DRIVER=${AQUEDUCT_DRIVER:-soft}
port=${PORT:-15201}
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null' EXIT

# Runs a server while the client command runs, and prints the client's output.
with_server() { # SERVER COMMAND -- CLIENT COMMAND
    local command=()
    while [ "$1" != -- ]; do command+=("$1"); shift; done
    shift
    "${command[@]}" >/dev/null 2>&1 &
    server=$!
    sleep 0.5
    timeout 30 "$@"
    kill "$server" 2>/dev/null
    wait "$server" 2>/dev/null
    server=
}
iperf() { # GB/s
    with_server iperf3 -s -1 -p "$port" -- iperf3 -c 127.0.0.1 -p "$port" -t 2 -l 1M -f m |
        awk '/receiver/ { for (i = 2; i <= NF; i++) if ($i == "Mbits/sec") print $(i - 1) / 8000 }'
}
sockperf_tcp() { # microseconds, half a round trip; each round uses a new port, because closed connections block a port for a minute
    local port=$((port + 1 + round))
    with_server sockperf server --tcp -i 127.0.0.1 -p "$port" -- sockperf ping-pong --tcp -i 127.0.0.1 -p "$port" -t 2 -m 14 |
        sed -n 's/.*Summary: Latency is \([0-9.]*\) usec.*/\1/p'
}
# Prints column COLUMN of the only row, if no value was wrong.
ours() { # COLUMN ARGUMENTS...
    local column=$1
    shift
    timeout 60 "$aqueduct" run --no-prefix -n 2 -- aqueduct perf "$@" -t Ethernet -m host --csv - |
        awk -F, -v c="$column" '/^#/ { next } !named { for (i = 1; i <= NF; i++) at[$i] = i; named = 1; next } $at["wrong"] == 0 { print $at[c]; exit }'
}
writes() { ours algorithm_bandwidth_gb_s write -b 1M -e 1M -n "${WINDOWS:-60}"; }
latency() { ours time_p50_us write-lat -b 8 -e 8 -n 50000; }

median() { sort -n | awk '{ v[NR] = $1 } END { if (NR) print v[int((NR + 1) / 2)] }'; }
# alternate NAME OURS PEER PROGRAM UNIT WANTED: measures both alternately and prints both medians and their ratio.
failed=0
alternate() {
    local name=$1 mine=$2 peer=$3 program=$4 unit=$5 limit=$6 round a=() b=()
    local other=$program
    command -v "$program" >/dev/null || other=
    for ((round = 0; round < rounds; round++)); do
        a+=("$($mine)")
        [ -z "$other" ] || b+=("$($peer)")
    done
    local left right
    left=$(printf '%s\n' "${a[@]}" | grep . | median)
    [ -n "$left" ] || { echo "$name: aqueduct perf gave no result"; failed=1; return; }
    if [ -z "$other" ]; then
        echo "$name: $left $unit; $program is not installed (apt-get install $program): no ratio"
        return
    fi
    right=$(printf '%s\n' "${b[@]}" | grep . | median)
    [ -n "$right" ] || { echo "$name: $program gave no result"; failed=1; return; }
    awk -v name="$name" -v a="$left" -v b="$right" -v u="$unit" -v p="$program" -v l="$limit" -v all="${a[*]} / ${b[*]}" \
        'BEGIN { split(l, bound, " "); met = bound[1] == ">=" ? a / b >= bound[2] : a / b <= bound[2]
            printf "%s: %.2f %s, %s %.2f %s, ratio %.2f (wanted %s: %s); all: %s\n", name, a, u, p, b, u, a / b, l, met ? "met" : "MISSED, not enforced", all }'
}
alternate "1 MiB writes" writes iperf iperf3 GB/s ">= 0.9"
alternate "8 B write + signal" latency sockperf_tcp sockperf us "<= 1.3"
exit $failed
