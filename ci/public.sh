#!/usr/bin/env bash
# Compares the library's public items, with their signatures, with ci/public-items.txt, so that they change only on
# purpose. Proves first, on a planted library, that it lists exactly what users can reach. rustdoc's JSON is not stable
# yet, so RUSTC_BOOTSTRAP enables it on a stable compiler.
#
#   ci/public.sh            fails and shows the difference
#   ci/public.sh --bless    rewrites the list
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/need.sh
need python3 python3
case ${1-} in '' | --bless) ;; *) echo "usage: ci/public.sh [--bless]" >&2 && exit 2 ;; esac
export RUSTC_BOOTSTRAP=1

planted=$(mktemp -d)
trap 'rm -rf "$planted"' EXIT
cat >"$planted/planted.rs" <<'RUST'
mod inner {
    #[derive(Clone)] #[non_exhaustive] pub struct Seen<T: Copy> { pub open: [T; 2], closed: u8 }
    impl<T: Copy> Seen<T> { pub fn method<'a>(&'a self, f: &dyn Fn(T) -> u8) -> Option<&'a T> { None } fn private(&self) {} }
    pub struct Unreachable;
    #[doc(hidden)] pub struct Hidden;
}
pub use inner::{Hidden, Seen};
pub mod deep { pub use super::inner::Seen as Again; pub enum Kind { A, B(u8) } }
pub const unsafe fn raw(p: *const u8) {}
RUST
rustdoc --edition 2024 -A warnings -Z unstable-options --output-format json -o "$planted" "$planted/planted.rs"
python3 ci/public.py "$planted/planted.json" >"$planted/seen"
diff - "$planted/seen" <<'EXPECTED' || { echo "public: misreads the planted library"; exit 2; }
mod planted
#[non_exhaustive] struct planted::Seen<T: Copy>
impl planted::Seen: Clone
fn planted::Seen::method<'a>(&'a self, f: &dyn Fn(T) -> u8) -> Option<&'a T>
field planted::Seen::open: [T; 2]
mod planted::deep
use planted::deep::Again = planted::Seen
enum planted::deep::Kind
variant planted::deep::Kind::A
variant planted::deep::Kind::B
field planted::deep::Kind::B::0: u8
const unsafe fn planted::raw(p: *const u8)
EXPECTED

cargo rustdoc --quiet -p aqueduct --lib -- -Z unstable-options --output-format json
python3 ci/public.py "${CARGO_TARGET_DIR:-target}/doc/aqueduct.json" >"$planted/items"
if [ "${1-}" = --bless ]; then
    cp "$planted/items" ci/public-items.txt
elif ! diff -U0 --label ci/public-items.txt --label today ci/public-items.txt "$planted/items"; then
    echo "public: the public items changed; if that is the purpose, run ci/public.sh --bless and commit the list"
    exit 1
fi
echo "public: ok ($(wc -l <"$planted/items") lines)"
