#!/usr/bin/env bash
# Compares messages between two processes with other programs, in turns, medians of ROUNDS (default 5): over shared memory with UCX's
# active messages, over TCP on loopback with these and with sockperf and iperf3. The rows `bare`, `flag` and `memcpy` of `aqueduct perf`
# are from its own runs.
#
#   benches/messages.sh [PATH OF THE aqueduct COMMAND]
#
# Ratios are reported and not enforced; the exit status is 1 only if something could not be measured. Where a program is not installed,
# its lines say so and give our figure alone.
set -uo pipefail
cd "$(dirname "$0")/.."
aqueduct=${1:-${CARGO_TARGET_DIR:-target}/release/aqueduct}
rounds=${ROUNDS:-5}
[ -x "$aqueduct" ] || { echo "messages: no $aqueduct: cargo build --release -p aqueduct-tools"; exit 1; }
port=${PORT:-15301}
. benches/peers/alternate.sh

# Prints the median time in microseconds of the row of ALGORITHM.
time_us() { # ALGORITHM ARGUMENTS...
    local algorithm=$1
    shift
    timeout 60 "$aqueduct" perf "$@" -t "$over" --csv - |
        awk -F, -v a="$algorithm" '/^#/ { next } !named { for (i = 1; i <= NF; i++) at[$i] = i; named = 1; next }
            $at["algorithm"] == a { print $at["time_p50_us"]; exit }'
}
latency() { time_us "$way" message -b 8 -e 8 -n 50000; }
base_latency() { time_us "$base" message -b 8 -e 8 -n 50000; }
rate() { time_us "$way" message-rate -b 8 -e 8 -n 2000000 | awk '{ print 1 / $1 }'; }
# One at a time, because memcpy copies into one place, and so do those of UCX's gets that are under way at a time.
read_gb_s() { time_us "$way" message-read -b 1M -e 1M -n 4000 -W 1 | awk '{ print 1048.576 / $1 }'; }
base_read_gb_s() { time_us "$base" message-read -b 1M -e 1M -n 4000 -W 1 | awk '{ print 1048.576 / $1 }'; }
many_gb_s() { time_us "$way" message-read -b 1M -e 1M -n 4000 -W 16 | awk '{ print 1048.576 / $1 }'; }

# Rates that are wanted whatever other programs reach.
five() { echo 5; }
one() { echo 1; }

# Prints column COLUMN (2: median latency in us, 6: MB/s, 8: messages per second) of a test of ucx_perftest over the transports of `tls`.
ucx() { # COLUMN ARGUMENTS...
    local column=$1
    shift
    export UCX_TLS=$tls UCX_NET_DEVICES=$devices UCX_LOG_LEVEL=error
    # UCX's ports stay in use for a minute, too.
    port=$((port + 1))
    with_server ucx_perftest -p "$port" -- ucx_perftest 127.0.0.1 -p "$port" -f "$@" |
        awk -v c="$column" 'NF >= 8 && $1 ~ /^[0-9]+$/ { value = $c } END { print value }'
}
ucx_latency() { ucx 2 -t ucp_am_lat -s 8 -n 200000; }
ucx_rate() { ucx 8 -t ucp_am_bw -s 8 -n 2000000 | awk '{ print $1 / 1e6 }'; }
ucx_get() { ucx 6 -t ucp_get -s 1048576 -n 5000 -O 16 | awk '{ print $1 * 1.048576 / 1000 }'; }

way=shm over=shm base=flag tls=posix,cma,self devices=all
alternate "shared memory, 8 B one way, beside a flag" latency base_latency "$aqueduct" us "<= 1.3"
alternate "shared memory, 8 B one way" latency ucx_latency ucx_perftest us "<= 0.8"
alternate "shared memory, 8 B messages" rate ucx_rate ucx_perftest M/s ">= 1.2"
alternate "shared memory, 8 B messages, beside 5 M/s" rate five true M/s ">= 1"
base=memcpy
alternate "shared memory, reads of 1 MiB, beside memcpy" read_gb_s base_read_gb_s "$aqueduct" GB/s ">= 0.9"
alternate "shared memory, reads of 1 MiB" read_gb_s ucx_get ucx_perftest GB/s ">= 1"
way=tcp over=tcp base=bare tls=tcp,self devices=lo
alternate "TCP, 8 B one way" latency sockperf_tcp sockperf us "<= 1.2"
alternate "TCP, 8 B one way" latency ucx_latency ucx_perftest us "<= 1"
alternate "TCP, 8 B messages" rate ucx_rate ucx_perftest M/s ">= 1"
alternate "TCP, 8 B messages, beside 1 M/s" rate one true M/s ">= 1"
alternate "TCP, reads of 1 MiB" read_gb_s iperf iperf3 GB/s ">= 0.9"
alternate "TCP, reads of 1 MiB, 16 under way" many_gb_s iperf iperf3 GB/s ">= 0.9"
exit $failed
