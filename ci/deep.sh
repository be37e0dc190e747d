#!/usr/bin/env bash
# The long lanes, which a release must pass but not every change. Each has a time limit. The last
# lines are a summary. Several hours on 2 cores, and more with mutants.
#
#   ci/deep.sh             all lanes
#   ci/deep.sh LANE...     only these (see the calls of `lane` below)
#
# ROUNDS (default 10): repetitions of the soak lanes. FUZZ_SECONDS (default 30): fuzzing time of each decoder.
# PLANS: a folder of MSCCL++ execution plans for the lane of that name. SAMPLES: a folder of CUDA C++ for the lane of that name.
# MESSAGES_SECONDS (default 600): how long processes exchange messages in the lane of that name.
# PROGRAMS (default 10000): random programs, and as many damaged ones, of the lane of that name; PROGRAMS_SHARD=1/8: a part of them.
# AQUEDUCT_TEST_SEED and PROPTEST_RNG_SEED (default random, printed first and last): choices of tests. The seeds of races and unkind
# follow from the first.
cd "$(dirname "$0")/.." || exit 1
. ci/lane.sh "$@"
. ci/need.sh
rounds=${ROUNDS:-10}
export AQUEDUCT_TEST_SEED=${AQUEDUCT_TEST_SEED:-$(date +%s%N)} PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-$(date +%s%N)}
summary+=("seeds: AQUEDUCT_TEST_SEED=$AQUEDUCT_TEST_SEED PROPTEST_RNG_SEED=$PROPTEST_RNG_SEED")
echo "${summary[0]}"

# Installs pinned versions of bindgen and libclang in .cache, because the emitted text depends on both.
bindings() {
    local home=$PWD/.cache/bindgen clang=$PWD/.cache/libclang
    [ -x "$home/bin/bindgen" ] || timeout 900 cargo install --quiet --locked --root "$home" bindgen-cli --version 0.72.1 ||
        { echo "could not install bindgen: cargo install --locked bindgen-cli --version 0.72.1"; return 77; }
    venv "$clang" libclang==18.1.1
    LIBCLANG_PATH=$(dirname "$(find "$clang" -name 'libclang*.so*' -print -quit)")
    # The wheel has no headers, so use the C compiler's stddef.h.
    BINDGEN_EXTRA_CLANG_ARGS="-isystem $(cc -print-file-name=include)"
    export LIBCLANG_PATH BINDGEN_EXTRA_CLANG_ARGS
    PATH=$home/bin:$PATH timeout 300 ci/bindings.sh
}

corpus() {
    cuda_compiler
    need g++ g++
    NVCC=${NVCC:-$CUDA_BIN/nvcc} timeout 600 ci/corpus.sh --check
}

# Compiles everything with the oldest Rust that Cargo.toml promises. clippy finds younger functions, but not younger rules of
# the language.
oldest() {
    local version
    version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml).0
    cargo "+$version" --version >/dev/null 2>&1 || timeout 300 rustup toolchain install --profile minimal --no-self-update "$version" ||
        { echo "Rust $version is missing: rustup toolchain install --profile minimal $version"; return 77; }
    CARGO_TARGET_DIR=target/oldest timeout 600 cargo "+$version" check --workspace --all-targets --quiet
}

# Optimised code: the first lane looks for values that the compiler has lost, the second runs the library's tests as users compile it.
undefined() { timeout 1200 ci/undefined.sh; }
release() { tests 900 --release --quiet -p aqueduct --lib && tests 600 --release --quiet -p aqueduct-cuda-soft --lib; }

# seed N: a small number that follows from AQUEDUCT_TEST_SEED.
seed() { echo "$AQUEDUCT_TEST_SEED $1" | cksum | awk '{ print $1 % 32768 }'; }

# tests SECONDS ARGUMENT...: builds the tests, then runs `cargo test` with a time limit that does not include the build.
tests() {
    local seconds=$1 argument build=()
    shift
    for argument; do
        [ "$argument" != -- ] || break
        build+=("$argument")
    done
    timeout 2400 cargo test --no-run "${build[@]}" && tested "$seconds" "$@"
}

# sanitized NAME SECONDS ARGUMENT...: runs tests with a sanitizer, which stable Rust offers only with RUSTC_BOOTSTRAP.
sanitized() {
    local name=$1 seconds=$2
    shift 2
    RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=$name -Cforce-frame-pointers=yes" CARGO_TARGET_DIR=target/$name \
        tests "$seconds" --quiet --target x86_64-unknown-linux-gnu --no-fail-fast "$@"
}
# Memory errors and leaks, in the library and the software driver. Some tests run without the leak check: objects of a lost
# context, memory that a NIC or captured work may still reach, and a process whose main thread has ended are leaked on purpose.
address() {
    local skip=() leaking=(
        a_lost_context_is_said_and_drops_quietly
        memory_is_kept_exactly_as_long_as_the_nic_may_reach_it
        a_wrapper_that_is_dropped_under_its_owners_capture_leaves_it_alone
        what_follows_an_item_that_a_graph_could_not_be_given_is_held_by_it
        what_work_of_a_wrapped_stream_uses_is_never_freed_if_no_event_can_be_recorded_behind_it
        when_nobody_can_say_whether_work_is_captured_what_it_uses_is_never_freed
        what_captured_work_uses_is_never_freed_when_nobody_can_say_which_graph_that_is
        a_process_runs_while_any_of_its_threads_does
        memory_that_stays_registered_stays
        what_the_device_does_not_destroy_stays
        a_read_that_was_given_up_ends_although_its_queue_pair_stays
    )
    for test in "${leaking[@]}"; do skip+=(--skip "$test"); done
    sanitized address 900 -p aqueduct --lib -- "${skip[@]}" &&
        ASAN_OPTIONS=detect_leaks=0 sanitized address 300 -p aqueduct --lib -- "${leaking[@]}" &&
        sanitized address 900 -p aqueduct-cuda-soft --lib -- driver:: mem
}
# Data races between host threads: in the library's own tests, where the ranks that use channels are threads of one process, and in each
# process of ranks that lose a peer or are stopped.
# Some run one after the other: of changes, which takes two and a half minutes, of ports and of transports. Beside others they may take
# longer than ranks wait.
# Kernel memory is excluded: the software device runs the kernels' own races. Load over Ethernet and verbs is left out: with this
# sanitizer it takes longer than the tests wait.
# The standard library is compiled too: the sanitizer must see its locks, or it reports races everywhere.
thread() {
    if [ ! -d "$(rustc --print sysroot)/lib/rustlib/src/rust/library" ] && ! rustup component add rust-src; then
        echo "the standard library's sources are missing: rustup component add rust-src"
        return 77
    fi
    # The sanitizer's own memory counts as a peer's, and a large read takes longer than the test waits.
    local slow=(--skip a_thousand_idle_peers_cost_little --skip messages_pass_between_the_pieces_of_a_large_read)
    threaded 1200 -p aqueduct --lib -- \
        net:: bootstrap:: comm:: group:: setup:: memory:: transport:: proxy:: channel:: abort &&
        threaded 1500 -p aqueduct --lib -- message:: plan::run::turns "${slow[@]}" &&
        AQUEDUCT_TEST_RANKS=threads threaded 1200 -p aqueduct-tests --test it -- \
            channels::soft ports::changes::software ports::refusals::software \
            --skip changes::software::removing_while_kernels_push &&
        AQUEDUCT_TEST_RANKS=threads threaded 1200 -p aqueduct-tests --test it -- --test-threads=1 \
            changes::software::removing_while_kernels_push ports::software::cuda_ipc &&
        threaded 1800 -p aqueduct-tests --test it -- ports::failures
}
threaded() { # SECONDS ARGUMENT...
    local seconds=$1
    shift
    # Naming the frames of a panic takes this sanitizer longer than tests wait.
    RUST_BACKTRACE=0 TSAN_OPTIONS="suppressions=$PWD/ci/tsan.txt" sanitized thread "$seconds" -Zbuild-std \
        --config 'profile.dev.package.aqueduct-cuda-soft.opt-level=0' \
        --config 'profile.test.package.aqueduct-cuda-soft.opt-level=0' "$@"
}

# Every way that memory is written, with each access checked against the memory model, and memory as weak as it allows, by
# several seeds. LL128, among the channels and in plans, relies on lines, and must fail where they are torn. Built-in collectives of four
# ranks touch more memory than the detector follows by default: it takes 5 GB for them.
races() {
    local seed
    for seed in 0 "$(seed 1)" "$(seed 2)" "$(seed 3)"; do
        echo "AQUEDUCT_SOFT_SEED=$seed"
        AQUEDUCT_SOFT_SEED=$seed checked channels::soft &&
            AQUEDUCT_SOFT_SEED=$seed AQUEDUCT_SOFT_LINES=whole checked channels::soft &&
            AQUEDUCT_SOFT_SEED=$seed AQUEDUCT_SOFT_LINES=torn checked \
                collectives::soft device_library::soft ports::software transports::software &&
            AQUEDUCT_SOFT_SEED=$seed AQUEDUCT_SOFT_SHADOW=8G checked plans:: built_in:: variable:: conformance::soft::multicast \
                --skip plans::multicast::one_of --skip plans::multicast::a_rank &&
            AQUEDUCT_SOFT_SEED=$seed AQUEDUCT_SOFT_CHECK=races,weak AQUEDUCT_SOFT_SMS=2 AQUEDUCT_TEST_PROGRAMS=200 \
                tests 900 -p aqueduct --lib -- run::tests::random:: run::tests::multicast:: \
                run::tests::samples::completed run::tests::copies:: run::tests::turns:: run::tests::several:: --test-threads=1 &&
            AQUEDUCT_SOFT_SEED=$seed AQUEDUCT_SOFT_CHECK=races,weak tests 600 -p aqueduct-examples --test run &&
            AQUEDUCT_SOFT_SEED=$seed AQUEDUCT_SOFT_CHECK=races,weak AQUEDUCT_SOFT_SMS=2 \
                tests 900 -p aqueduct-ptx --test channel --test fifo --test half --test library --test ll128 --test perf --test plan \
                --test port --test weak -- --skip other_warps_of_a_block || return
    done
    torn channels::soft::packets_of_every_format 'LL128 of .* bytes differ' && torn plans::soft::two_threads 'lines, rank .* call'
}
# torn TEST WORDS: a test of LL128 finds wrong data, and says so in these words, where lines are torn.
torn() {
    local out
    out=$(AQUEDUCT_SOFT_LINES=torn checked "$1" 2>&1)
    local status=$?
    [ $status != 0 ] && grep -qE "$2" <<<"$out" && return
    printf '%s\n' "$out" | tail -n 20
    echo "exit $status: with torn lines, $1 does not see what LL128 relies on"
    return 1
}
checked() {
    AQUEDUCT_TEST_RANKS=threads AQUEDUCT_SOFT_CHECK=races,weak AQUEDUCT_SOFT_SMS=2 tests 1500 -p aqueduct-tests --test it -- "$@"
}

# The tests on a device whose work begins and ends late, in memory full of garbage, over streams that arrive in pieces, or together. Data of
# ports takes more than a minute in pieces.
unkind() {
    local round seed faults=(net:fragment net:coalesce) rules
    for ((round = 1; round <= 4; round++)); do
        seed=$(seed "$round")
        rules="${faults[round % 2]};seed=$seed"
        echo "unkind: AQUEDUCT_SOFT_UNKIND=$seed AQUEDUCT_FAULTS='$rules'"
        AQUEDUCT_TEST_PATIENCE=300 AQUEDUCT_SOFT_UNKIND=$seed AQUEDUCT_FAULTS="$rules" tests 900 -p aqueduct-tests --test it -- --quiet \
            --skip launchers || return
    done
}

# Whatever uses the stand-in for verbs, as late and as unordered as each of these seeds makes it. Of four seeds in a row, each gives
# the NICs another amount of inline data.
stand-in() {
    local seed
    for ((seed = 1; seed <= 20; seed++)); do
        AQUEDUCT_SOFT_UNKIND=$seed tests 300 -p aqueduct --lib -- --quiet rdma:: transport::verbs \
            message::verbs message::tests_over_verbs::reads &&
            AQUEDUCT_SOFT_UNKIND=$seed tests 300 -p aqueduct-tests --test it -- --quiet \
                stand_in transports::refusals messages::verbs_read ports::failures::of_a_verbs_connection ||
            { echo "stand-in: AQUEDUCT_SOFT_UNKIND=$seed"; return 1; }
    done
}

# Every mutant of the kernels: hours. With MUTANTS_SHARD (as 1/8) only a part of them.
mutants() { timeout 14400 ci/mutants.sh --jobs 2 --seeds 4 --shard "${MUTANTS_SHARD:-1/1}"; }
# Every mutant of the library in the rooms that docs/mutants.md names: hours, and a part of them in the same way.
rust-mutants() { timeout 14400 ci/rust-mutants.sh --shard "${MUTANTS_SHARD:-1/1}"; }
# Those that a change concerns: what differs from the commit BASE.
changed-mutants() {
    local base
    base=$(git merge-base "${BASE:-origin/main}" HEAD) || { echo "there is no commit ${BASE:-origin/main} to compare with: set BASE"; return 77; }
    ! git diff --quiet "$base" -- core/src || { echo "nothing in core/src differs from ${BASE:-origin/main}"; return 77; }
    timeout 14400 ci/rust-mutants.sh --changed "$base"
}

aqueduct() { timeout 300 "${CARGO_TARGET_DIR:-target}/release/aqueduct" "$@"; }
# repeat COMMAND...: runs the command `rounds` times. Each run must end with the verdict that no value was wrong.
repeat() {
    local round out
    for ((round = 1; round <= rounds; round++)); do
        out=$("$@") && [ "$(tail -n 1 <<<"$out")" = "# Out of bounds values : 0 OK" ] ||
            { printf '%s\n' "$out"; echo "soak: round $round of $rounds: $* failed"; return 1; }
    done
    echo "soak: $* passed $rounds times"
}
soak() {
    cargo build --release --quiet -p aqueduct-tools || return
    export AQUEDUCT_DRIVER=soft
    repeat aqueduct &&
        repeat aqueduct run --no-prefix -n 2 -- aqueduct perf all-reduce -b 4 -e 4K -n 2000 &&
        repeat aqueduct run --no-prefix -n 3 -- aqueduct perf all-reduce -b 1M -e 1M -d half -n 5 &&
        repeat aqueduct run --no-prefix -n 16 -- aqueduct perf all-reduce -b 64K -e 64K -n 3
}
# Every operation of `perf` that the software device runs, and the main job: a run that ends well logs no warning.
quiet() {
    cargo build --release --quiet -p aqueduct-tools || return
    export AQUEDUCT_DRIVER=soft AQUEDUCT_LOG=warn
    local way operation round errors small="-b 8 -e 64 -n 2" operations=("fifo -T 1,33 -n 200 -r 1" startup)
    for operation in all-reduce put get "put --bidirectional" ll8 ll16 ll128; do operations+=("$operation $small"); done
    operations+=("signal -n 2")
    for way in CudaIpc Ethernet; do
        for operation in write write-lat flush port-lat port-put "write -p bidirectional" "write -p all-to-all" \
            "write -m host" "write --peer-memory host"; do
            operations+=("$operation -t $way $small")
        done
    done
    operations+=("read -t CudaIpc $small" "read -t CudaIpc -p bidirectional $small")
    operations=("${operations[@]/#/aqueduct run --no-prefix -n 2 -- aqueduct perf }")
    operations+=("aqueduct perf bootstrap -n 4 -r 2" "aqueduct selftest --quick" aqueduct)
    for operation in "${operations[@]}"; do
        for ((round = 1; round <= rounds; round++)); do
            # Words are separated by spaces only.
            # shellcheck disable=SC2086
            errors=$($operation 2>&1 >.cache/ci/quiet.out) && [ -z "$errors" ] ||
                { cat .cache/ci/quiet.out; printf '%s\n' "$errors"; echo "quiet: round $round of $rounds: $operation"; return 1; }
        done
    done
    echo "quiet: ${#operations[@]} commands ran $rounds times each and wrote nothing to standard error"
}
# Kills or stops a rank at 200 random moments. The output lists them, and how soon the other ranks noticed. Then the moments of a seed
# with which one of about six runs once left a socket behind; twenty miss such a fault once in forty times.
loss() {
    AQUEDUCT_TEST_MOMENTS=200 tests 1800 -p aqueduct-tests --test it loss::soft -- --nocapture --test-threads=1 || return
    local round
    for ((round = 1; round <= 20; round++)); do
        echo "loss: round $round of 20"
        AQUEDUCT_TEST_SEED=1795319995464751474 tests 600 -p aqueduct-tests --test it loss::soft -- --test-threads=1 || return
    done
}
# Makes and drops everything of a communicator in random order while traffic runs, over every transport.
churn() { AQUEDUCT_TEST_ROUNDS=1000 tests 900 -p aqueduct-tests --test it churn:: -- --nocapture --test-threads=1; }
# Eight processes exchange messages, long data and reads while some of them are killed and started again; what they occupy must not grow.
# And what a thousand idle peers cost, over each transport.
messages() {
    local seconds=${MESSAGES_SECONDS:-600}
    AQUEDUCT_TEST_SECONDS=$seconds tests $((seconds + 600)) -p aqueduct-tests --test it messages::soak:: -- --nocapture --ignored &&
        tests 300 -p aqueduct --lib a_thousand_idle_peers -- --nocapture
}
# Repeats all tests, to find failures that depend on timing: with more threads than cores, and beside two busy loops.
again() { repeated 900 "$(($(nproc) * 4))"; }
loaded() {
    local loops=() lane_shell=$BASHPID turn
    for _ in 1 2; do
        # They also end with this shell, however it ends.
        while kill -0 "$lane_shell" 2>/dev/null; do for ((turn = 0; turn < 100000; turn++)); do :; done; done &
        loops+=($!)
    done
    trap 'kill "${loops[@]}" 2>/dev/null' EXIT
    repeated 1500 "$(($(nproc) + 1))"
}
repeated() { # SECONDS THREADS
    local round
    for ((round = 1; round <= rounds; round++)); do
        tests "$1" --workspace --quiet --lib --tests -- --test-threads="$2" >.cache/ci/round.log 2>&1 ||
            { cat .cache/ci/round.log; echo "round $round of $rounds failed"; return 1; }
    done
    echo "all tests passed $rounds times"
}

# The example of docs/first-crate.md, built as users do: outside the workspace.
first-crate() { tests 900 -p aqueduct-tools --test command first_crate:: -- --ignored; }

# Ranks under Open MPI, Hydra and, where PyTorch is installed, torchrun.
launchers() {
    local without=()
    torchrun --help >/dev/null 2>&1 || {
        without=(--skip torchrun)
        echo "NOT RUN: launchers::ranks_of_torchrun_meet: there is no torchrun; pip install torch"
    }
    need mpirun.openmpi openmpi-bin
    need mpiexec.hydra mpich
    need '/usr/lib/*/pmix2/include/pmix.h' libpmix-dev
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    tests 900 --release -p aqueduct-tools --test command launchers:: -- --ignored --test-threads=1 &&
        tests 600 --release -p aqueduct --lib launch::pmix -- --ignored &&
        tests 900 --release -p aqueduct-tests --test it launchers:: -- --ignored "${without[@]}" --test-threads=1
}

# Everything that needs GPUs. Where there is none, this lane is not run.
gpus() {
    compgen -G '/dev/nvidia[0-9]*' >/dev/null || { echo "there is no NVIDIA GPU: run ci/hardware.sh on a machine with one"; return 77; }
    timeout 3600 ci/hardware.sh
}

# Connects a thousand ranks, and checks plans of as many, each within 30 s of a processor.
scale() {
    tests 900 --release -p aqueduct-tools --test command a_thousand_ranks -- --ignored --nocapture || return
    local algorithm
    for algorithm in ring recursive-halving; do
        timeout 300 cargo run --release --quiet -p aqueduct-benches --bin plans -- "$algorithm" | tee /dev/stderr |
            awk '/: check / { split($0, part, "("); seconds = part[2]; seen = 1 } END { exit !(seen && seconds + 0 <= 30) }' || return
    done
}

# Fails the first calls of every driver function, one per job, and injects every kind of network fault at many places; streams split,
# merge and stall at every byte.
faults() { tests 1800 --release -p aqueduct-tests --test it faults:: -- --ignored --test-threads=1; }

# Fuzzes every decoder with libFuzzer, starting from its corpus. Coverage comes from stable rustc's own LLVM pass;
# --target keeps build scripts out of it. Inputs that fail are kept in .cache/fuzz.
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
        # Coverage of the corpus, and at the end.
        echo "fuzz: $name: $(sed -n 's/.*INITED *\(cov: [0-9]*\).*/\1/p' "$work/$name.log")," \
            "then $(grep -oE 'cov: [0-9]+' "$work/$name.log" | tail -n 1), $(grep -oE '^#[0-9]+' "$work/$name.log" | tail -n 1) runs"
    done
    return $failed
}

# Every plan file that MSCCL++ itself has written, which are not ours to keep here.
plans() {
    [ -d "${PLANS:-}" ] || { echo "no plan files: set PLANS to a folder of MSCCL++'s execution plans (*.json)"; return 77; }
    AQUEDUCT_TEST_PLANS=$(realpath "$PLANS") tests 300 -p aqueduct --lib -- --quiet --ignored plans_of_mscclpp predictions_of_mscclpp
}

# NVIDIA's public samples, or other CUDA C++, which are not ours to keep here.
samples() {
    [ -d "${SAMPLES:-}" ] || { echo "no CUDA C++: set SAMPLES to a folder, such as a clone of NVIDIA's cuda-samples"; return 77; }
    timeout 2400 ci/samples.sh "$SAMPLES" sm_75 && timeout 2400 ci/samples.sh "$SAMPLES" sm_90
}

# Random programs and damaged ones as kernels on the software device, compared with the simulator; and a tenth of them there alone,
# compared with the definitions, before and after each pass: half an hour on an idle core. And every type and reduction through all ways.
programs() {
    local shard=${PROGRAMS_SHARD:-1/1} each
    each=$(((${PROGRAMS:-10000} + ${shard#*/} - 1) / ${shard#*/}))
    AQUEDUCT_TEST_SEED=$((AQUEDUCT_TEST_SEED + (${shard%/*} - 1) * each)) AQUEDUCT_TEST_PROGRAMS=$each \
        tests 14400 -p aqueduct --lib -- run::tests::random:: --nocapture --test-threads=1 &&
        AQUEDUCT_TEST_PROGRAMS=$((each / 10 + 1)) tests 3600 -p aqueduct --lib -- plan::random::tests:: --test-threads=1 &&
        tests 900 -p aqueduct --lib -- run::tests::types:: --ignored
}

lane oldest oldest
lane bindings bindings
lane corpus corpus
lane undefined undefined
lane release release
lane linkage ci/linkage.sh --release
lane main-job timeout 900 ci/main-job.sh --release
lane sass timeout 900 ci/ptx.sh --sass
lane loom ci/loom.sh 3
lane address address
lane thread thread
lane races races
lane unkind unkind
lane stand-in stand-in
lane mutants mutants
lane rust-mutants rust-mutants
lane changed-mutants changed-mutants
lane first-crate first-crate
lane launchers launchers
lane faults faults
lane fuzz fuzz
lane scale scale
lane plans plans
lane samples samples
lane programs programs
lane gpus gpus
lane netem timeout 1500 ci/netem.sh
lane rdma-vm timeout 1800 ci/rdma-vm/lane.sh long
lane soak soak
lane quiet quiet
lane loss loss
lane churn churn
lane messages messages
lane again again
lane loaded loaded
finish
