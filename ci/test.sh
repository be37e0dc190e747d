#!/usr/bin/env bash
# The test command of the README: every check that a change must pass. Meant to take at most 20 minutes on 2 cores, on a bare Debian
# 12 with Rust and a C compiler. It installs other tools it needs (apt, as root) or caches them in .cache/.
#
#   ci/test.sh             all lanes
#   ci/test.sh LANE...     only these (see the calls of `lane` below)
#
# A lane that cannot run here prints the command that would make it run, and is counted as not run.
cd "$(dirname "$0")/.." || exit 1
. ci/lane.sh "$@"
# The same choices on every run; ci/deep.sh makes other ones.
export AQUEDUCT_TEST_SEED=1 PROPTEST_RNG_SEED=1
# One more than cores, because many tests wait.
export RUST_TEST_THREADS=$(($(nproc) + 1))

# All lanes test the whole workspace, if only some of its tests: `-p` would build dependencies anew, with fewer features.
component() { # NAME COMPONENT: installs a part of the Rust toolchain that a minimal one lacks
    cargo "$1" --version >/dev/null 2>&1 || rustup component add "$2" || { echo "cargo $1 is missing: rustup component add $2"; exit 77; }
}
format() { component fmt rustfmt && cargo fmt --all --check; }
clippy() { component clippy clippy && cargo clippy --workspace --all-targets --quiet -- -D warnings; }
docs() { RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet; }
# All but cases of one more number of ranks, as threads or as processes; ci/deep.sh has them.
tests() {
    tested 1800 --workspace --no-fail-fast -- --quiet --skip built_in::soft::three_threads --skip built_in::soft::two_processes \
        --skip collectives::soft::three_threads --skip collectives::soft::two_processes
}
# A job of this user and one of `nobody` at the same time, and each as a stranger at a unix socket of the other's.
two-users() {
    [ "$(id -u)" = 0 ] || { echo "only root can start a job as another user: run as root"; exit 77; }
    tested 300 --workspace --test command -- --quiet --ignored --exact \
        concurrent_jobs::jobs_of_two_users_run_at_the_same_time &&
        tested 300 --workspace --lib -- --quiet --ignored other_users::
}
# Processes that exchange messages for 10 seconds while some of them are killed and started again; ci/deep.sh does so for longer.
messages() { AQUEDUCT_TEST_SECONDS=10 tested 300 --workspace --test it -- --quiet --ignored messages::soak::; }
# Folders that are missing, full or read-only, mounted in a namespace of their own.
namespaces() {
    unshare -m true 2>/dev/null || unshare -rm true 2>/dev/null ||
        { echo "no mount namespace can be made here: run as root, or allow user namespaces"; exit 77; }
    tested 300 --workspace --test command -- --quiet --ignored folders::
}
# Channels, collectives, plans, ports and the device library with every access checked against the memory model, and memory as weak
# as it allows; the ranks are threads, because the detector sees one process. The same cases for processes are left out, and groups of
# other than two in collectives, which ci/deep.sh has. Devices are small, so that grids are. Only LL128, among the channels and in plans,
# relies on lines. The examples' ranks are processes, each of which is checked by itself.
races() {
    AQUEDUCT_SOFT_SHADOW=8G checked channels::soft litmus::soft plans::soft plans::turns::soft::two_threads plans::multicast::three_processes \
        conformance::soft::multicast built_in::soft::two_threads variable::soft::two_threads variable::over_hosts::of_different \
        --skip plans::soft::two_threads --skip plans::soft::four_threads &&
        AQUEDUCT_SOFT_LINES=torn checked collectives::soft::two_threads device_library::soft ports::software::cuda_ipc &&
        AQUEDUCT_SOFT_CHECK=races,weak tested 300 --workspace --test run -- --quiet &&
        AQUEDUCT_SOFT_CHECK=races AQUEDUCT_SOFT_SMS=2 tested 300 \
            --workspace --test channel --test fifo --test half --test library --test ll128 --test perf --test plan --test port \
            --test turn --test watched --test weak -- --quiet --skip every_element --skip hundreds_of \
            --skip other_warps_of_a_block &&
        AQUEDUCT_SOFT_CHECK=races,weak AQUEDUCT_SOFT_SMS=2 tested 300 --workspace --lib -- --quiet \
            plan::run::tests::multicast plan::run::tests::samples::completed plan::run::tests::copies \
            plan::run::tests::order plan::run::tests::turns
}
checked() {
    AQUEDUCT_TEST_RANKS=threads AQUEDUCT_SOFT_CHECK=races,weak AQUEDUCT_SOFT_SMS=2 tested 400 \
        --workspace --test it -- --quiet "$@"
}
# A few mutants of the kernels, each with the test that catches it; ci/deep.sh has all mutants.
mutants() { timeout 300 ci/mutants.sh sample --jobs 2; }
# It compiles in a folder of its own, and documentation is made on one core.
beside loom ci/loom.sh 2
lane format format
lane layers ci/layers.sh
lane circles ci/circles.sh
lane sync-tags ci/sync-tags.sh
lane ignored ci/ignored.sh
lane clippy clippy
lane docs docs
lane public ci/public.sh
lane loom ended loom
# The guest takes one core, and many tests wait for time to pass.
beside rdma-vm timeout 900 ci/rdma-vm/lane.sh smoke
lane tests tests
lane two-users two-users
lane messages messages
lane namespaces namespaces
lane hosts timeout 300 ci/hosts.sh
lane races races
lane mutants mutants
lane ptx ci/ptx.sh
lane linkage ci/linkage.sh
lane rdma-vm ended rdma-vm
lane main-job timeout 600 ci/main-job.sh
finish
