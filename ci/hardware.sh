#!/usr/bin/env bash
# The hardware lane: everything that needs NVIDIA GPUs, on the machine it is run on. There, an absent GPU is a failure.
#
#   ci/hardware.sh                 build, then run
#   BIN=FOLDER ci/hardware.sh      run what lies in FOLDER, stripped: `aqueduct`, `it` (the test binary), and `ptx-NAME`
#                                  for the tests of ptx/tests. No Rust is needed
#
# NCCL (default: libnccl.so.2): its library, for `aqueduct bench`.
# OUT (default: target/hardware) receives the tables as text and JSON, to be recorded in benches/records/.
set -uo pipefail
cd "$(dirname "$0")/.."
export RUST_BACKTRACE=1 AQUEDUCT_TIMEOUT="${AQUEDUCT_TIMEOUT:-60}"
if [ -z "${BIN:-}" ]; then
    BIN=target/hardware/bin
    mkdir -p "$BIN"
    cargo build --release -p aqueduct-tools || exit 1
    cp "${CARGO_TARGET_DIR:-target}/release/aqueduct" "$BIN/"
    it=$(cargo test --release -p aqueduct-tests --no-run --message-format=json | sed -n 's/.*"executable":"\([^"]*\/it-[^"]*\)".*/\1/p' | tail -n 1)
    cp "$it" "$BIN/it" || exit 1
    cargo build --release -p aqueduct-examples || exit 1
    for example in examples/*.rs; do
        example=$(basename "$example" .rs)
        cp "${CARGO_TARGET_DIR:-target}/release/${example//_/-}" "$BIN/" || exit 1
    done
    for test in $(cargo test --release -p aqueduct-ptx --tests --no-run --message-format=json |
        sed -n 's/.*"kind":\["test"\].*"executable":"\([^"]*\)".*/\1/p'); do
        cp "$test" "$BIN/ptx-$(basename "$test" | sed 's/-[0-9a-f]*$//')" || exit 1
    done
    cargo build --release -p aqueduct-tools --features without-abort-check --target-dir target/without || exit 1
    cp target/without/release/aqueduct "$BIN/aqueduct-without-abort-check"
fi
out=${OUT:-target/hardware}
mkdir -p "$out"
failed=() not_run=()
step() { # NAME SECONDS COMMAND...
    local name=$1 seconds=$2
    shift 2
    echo "== $name: $*"
    timeout "$seconds" "$@" >"$out/$name.txt" 2>&1
    local status=$?
    [ $status = 0 ] || { failed+=("$name ($status)"); tail -n 40 "$out/$name.txt"; }
    [ $status != 0 ] || tail -n "${SHOW:-12}" "$out/$name.txt"
    # Tests say what they did not run here.
    while read -r line; do not_run+=("$line"); done < <(grep -ao 'NOT RUN: .*: .*' "$out/$name.txt" | sed 's/^NOT RUN: //' | sort -u)
}
gpus=$("$BIN/aqueduct" info | sed -n '/^NVIDIA driver/,/^software/s/^  devices: //p')
[ "${gpus:-0}" -gt 0 ] || { echo "hardware: no NVIDIA GPU here"; "$BIN/aqueduct" info; exit 1; }

step info 60 "$BIN/aqueduct" info
step tests 480 "$BIN/it" hardware --ignored --test-threads=1 --skip loss:: --skip litmus::
step loss 240 env AQUEDUCT_TEST_MOMENTS=20 "$BIN/it" loss::hardware --ignored --nocapture --test-threads=1
# The orderings of docs/memory-model.md: trials, forbidden outcomes and the twins' rates of every tag.
SHOW=80 step litmus 900 "$BIN/it" litmus::hardware --ignored --nocapture --test-threads=1
# The kernels against their oracles. ptx-text compares texts and needs no device.
for name in channel fifo half library ll128 patience perf plan port; do
    if [ -x "$BIN/ptx-$name" ]; then
        step "ptx-$name" 300 env AQUEDUCT_DRIVER=cuda "$BIN/ptx-$name" --test-threads=1
    else
        not_run+=("ptx/tests $name: not in $BIN")
    fi
done
not_run+=("ptx/tests watched, weak: they are about what the software device alone checks, or leaves weak")
step fifo 120 "$BIN/aqueduct" perf fifo -J "$out/fifo.json"
step main-job 240 "$BIN/aqueduct"
[ "$gpus" -lt 4 ] || step main-job-2 240 env CUDA_VISIBLE_DEVICES=0,1 "$BIN/aqueduct"
# The four tools of compute-sanitizer over the kernels of the self-test, of ptx/tests and of some hardware tests. Each fails on findings.
sanitizer=${COMPUTE_SANITIZER:-$(command -v compute-sanitizer || ls -d /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | tail -n 1)}
sanitize() { # NAME SECONDS COMMAND...
    local name=$1 seconds=$2 tool api=()
    shift 2
    # Tests give wrong calls to the driver on purpose; what they get for it is theirs to judge.
    [ "$name" = selftest ] || api=(--report-api-errors no)
    for tool in memcheck racecheck synccheck initcheck; do
        SHOW=2 step "sanitizer-$tool-$name" "$seconds" env AQUEDUCT_TIMEOUT=300 AQUEDUCT_PEER_TIMEOUT=60 AQUEDUCT_TEST_PATIENCE=120 \
            "$sanitizer" --tool "$tool" "${api[@]}" --target-processes all --error-exitcode 9 "$@"
        # A process that is not the first does not pass its tool's exit status on.
        if grep -qE 'ERROR SUMMARY: [1-9]|RACECHECK SUMMARY: [1-9]' "$out/sanitizer-$tool-$name.txt"; then
            failed+=("sanitizer-$tool-$name (findings)")
            grep -E '^=========' "$out/sanitizer-$tool-$name.txt" | head -n 40
        fi
    done
}
if [ -n "$sanitizer" ]; then
    sanitize selftest 600 "$BIN/aqueduct" selftest --quick
    for name in channel fifo half library ll128 patience perf plan port; do
        [ ! -x "$BIN/ptx-$name" ] || sanitize "ptx-$name" 1200 env AQUEDUCT_DRIVER=cuda "$BIN/ptx-$name" --test-threads=1
    done
    # The hardware tests whose kernels move data, by ranks on two GPUs.
    sanitize it 1200 "$BIN/it" --ignored --test-threads=1 channels::hardware collectives::hardware built_in::hardware \
        device_library::hardware plans::hardware variable::hardware --skip multicast --skip types:: --skip three_ --skip four_ --skip _of_four
    not_run+=("compute-sanitizer over the hardware tests of ports, lost ranks and times: a test takes minutes under it, or longer than it waits")
else
    not_run+=("compute-sanitizer: not found; set COMPUTE_SANITIZER to its path")
fi
if [ "$gpus" -gt 1 ]; then
    run="$BIN/aqueduct run --no-prefix -n"
    pairs=$((gpus / 2 * 2))
    for example in ping-pong host-semaphores memory-channel port-channel; do
        if [ -x "$BIN/$example" ]; then step "example-$example" 60 $run 2 -- "$BIN/$example"; else not_run+=("$example: not in $BIN"); fi
    done
    step all-reduce-graph 120 $run "$gpus" -- aqueduct perf all-reduce -e 64M -G 20 -n 200 -J "$out/all-reduce-graph.json"
    step all-reduce-half 120 $run "$gpus" -- aqueduct perf all-reduce -e 64M -d half -G 20 -J "$out/all-reduce-half.json"
    if python3 -c 'import torch.distributed' 2>/dev/null; then
        step nccl 120 python3 benches/peers/nccl_all_reduce.py "$gpus"
    else
        not_run+=("nccl: python3 has no torch.distributed")
    fi
    for operation in all-reduce all-gather reduce-scatter all-to-all send-recv broadcast reduce; do
        step "bench-$operation" 120 $run "$gpus" -- aqueduct bench $operation -b 1K -e 1G -f 4 -d half -G 20 \
            --nccl "${NCCL:-libnccl.so.2}" -J "$out/bench-$operation.json"
    done
    step startup 120 $run "$gpus" -- aqueduct perf startup -J "$out/startup.json"
    if python3 -c 'import torch.distributed' 2>/dev/null && command -v torchrun >/dev/null; then
        step nccl-startup 180 torchrun --nproc-per-node "$gpus" benches/peers/nccl_startup.py --against "$out/startup.json"
    else
        not_run+=("nccl-startup: there is no torchrun")
    fi
    for operation in put get ll8 ll16 ll128 signal; do
        step "$operation" 90 $run 2 -- aqueduct perf $operation -J "$out/$operation.json"
    done
    # Connections. Rows of CudaIpc stand beside a bare loop of the driver's copies.
    step write-128m 90 $run 2 -- aqueduct perf write -t CudaIpc -b 128M -e 128M -W 1 -n 50 -J "$out/write-128m.json"
    step write-4k 90 $run 2 -- aqueduct perf write -t CudaIpc -b 4K -e 4K -W 1000 -n 50 -J "$out/write-4k.json"
    for operation in write write-lat flush; do
        step "$operation-cuda-ipc" 90 $run 2 -- aqueduct perf $operation -t CudaIpc -J "$out/$operation-cuda-ipc.json"
        step "$operation-ethernet" 90 $run 2 -- aqueduct perf $operation -t Ethernet -J "$out/$operation-ethernet.json"
        step "$operation-ethernet-host" 90 $run 2 -- aqueduct perf $operation -t Ethernet -m host -J "$out/$operation-ethernet-host.json"
    done
    # Port channels: rows of CudaIpc stand beside a word, a host thread and the driver's calls, or the copy engine.
    for transport in CudaIpc Ethernet; do
        step "port-lat-$transport" 120 $run 2 -- aqueduct perf port-lat -t $transport -J "$out/port-lat-$transport.json"
        step "port-put-$transport" 120 $run 2 -- aqueduct perf port-put -t $transport -J "$out/port-put-$transport.json"
    done
    step port-lat-fenced 120 $run 2 -- aqueduct perf port-lat -t CudaIpc --fenced -J "$out/port-lat-fenced.json"
    step port-lat-spin 120 $run 2 -- aqueduct perf port-lat -t CudaIpc --spin -J "$out/port-lat-spin.json"
    step port-hop-128m 120 $run 2 -- aqueduct perf port-put -t CudaIpc -W 1 -b 128M -e 128M -J "$out/port-hop-128m.json"
    [ "$gpus" -lt 3 ] || step write-all-to-all 90 $run "$gpus" -- aqueduct perf write -t CudaIpc -p all-to-all -b 1M -e 256M -J "$out/write-all-to-all.json"
    [ "$pairs" -lt 4 ] || step put-pairs 90 $run "$pairs" -- aqueduct perf put -b 64M -e 256M
else
    not_run+=("what needs several GPUs: there is one")
fi
# What looking at the abort word costs: the same against a build that never looks, in turns. Its goal is reported, not enforced;
# so is that of nccl-startup above.
if [ "$gpus" -gt 1 ] && [ -x "$BIN/aqueduct-without-abort-check" ]; then
    step abort-check 400 python3 benches/abort_check.py "$BIN/aqueduct" "$BIN/aqueduct-without-abort-check" "$gpus"
fi
said=""
if [ ${#not_run[@]} -gt 0 ]; then
    printf 'NOT RUN: hardware %s\n' "${not_run[@]}"
    said="; not run: $(printf '%s; ' "${not_run[@]}")"
fi
if [ ${#failed[@]} -gt 0 ]; then
    echo "hardware: FAILED: ${failed[*]}$said"
    exit 1
fi
echo "hardware: ok on $gpus GPU(s)$said"
