#!/usr/bin/env bash
# Regenerates the PTX that nvcc emits for our CUDA C++ files: test data of the software device (corpus), and the
# examples and a kernel for each operation of the device library (library).
#
#   NVCC=/path/to/nvcc [CCCL=/path/to/cccl/include] ci/corpus.sh [--check] [corpus|library]
#
# With --check the script writes nothing and fails if the emitted text differs from the checked-in one.
# CCCL is only needed if nvcc does not find <cuda/atomic> by itself. CUDA 13.0 made the present files;
# its lowest architecture is compute_75.
set -euo pipefail

cd "$(dirname "$0")/.."
: "${NVCC:?set NVCC to the nvcc to use}"

check=no
if [[ "${1:-}" == --check ]]; then
    check=yes
    shift
fi
what=${1:-corpus library}

emit() { # source architecture [flag]; the caller sets `flags` and the output `folder`
    local out="$folder${1%.cu}.$2${3:-}.ptx" made
    made="$(mktemp)"
    "$NVCC" "${flags[@]}" ${3:+"$3"} "-arch=compute_${2#sm_}" "$1" -o "$made"
    # Remove what differs between machines: the compiler's build in the header, folders in .file, and in internal names
    # a hash of the source's path (in line information as bytes).
    sed -i -E -e '/^\/\/ Compiler Build ID/d' -e '/^\/\/ Cuda compilation tools/d' -e 's|(\.file.*")[^"]*/|\1|' \
        -e 's/_INTERNAL_[0-9a-f]{8}_/_INTERNAL_00000000_/g' -e 's/_GLOBAL__N__[0-9a-f]{8}_/_GLOBAL__N__00000000_/g' \
        -e 's/(95,73,78,84,69,82,78,65,76,95,)([0-9]+,){8}95,/\148,48,48,48,48,48,48,48,95,/' "$made"
    if [[ $check == no ]]; then
        mv "$made" "$out" && chmod 644 "$out"
    elif cmp -s "$made" "$out"; then
        rm -f "$made"
    else
        diff -u "$out" "$made" >&2 || true
        rm -f "$made"
        echo "$out differs from what $NVCC emits" >&2
        return 1
    fi
}

corpus() {
    local count=0 folder="" source flags=(-ptx -std=c++17 -O3)
    [[ -z "${CCCL:-}" ]] || flags+=(-I "$CCCL")
    cd sys/cuda-soft/tests/corpus
    for source in *.cu; do
        count=$((count + 1))
        case "$source" in
            barriers.cu | bf16_math.cu | cooperative.cu | half_compare.cu) emit "$source" sm_90 ;;
            half_math.cu | ping_pong.cu) emit "$source" sm_75; emit "$source" sm_90 ;;
            # Line information adds .file, .loc and .section.
            reduction.cu) emit "$source" sm_75; emit "$source" sm_75 -lineinfo ;;
            *) emit "$source" sm_75 ;;
        esac
    done
    [[ $check == no ]] || echo "corpus: $count sources give the checked-in text"
}

library() {
    local count=0 folder=nvcc/ source flags=(-ptx -std=c++11 -Werror all-warnings -I "$PWD/ptx/include")
    for source in ptx/examples/*.cu ptx/tests/library/*.cu; do
        count=$((count + 1))
        cd "$(dirname "$source")"
        emit "$(basename "$source")" sm_75
        cd "$OLDPWD"
    done
    [[ $check == no ]] || echo "library: $count sources give the checked-in text"
}

for set in $what; do (set -e; "$set"); done
