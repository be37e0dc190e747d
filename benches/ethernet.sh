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
. benches/peers/alternate.sh

# Prints column COLUMN of the only row, if no value was wrong.
ours() { # COLUMN ARGUMENTS...
    local column=$1
    shift
    timeout 60 "$aqueduct" run --no-prefix -n 2 -- aqueduct perf "$@" -t Ethernet -m host --csv - |
        awk -F, -v c="$column" '/^#/ { next } !named { for (i = 1; i <= NF; i++) at[$i] = i; named = 1; next } $at["wrong"] == 0 { print $at[c]; exit }'
}
writes() { ours algorithm_bandwidth_gb_s write -b 1M -e 1M -n "${WINDOWS:-60}"; }
latency() { ours time_p50_us write-lat -b 8 -e 8 -n 50000; }

alternate "1 MiB writes" writes iperf iperf3 GB/s ">= 0.9"
alternate "8 B write + signal" latency sockperf_tcp sockperf us "<= 1.3"
exit $failed
