# Sourced by the scripts beside it, which compare a figure of `aqueduct perf` with one of another program, in turns. They set
# `rounds`, how often, and `port`, the first of a few TCP ports; `failed` is 1 when something could not be measured.
server=
failed=0
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
median() { sort -n | awk '{ v[NR] = $1 } END { if (NR) print v[int((NR + 1) / 2)] }'; }
# alternate NAME OURS PEER PROGRAM UNIT WANTED: measures both alternately and prints both medians and their ratio.
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
