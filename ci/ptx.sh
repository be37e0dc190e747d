#!/usr/bin/env bash
# Assembles every variant of every kernel, and the functions of the device library, with NVIDIA's ptxas. If there is
# an nvcc, also compiles the library's header, links its examples, and compares the PTX of those in C++ with the
# checked-in text. Fails on any error, warning or register spill. Results are cached by content.
#
#   ci/ptx.sh               all variants for sm_70, sm_80, sm_90 and sm_100
#   ci/ptx.sh --sass        also checks the machine instructions that the packet protocols rely on (needs nvdisasm)
#
# PTXAS names the assembler (CUDA 13.0), PTXAS_SM70 the last one with sm_70 (CUDA 12.9), NVCC a compiler. Those that are
# not set are installed from PyPI into .cache/. If that fails, the last line says what to run by hand and the
# exit status is 77 (not run).
set -euo pipefail
cd "$(dirname "$0")/.."
cache=$PWD/.cache/ptx
mkdir -p "$cache/ok"

# shellcheck source=ci/need.sh
. ci/need.sh
# `find_tool NAME FOLDER`: prints the path of a program in a virtual environment.
find_tool() { find "$2" -type f -name "$1" -perm -u+x -print -quit; }

[ -n "${PTXAS:-}" ] || { cuda_compiler && PTXAS=$CUDA_BIN/ptxas; }
[ -n "${PTXAS_SM70:-}" ] || { venv .cache/cuda12 'nvidia-cuda-nvcc-cu12==12.9.*' && PTXAS_SM70=$(find_tool ptxas "$PWD/.cache/cuda12"); }
if [ -z "${NVCC:-}" ] && [ -x "$(dirname "$PTXAS")/nvcc" ]; then NVCC=$(dirname "$PTXAS")/nvcc; fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cargo run -q -p aqueduct-ptx --bin aqueduct-ptx-emit -- "$work" 70 80 90 100
# The kernel of the tools that checks test data has no variants.
for sm in 70 80 90 100; do cp tools/src/perf/checker.ptx "$work/perf_checker.sm_$sm.ptx"; done
version13=$("$PTXAS" --version | tail -n 1)
version12=$("$PTXAS_SM70" --version | tail -n 1)

# `assemble FILE`: prints a summary line, from the cache if this assembler accepted the same text before.
assemble() {
    local file=$1 name sm ptxas version key log registers
    name=$(basename "$file" .ptx)
    sm=${name##*.sm_}
    if [ "$sm" = 70 ]; then ptxas=$PTXAS_SM70 version=$version12; else ptxas=$PTXAS version=$version13; fi
    key=$({ echo "$version"; cat "$file"; } | sha256sum | cut -d ' ' -f 1)
    if [ ! -s "$cache/ok/$key" ]; then
        log=$work/$name.log
        local relocatable=()
        case $name in functions.*) relocatable=(-c) ;; esac
        if ! "$ptxas" -v "${relocatable[@]}" -arch="sm_$sm" "$file" -o "$work/$name.cubin" >"$log" 2>&1; then
            cat "$log" >&2
            echo "ptx: $name does not assemble" >&2
            return 1
        fi
        # By the calling convention a function saves its caller's registers on the stack, which is not a spill.
        local bad='warning|[1-9][0-9]* bytes (spill|stack)'
        case $name in functions.*) bad=warning ;; esac
        if grep -iE "$bad" "$log" >&2; then
            echo "ptx: $name: warnings, spills or stack frames are not accepted" >&2
            return 1
        fi
        registers=$(sed -nE 's/.*Used ([0-9]+) registers.*/\1/p' "$log" | sort -n | tail -n 1)
        echo "$name ${registers:-0}" >"$cache/ok/$key"
    fi
    cat "$cache/ok/$key"
}
export -f assemble
export work cache PTXAS PTXAS_SM70 version12 version13

find "$work" -name '*.ptx' -print0 | sort -z |
    xargs -0 -P "$(nproc)" -n 16 bash -euo pipefail -c 'for file; do assemble "$file"; done' assemble >>"$work/summary" ||
    exit 1
# Largest register count per kernel family and architecture.
awk '{ split($1, part, "."); sm = $1; sub(/.*\.sm_/, "", sm); key = part[1] " sm_" sm
       count[key]++; if ($2 > most[key]) most[key] = $2 }
     END { for (key in count) printf "ptx: %s: %d variants, at most %d registers\n", key, count[key], most[key] }' \
    "$work/summary" | sort

# The device library: its header, its examples, and their PTX from nvcc.
library() {
    local tools sm example
    tools=$(dirname "$NVCC")
    export PATH=$tools:$PATH NVCC
    need gcc gcc
    need g++ g++
    gcc -std=c11 -Wall -Wextra -Wpedantic -Werror -Iptx/include -c ptx/tests/header.c -o "$work/header.o"
    for sm in 80 90; do
        "$NVCC" -std=c++11 -Werror all-warnings -cubin "-arch=sm_$sm" -Iptx/include ptx/tests/header.cu -o "$work/header.cubin"
        "$PTXAS" -c "-arch=sm_$sm" "$work/functions.sm_$sm.ptx" -o "$work/functions.cubin"
        for example in {ptx/,}examples/*.ptx; do
            "$PTXAS" -c -warn-spills "-arch=sm_$sm" "$example" -o "$work/example.cubin"
            "$tools/nvlink" "-arch=sm_$sm" "$work/example.cubin" "$work/functions.cubin" -o "$work/linked.cubin"
        done
    done
    ci/corpus.sh --check library
}
if [ -n "${NVCC:-}" ] && [ -x "$(dirname "$NVCC")/nvlink" ]; then
    key=$({ "$NVCC" --version; cat ptx/include/* ptx/tests/header.* ptx/{examples,tests/library}/{*.*,nvcc/*} examples/*.ptx "$work"/functions.*.ptx; } | sha256sum | cut -d ' ' -f 1)
    if [ ! -e "$cache/ok/$key" ]; then
        library
        touch "$cache/ok/$key"
    fi
    echo "ptx: the device library's header compiles, its examples link"
else
    echo "NOT RUN: ptx, the device library's header and examples: no nvcc and nvlink in the folder of $PTXAS; set NVCC"
fi

# The tables of instructions with which devices are compared (tests/it/conformance): NVIDIA's assembler must take what the software device
# takes, or the comparison fails on GPUs only.
mkdir "$work/tables"
CONFORMANCE_TEXTS=$work/tables cargo test -q --locked -p aqueduct-tests --test it -- conformance::soft::instructions >"$work/tables.log" 2>&1 ||
    { cat "$work/tables.log"; exit 1; }
tables=0
for table in "$work"/tables/*.ptx; do
    "$PTXAS" -O0 -arch=sm_90 "$table" -o "$work/table.cubin" || { echo "ptx: a table of instructions does not assemble" >&2; exit 1; }
    tables=$((tables + 1))
done
echo "ptx: $tables tables of instructions assembled"

if [ "${1:-}" = --sass ]; then
    [ -n "${NVDISASM:-}" ] || { venv .cache/cuda-sass 'nvidia-cuda-nvdisasm>=13.2' && NVDISASM=$(find_tool nvdisasm "$PWD/.cache/cuda-sass"); }
    # `expect KERNEL PATTERN COUNT`: fails unless the kernel has at least COUNT instructions of this kind.
    expect() {
        "$PTXAS" -arch=sm_90 "$work/$1.sm_90.ptx" -o "$work/sass.cubin"
        local found
        found=$("$NVDISASM" "$work/sass.cubin" | grep -cE "$2" || true)
        [ "$found" -ge "$3" ] || { echo "ptx: $1: expected $3 of $2, found $found" >&2; return 1; }
        echo "ptx: $1: $found of $2"
    }
    # An LL16 packet is one 128-bit access each way; an LL8 packet one of 64 bits.
    expect packet.ll16 'STG\.E\.128\.STRONG\.SYS' 5
    expect packet.ll16 'LDG\.E\.128\.STRONG\.SYS' 5
    expect packet.ll8 'STG\.E\.64\.STRONG\.SYS' 5
    expect packet.ll8 'LDG\.E\.64\.STRONG\.SYS' 5
    # HB: four independent 128-bit loads, then four stores, twice (put and get).
    expect channel.4.bytes 'LDG\.E\.128 ' 8
    expect channel.4.bytes 'STG\.E\.128 ' 8
    expect channel.4.words 'LDG\.E\.128 ' 8
    expect channel.4.words 'STG\.E\.128 ' 8
    # A push writes its slot under a predicate, inside the loop that waits for room.
    expect fifo '@!?P[0-9] STG\.E\.128\.STRONG\.SYS' 2
fi
echo "ptx: $(wc -l <"$work/summary") variants assembled"
