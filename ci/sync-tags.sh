#!/usr/bin/env bash
# Every `SYNC name` tag must occur at least twice (on the release and on the acquire side, in Rust or PTX) and have a
# row in docs/memory-model.md. Checks the library, the kernels and the software device. Proves on a planted tag that it
# can fail.
set -euo pipefail
cd "$(dirname "$0")/.."

check() { # MODEL SOURCE...
    local model=$1 tag
    shift
    grep -rhoE 'SYNC [a-z0-9_-]+(\.[a-z0-9_-]+)+' "$@" | sort | uniq -c | while read -r count _ tag; do
        [ "$count" -ge 2 ] || echo "sync-tags: $tag occurs only once; both sides need it"
        grep -qF "\`$tag\`" "$model" || echo "sync-tags: $tag has no row in docs/memory-model.md"
    done
    grep -oE '^\| `[a-z0-9_-]+(\.[a-z0-9_-]+)+`' "$model" | tr -d '|` ' | while read -r tag; do
        grep -rqF "SYNC $tag" "$@" || echo "sync-tags: docs/memory-model.md lists $tag, which no source has"
    done
}

planted=$(mktemp -d)
trap 'rm -rf "$planted"' EXIT
echo '// SYNC planted.tag (release)' >"$planted/a.rs"
echo '| `other.tag` | x |' >"$planted/model.md"
[ "$(check "$planted/model.md" "$planted/a.rs" | wc -l)" = 3 ] || { echo "sync-tags: does not see a planted tag"; exit 2; }

problems=$(check docs/memory-model.md core/src ptx/kernels ptx/src sys/cuda-soft/src)
if [ -n "$problems" ]; then
    echo "$problems"
    exit 1
fi
echo "sync-tags: ok"
