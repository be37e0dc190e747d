#!/usr/bin/env bash
# Regenerates the checked-in bindings of sys/cuda-driver-sys (pinned cuda.h) and sys/rdma-core-sys (libibverbs-dev of
# Debian 12), fails if they differ from the checked-in text, and checks the layouts with a C compiler. This is a
# maintainer's tool that users never need.
#
#   ci/bindings.sh          compare; exit 1 on a difference
#   ci/bindings.sh --bless  write the new text
#
# Needs: python3, libclang, cc, cargo, and bindgen 0.72 on PATH (cargo install bindgen-cli --version 0.72.1 --locked).
# CUDA_INCLUDE may name a folder with cuda.h; otherwise the pinned wheel is unpacked into .cache/.
# VERBS_INCLUDE may name a folder with infiniband/verbs.h of rdma-core 44; otherwise the installed one is used.
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/need.sh
bless=${1:-}
pin='nvidia-cuda-runtime==13.0.96'
rdma_core=44

if [ -z "${CUDA_INCLUDE:-}" ]; then
    venv=.cache/cuda-headers
    if [ ! -x "$venv/bin/python" ]; then
        python3 -m venv "$venv"
        "$venv/bin/pip" install -q "$pin"
    fi
    CUDA_INCLUDE=$(dirname "$(find "$venv" -name cuda.h -print -quit)")
fi
if [ -z "${VERBS_INCLUDE:-}" ]; then
    need /usr/include/infiniband/verbs.h libibverbs-dev
    VERBS_INCLUDE=/usr/include
    found=$(dpkg-query -W -f '${Version}' libibverbs-dev)
    case $found in
        "$rdma_core".*) ;;
        *) echo "bindings: libibverbs-dev $found is installed, $rdma_core is pinned: set VERBS_INCLUDE" && exit 77 ;;
    esac
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
status=0

listed() { awk '!/^#/ && NF { printf "%s%s", sep, (NF > 3 ? $4 : $1); sep = "|" }' "$1/functions.txt"; }
declared= # functions whose older ABI we call and whose signature the pinned header no longer declares
generate() { # HEADER BINDGEN-ARGUMENT...
    { echo "#include <$1>"; echo "$declared"; } >"$out/wrapper.h"
    shift
    bindgen "$out/wrapper.h" --no-doc-comments --use-core --merge-extern-blocks \
        --default-enum-style newtype --with-derive-default --no-prepend-enum-name \
        --rust-target 1.88 --rust-edition 2024 --output "$out/all.rs" "$@"
}
compare() { # CRATE HEADER FILE...
    local crate=$1 header=$2 file
    shift 2
    rustfmt --edition 2024 --config-path "$PWD/rustfmt.toml" $(printf "$out/%s.rs\n" "$@" | grep -v table)
    for file in "$@"; do
        if [ "$bless" = --bless ]; then
            cp "$out/$file.rs" "$crate/src/$file.rs"
        elif ! diff -u "$crate/src/$file.rs" "$out/$file.rs"; then
            echo "bindings: $crate/src/$file.rs differs from what $header gives; run ci/bindings.sh --bless" >&2
            status=1
        fi
    done
}

crate=sys/cuda-driver-sys
declared='CUresult cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out,
    CUgraph *graph_out, const CUgraphNode **dependencies_out, size_t *numDependencies_out);'
generate cuda.h --allowlist-function "$(listed $crate)" \
    --allowlist-type 'CU(device_attribute|pointer_attribute|function_attribute|stream_flags|event_flags|ctx_flags|memhostalloc|jit.*|stream.*|graph.*|mem.*|multicast.*|uuid|result|limit|ipc.*|launch.*|flush.*|event.*|driverProc.*|userObject.*)(_enum|_st|_flags)?.*' \
    --allowlist-var 'CU_(MEMHOSTALLOC|MEMHOSTREGISTER|IPC|STREAM_(LEGACY|PER_THREAD)|LAUNCH_PARAM|TRSF|PARAM).*' --allowlist-var 'CUDA_VERSION' \
    -- -I"$CUDA_INCLUDE"
python3 ci/bindings.py cuda $crate/functions.txt "$out/all.rs" "$out/bindings.rs" "$out/table.rs"
compare $crate "$pin" bindings table

# The lock types differ between architectures and come from libc. Flow steering, device memory and the like occur only
# behind pointers.
crate=sys/rdma-core-sys
declared=
generate infiniband/verbs.h --bitfield-enum 'ibv_(qp_attr_mask|access_flags|send_flags|wc_flags)' --allowlist-function "$(listed $crate)" \
    --allowlist-type 'verbs_context|ib_uverbs_query_port_flags|ibv_(gid_type|gid_entry|access_flags|atomic_cap|device_attr_ex|device_cap_flags|event_type|fork_status|mtu|port_state|port_cap_flags|qp_attr_mask|qp_state|qp_type|send_flags|wc|wc_flags|wc_opcode|wc_status|wr_opcode|recv_wr|send_wr|grh)' \
    --allowlist-var 'IBV_(ACCESS|LINK_LAYER|QPF|SYSFS).*' \
    --opaque-type 'timespec' --blocklist-type 'pthread_.*' --blocklist-type '__(pthread|atomic_wide).*' \
    --raw-line 'use libc::{pthread_cond_t, pthread_mutex_t};' \
    -- -I"$VERBS_INCLUDE"
python3 ci/bindings.py verbs $crate/functions.txt "$out/all.rs" "$out/bindings.rs" "$out/table.rs" "$out/layout.rs"
compare $crate "rdma-core $rdma_core" bindings table layout

# The layouts that libclang found must be those of the C compiler, and a statically linked program must start.
VERBS_INCLUDE=$VERBS_INCLUDE timeout 300 cargo test --quiet -p aqueduct-rdma-core-sys --test layout -- --ignored
archives='-l:libibverbs.a -l:librxe-rdmav34.a'
linker='-C link-arg=-Wl,--start-group'
for argument in $archives -Wl,--end-group -lnl-route-3 -lnl-3; do linker+=" -C link-arg=$argument"; done
RUSTFLAGS=$linker CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/linked timeout 300 cargo run --quiet \
    -p aqueduct-rdma-core-sys --features linked --example linked

[ $status = 0 ] && echo "bindings: up to date with $pin and rdma-core $rdma_core"
exit $status
