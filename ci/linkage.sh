#!/usr/bin/env bash
# The aqueduct binary must not depend on libcuda or libibverbs at link time: it opens them at run time. And it must call no
# function that glibc 2.27 lacks, or it could not be built on an old distribution (docs/deployment.md).
#
#   ci/linkage.sh             of the command as tests are built: nothing is compiled again
#   ci/linkage.sh --release   of the one that users copy
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p .cache
. ci/need.sh
need readelf binutils
case ${1-} in
    '') profile=debug && cargo build --quiet --workspace --bin aqueduct ;;
    --release) profile=release && cargo build --release --quiet -p aqueduct-tools ;;
    *) echo "usage: ci/linkage.sh [--release]" >&2 && exit 2 ;;
esac
binary=${CARGO_TARGET_DIR:-target}/$profile/aqueduct
needed=$(readelf -d "$binary" | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p')
[ -n "$needed" ] || { echo "linkage: readelf lists nothing for $binary"; exit 1; }
echo "$needed" | while read -r library; do
    case $library in
        libc.so.6 | libm.so.6 | libgcc_s.so.1 | libdl.so.2 | libpthread.so.0 | librt.so.1 | ld-linux-*) ;;
        *) echo "linkage: $binary needs $library at link time"; exit 1 ;;
    esac
done
# Younger functions. glibc gave some of its old functions a new version in 2.29 to 2.34; a build on an old distribution takes
# the old one.
old='__libc_start_main|dl(open|sym|vsym|error|close)|pthread_[a-z_]*|[fl]?stat(at)?64|(log|exp|pow)2?f?'
younger=$(readelf --dyn-syms --wide "$binary" | awk '$5 == "GLOBAL" && $7 == "UND" { print $8 }' |
    grep -E '@+GLIBC_2\.(2[89]|[3-9][0-9])' | grep -vE "^($old)@" || true)
[ -z "$younger" ] || { echo "linkage: $binary needs a glibc younger than 2.27 for: $younger"; exit 1; }
echo "linkage: ok ($(echo $needed))"
