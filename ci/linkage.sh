#!/usr/bin/env bash
# The aqueduct binary must not depend on libcuda or libibverbs at link time: it opens them at run time.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p .cache
. ci/need.sh
need readelf binutils
cargo build --release --quiet -p aqueduct-tools
binary=${CARGO_TARGET_DIR:-target}/release/aqueduct
needed=$(readelf -d "$binary" | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p')
[ -n "$needed" ] || { echo "linkage: readelf lists nothing for $binary"; exit 1; }
echo "$needed" | while read -r library; do
    case $library in
        libc.so.6 | libm.so.6 | libgcc_s.so.1 | libdl.so.2 | libpthread.so.0 | librt.so.1 | ld-linux-*) ;;
        *) echo "linkage: $binary needs $library at link time"; exit 1 ;;
    esac
done
echo "linkage: ok ($(echo $needed))"
