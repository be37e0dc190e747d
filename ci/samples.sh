#!/usr/bin/env bash
# Compiles every .cu file in a folder with nvcc and loads its PTX on the software device. Prints for each file whether it
# was loaded, refused (with the reasons) or not compiled, then the totals. Fails if one was refused for anything but what the
# software device leaves out on purpose. Fetches nothing of the samples themselves.
#
#   ci/samples.sh FOLDER [ARCHITECTURE] [NVCC FLAG...]
#
# ARCHITECTURE is a virtual or real one, as in compute_90 or sm_100a (default: sm_90). The software device gets its
# compute capability. Folders called Common, common or inc are searched for headers. NVCC names the compiler; without it
# the script installs CUDA 13.0's from PyPI into .cache/. OUT (default: target/samples) receives the PTX and the logs.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath "${1:?usage: ci/samples.sh FOLDER [ARCHITECTURE] [NVCC FLAG...]}")
number=${2:-sm_90}
number=${number##*_}
shift $(($# > 1 ? 2 : 1))
mkdir -p .cache
# shellcheck source=ci/need.sh
. ci/need.sh
[ -n "${NVCC:-}" ] || { cuda_compiler && NVCC=$CUDA_BIN/nvcc; }
out=${OUT:-target/samples}
rm -rf "$out"
mkdir -p "$out"

flags=(-ptx -std=c++17 -O3 "-arch=compute_$number" "$@")
while IFS= read -r include; do flags+=(-I "$include"); done < <(find "$folder" -type d \( -name Common -o -name common -o -name inc \))

# `compile SOURCE`: leaves NAME.ptx, or NAME.log if nvcc refuses the file.
compile() {
    local name
    name=$(realpath --relative-to="$FOLDER" "$1" | tr '/ ' '__')
    name=$OUT_FOLDER/${name%.cu}
    if ! timeout 300 "$NVCC" "${@:2}" -I "$(dirname "$1")" "$1" -o "$name.ptx" >"$name.log" 2>&1; then
        rm -f "$name.ptx"
        echo "not compiled  $1: $(grep -m 1 -iE 'error|fatal' "$name.log" || echo 'no reason given')"
    else
        rm -f "$name.log"
    fi
}
export -f compile
export NVCC FOLDER=$folder OUT_FOLDER=$out
find "$folder" -name '*.cu' -print0 | sort -z |
    xargs -0 -r -P "$(nproc)" -I{} bash -c 'compile "$@"' compile {} "${flags[@]}" | tee "$out/not-compiled.txt"

cargo build -q --release -p aqueduct-cuda-soft --example load_ptx
digits=${number%[af]}
export AQUEDUCT_SOFT_CC=${digits%?}.${digits: -1} AQUEDUCT_SOFT_DEVICES=1
find "$out" -name '*.ptx' -print0 | sort -z | xargs -0 -r "${CARGO_TARGET_DIR:-target}/release/examples/load_ptx" | tee "$out/loaded.txt"
echo "$(wc -l <"$out/not-compiled.txt") not compiled"
grep -q '^loaded ' "$out/loaded.txt" || { echo "samples: nothing was loaded"; exit 1; }
# See the documentation of cuda-soft, "Not supported".
if grep -E '^ *[0-9]+ refused: ' "$out/loaded.txt" | grep -vE "textures and surfaces are not supported|'(wmma|wgmma|tcgen05|mma|ldmatrix|stmatrix|movmatrix|tex|tld4|txq|suld|sust|sured|suq)' is not supported|modifier '\.tf32'|does not support the device runtime"; then
    echo "samples: refused for a reason that is not among those that the software device leaves out"
    exit 1
fi
