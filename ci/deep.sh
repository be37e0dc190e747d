#!/usr/bin/env bash
# The long lanes: what need not hold before every change but before a release. Each has a bound in time; the last
# lines sum up. About an hour on 2 cores.
#
#   ci/deep.sh             all lanes
#   ci/deep.sh LANE...     only these (see the calls of `lane` below)
#
# ROUNDS (default 10): how often the soak lanes repeat. FUZZ_SECONDS (default 30): for how long each decoder is fuzzed.
cd "$(dirname "$0")/.." || exit 1
. ci/lane.sh "$@"
. ci/need.sh
rounds=${ROUNDS:-10}

# bindgen and a libclang of known versions in .cache: the emitted text depends on both.
bindings() {
    local home=$PWD/.cache/bindgen clang=$PWD/.cache/libclang
    [ -x "$home/bin/bindgen" ] || timeout 900 cargo install --quiet --locked --root "$home" bindgen-cli --version 0.72.1 ||
        { echo "could not install bindgen: cargo install --locked bindgen-cli --version 0.72.1"; return 77; }
    venv "$clang" libclang==18.1.1
    LIBCLANG_PATH=$(dirname "$(find "$clang" -name 'libclang*.so*' -print -quit)")
    # The wheel has no headers of its own; the C compiler's stddef.h serves.
    BINDGEN_EXTRA_CLANG_ARGS="-isystem $(cc -print-file-name=include)"
    export LIBCLANG_PATH BINDGEN_EXTRA_CLANG_ARGS
    PATH=$home/bin:$PATH timeout 300 ci/bindings.sh
}

corpus() {
    cuda_compiler
    need g++ g++
    NVCC=${NVCC:-$CUDA_BIN/nvcc} timeout 600 ci/corpus.sh --check
}

# tests SECONDS ARGUMENT...: `cargo test`, built first, so that the bound is the tests' own and a busy machine's build is none.
tests() {
    local seconds=$1 argument build=()
    shift
    for argument; do
        [ "$argument" != -- ] || break
        build+=("$argument")
    done
    timeout 2400 cargo test --no-run "${build[@]}" && timeout "$seconds" cargo test "$@"
}

# sanitized NAME SECONDS ARGUMENT...: tests with a sanitizer, which stable Rust has behind RUSTC_BOOTSTRAP.
sanitized() {
    local name=$1 seconds=$2
    shift 2
    RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=$name -Cforce-frame-pointers=yes" CARGO_TARGET_DIR=target/$name \
        tests "$seconds" --quiet --target x86_64-unknown-linux-gnu --no-fail-fast "$@"
}
# Memory errors and leaks: the library with its fds, mappings, callbacks and FFI, and the software driver. What belonged to a
# lost context, and what a NIC does not give back, is left alone for good, so those tests are looked at without leaks.
address() {
    local lost=a_lost_context_is_said_and_drops_quietly kept=memory_is_kept_exactly_as_long_as_the_nic_may_reach_it
    sanitized address 900 -p aqueduct --lib -- --skip $lost --skip $kept &&
        ASAN_OPTIONS=detect_leaks=0 sanitized address 300 -p aqueduct --lib -- $lost $kept &&
        sanitized address 900 -p aqueduct-cuda-soft --lib -- driver:: mem
}
# Races between host threads. The kernels' memory is left out: its races are the guest's, and the device's business.
# The standard library is compiled along: with a lock whose slow path the sanitizer cannot see, everything races.
thread() {
    if [ ! -d "$(rustc --print sysroot)/lib/rustlib/src/rust/library" ] && ! rustup component add rust-src; then
        echo "the standard library's sources are missing: rustup component add rust-src"
        return 77
    fi
    TSAN_OPTIONS="suppressions=$PWD/ci/tsan.txt" sanitized thread 1200 -Zbuild-std \
        --config 'profile.dev.package.aqueduct-cuda-soft.opt-level=0' \
        --config 'profile.test.package.aqueduct-cuda-soft.opt-level=0' -p aqueduct --lib -- net:: bootstrap:: comm:: group:: setup:: memory:: transport:: abort
}

aqueduct() { timeout 300 "${CARGO_TARGET_DIR:-target}/release/aqueduct" "$@"; }
# repeat COMMAND...: `rounds` times; each must end with the verdict that all values were right.
repeat() {
    local round out
    for ((round = 1; round <= rounds; round++)); do
        out=$("$@") && [ "$(tail -n 1 <<<"$out")" = "# Out of bounds values : 0 OK" ] ||
            { printf '%s\n' "$out"; echo "soak: round $round of $rounds: $* failed"; return 1; }
    done
    echo "soak: $* right $rounds times"
}
soak() {
    cargo build --release --quiet -p aqueduct-tools || return
    export AQUEDUCT_DRIVER=soft
    repeat aqueduct &&
        repeat aqueduct run --no-prefix -n 2 -- aqueduct perf all-reduce -b 4 -e 4K -n 2000 &&
        repeat aqueduct run --no-prefix -n 3 -- aqueduct perf all-reduce -b 1M -e 1M -d half -n 5 &&
        repeat aqueduct run --no-prefix -n 16 -- aqueduct perf all-reduce -b 64K -e 64K -n 3
}
# Ranks killed and stopped at 200 random moments; the output says which, and how soon the others knew.
loss() {
    AQUEDUCT_TEST_MOMENTS=200 tests 1800 -p aqueduct-tests --test it loss::soft -- --nocapture --test-threads=1
}
# Everything of a communicator made and dropped in random order while traffic runs, over every transport.
churn() { AQUEDUCT_TEST_ROUNDS=1000 tests 900 -p aqueduct-tests --test it churn:: -- --nocapture --test-threads=1; }
# Every test again and again, more at a time than there are cores: what only fails when threads meet badly.
again() {
    local round
    for ((round = 1; round <= rounds; round++)); do
        tests 900 --workspace --quiet --lib --tests -- --test-threads $(($(nproc) * 4)) >.cache/ci/round.log 2>&1 ||
            { cat .cache/ci/round.log; echo "again: round $round of $rounds failed"; return 1; }
    done
    echo "again: all tests passed $rounds times"
}

# Ranks under real Open MPI and Hydra. torchrun needs PyTorch and is run by hand.
launchers() {
    need mpirun.openmpi openmpi-bin
    need mpiexec.hydra mpich
    need '/usr/lib/*/pmix2/include/pmix.h' libpmix-dev
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    tests 900 --release -p aqueduct-tools --test command launchers:: -- --ignored --test-threads=1 &&
        tests 600 --release -p aqueduct --lib launch::pmix -- --ignored &&
        tests 900 --release -p aqueduct-tests --test it launchers:: -- --ignored --skip torchrun --test-threads=1
}

# A thousand ranks wired up.
scale() {
    tests 900 --release -p aqueduct-tools --test command a_thousand_ranks -- --ignored --nocapture
}

# The first driver calls of a job fail, each once, and every kind of network fault happens at many places.
faults() { tests 1800 --release -p aqueduct-tests --test it faults:: -- --ignored --test-threads=1; }

# Every decoder under libFuzzer, from its kept corpus on. The coverage is stable rustc's own LLVM pass; --target keeps build
# scripts out of it. What is found stays in .cache/fuzz.
fuzz() {
    need c++ g++
    local triple=x86_64-unknown-linux-gnu work=$PWD/.cache/fuzz seconds=${FUZZ_SECONDS:-30} name failed=0 coverage
    coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
    coverage+=" -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing"
    RUSTFLAGS="$coverage -Ccodegen-units=1" CARGO_TARGET_DIR=target/fuzz timeout 1800 \
        cargo build --quiet --release --target $triple -p aqueduct-fuzz --features libfuzzer --bin fuzz || return
    for folder in fuzz/corpus/*/; do
        name=$(basename "$folder")
        mkdir -p "$work/corpus/$name" "$work/found/$name"
        FUZZ_TARGET=$name timeout $((seconds + 60)) "target/fuzz/$triple/release/fuzz" "$work/corpus/$name" "$folder" \
            -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=4096 \
            -artifact_prefix="$work/found/$name/" >"$work/$name.log" 2>&1 ||
            { failed=1 && tail -n 25 "$work/$name.log" && echo "fuzz: $name failed"; }
        # Blocks reached by the corpus, and at the end.
        echo "fuzz: $name: $(sed -n 's/.*INITED *\(cov: [0-9]*\).*/\1/p' "$work/$name.log")," \
            "then $(grep -oE 'cov: [0-9]+' "$work/$name.log" | tail -n 1), $(grep -oE '^#[0-9]+' "$work/$name.log" | tail -n 1) runs"
    done
    return $failed
}

lane bindings bindings
lane corpus corpus
lane sass timeout 900 ci/ptx.sh --sass
lane address address
lane thread thread
lane launchers launchers
lane faults faults
lane fuzz fuzz
lane scale scale
lane netem timeout 1500 ci/netem.sh
lane rdma-vm timeout 1800 ci/rdma-vm/lane.sh long
lane soak soak
lane loss loss
lane churn churn
lane again again
finish
