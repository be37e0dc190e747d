#!/usr/bin/env bash
# Regenerates sys/cuda-driver-sys/src/{bindings,table}.rs from the pinned cuda.h and fails when they differ from what
# is checked in. A maintainer's tool: users never need it.
#
#   ci/bindings.sh          compare; exit 1 on a difference
#   ci/bindings.sh --bless  write the new text
#
# Needs: python3, libclang, and bindgen 0.72 on PATH (cargo install bindgen-cli --version 0.72.1 --locked).
# CUDA_INCLUDE may name a folder with cuda.h; otherwise the pinned wheel is unpacked into .cache/.
set -euo pipefail
cd "$(dirname "$0")/.."
crate=sys/cuda-driver-sys
pin='nvidia-cuda-runtime==13.0.96'

if [ -z "${CUDA_INCLUDE:-}" ]; then
    venv=.cache/cuda-headers
    if [ ! -x "$venv/bin/python" ]; then
        python3 -m venv "$venv"
        "$venv/bin/pip" install -q "$pin"
    fi
    CUDA_INCLUDE=$(dirname "$(find "$venv" -name cuda.h -print -quit)")
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

functions=$(awk '!/^#/ && NF { printf "%s%s", sep, (NF > 3 ? $4 : $1); sep = "|" }' "$crate/functions.txt")
echo '#include <cuda.h>' >"$out/wrapper.h"
bindgen "$out/wrapper.h" --no-doc-comments --use-core --merge-extern-blocks \
    --default-enum-style newtype --with-derive-default --no-prepend-enum-name \
    --rust-target 1.88 --rust-edition 2024 \
    --allowlist-function "$functions" --allowlist-type 'CU(device_attribute|pointer_attribute|function_attribute|stream_flags|event_flags|ctx_flags|memhostalloc|jit.*|stream.*|graph.*|mem.*|multicast.*|uuid|result|limit|ipc.*|launch.*|flush.*|event.*|driverProc.*)(_enum|_st|_flags)?.*' \
    --allowlist-var 'CU_(MEMHOSTALLOC|MEMHOSTREGISTER|IPC|STREAM_(LEGACY|PER_THREAD)|LAUNCH_PARAM|TRSF|PARAM).*' --allowlist-var 'CUDA_VERSION' \
    --output "$out/all.rs" -- -I"$CUDA_INCLUDE"
python3 ci/bindings.py "$crate/functions.txt" "$out/all.rs" "$out/bindings.rs" "$out/table.rs"
rustfmt --edition 2024 --config-path "$PWD/rustfmt.toml" "$out/bindings.rs"

status=0
for file in bindings table; do
    if [ "${1:-}" = --bless ]; then
        cp "$out/$file.rs" "$crate/src/$file.rs"
    elif ! diff -u "$crate/src/$file.rs" "$out/$file.rs"; then
        echo "bindings: $crate/src/$file.rs is not what the pinned header gives; run ci/bindings.sh --bless" >&2
        status=1
    fi
done
[ $status = 0 ] && echo "bindings: up to date with $pin"
exit $status
