#!/usr/bin/env bash
# Refuses circles between the source files of a crate; ci/circles.py defines what counts as a use. ci/circles.txt lists
# uses that are known to be part of a circle; it may only shrink. Proves first, on planted crates, that it finds
# circles.
#
#   ci/circles.sh            fails on a circle that is not listed, and on a listed use that is in no circle any more
#   ci/circles.sh --bless    rewrites the list
#   ci/circles.sh --uses     prints every use of one file by another, with the names: to see how to break a circle
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/need.sh
need python3 python3

crates='core ptx tools sys/cuda-driver-sys sys/rdma-core-sys sys/cuda-soft'
case ${1-} in
    --bless) exec python3 ci/circles.py bless ci/circles.txt $crates ;;
    --uses) exec python3 ci/circles.py uses $crates ;;
    '') ;;
    *) echo "usage: ci/circles.sh [--bless | --uses]" >&2 && exit 2 ;;
esac

planted=$(mktemp -d)
trap 'rm -rf "$planted"' EXIT
plant() { # CRATE FILE: the text comes on standard input
    mkdir -p "$(dirname "$planted/$1/src/$2")"
    cat >"$planted/$1/src/$2"
}
must_see() { # CRATE USE: the only circle of this crate has this use in it
    local out
    out=$(python3 ci/circles.py check "$planted/none" "$planted/$1") && { echo "circles: does not see the circle planted in $1"; exit 2; }
    grep -qF "$planted/$1/src/$2" <<<"${out//-> $planted\/$1\/src\//-> }" || { printf 'circles: misreads the circle planted in %s:\n%s\n' "$1" "$out"; exit 2; }
}

# Two files name each other through re-exports of the crate's root, one of them in a path and under another name.
plant siblings lib.rs <<<'mod a; mod b; pub use a::A; pub(crate) use b::{self as other, B};'
plant siblings a.rs <<<'use crate::B; pub struct A(B);'
plant siblings b.rs <<<'pub struct B; fn f() -> crate::A { crate::A(crate::other::B) }'
must_see siblings 'a.rs -> b.rs: B'
# A parent and its child use each other.
plant parent lib.rs <<<'mod p;'
plant parent p/mod.rs <<<'mod child; pub struct Thing; fn f() { child::make(Thing) }'
plant parent p/child.rs <<<'pub(super) fn make(_: super::Thing) {}'
must_see parent 'p/child.rs -> p/mod.rs: Thing'
# A type calls a method that another file gives it.
plant methods lib.rs <<<'mod t; mod more;'
plant methods t.rs <<<'pub struct T; impl T { fn f(&self) { self.g() } }'
plant methods more.rs <<<'use crate::t::T; impl T { pub(crate) fn g(&self) {} }'
must_see methods 't.rs -> more.rs: T::g'
# A module stands in a folder that an attribute names.
plant path lib.rs <<<'#[doc(hidden)] #[path = "."] pub mod hidden { pub mod a; mod b; }'
plant path a.rs <<<'pub struct A(super::b::B);'
plant path b.rs <<<'pub struct B; fn f(_: super::a::A) {}'
must_see path 'a.rs -> b.rs: B'
# None of these is a circle: re-exports, a glob, uses by tests and models, names in comments and in text.
plant clean lib.rs <<<'mod p; pub use p::*; #[cfg(test)] mod tests;'
plant clean p/mod.rs <<<'mod low; mod high; pub use low::Low; pub(crate) use high::High; /* High::new() */ const HELP: &str = "Low(1)";'
plant clean p/low.rs <<<'pub struct Low; #[cfg(test)] use super::High; #[cfg(all(test, loom))] mod models { fn f(_: super::super::High) {} }'
plant clean p/high.rs <<<'use super::Low; pub struct High(Low); impl High { fn low(&self) { self.high } #[cfg(test)] fn all() { crate::tests::all() } }'
plant clean tests.rs <<<'pub fn all() { crate::p::High }'
python3 ci/circles.py check "$planted/none" "$planted/clean" || { echo "circles: reports a circle where there is none"; exit 2; }
# A listed use is accepted while it is part of a circle, and only then.
python3 ci/circles.py bless "$planted/known" "$planted/parent"
python3 ci/circles.py check "$planted/known" "$planted/parent" || { echo "circles: does not accept a listed use"; exit 2; }
python3 ci/circles.py check "$planted/known" "$planted/clean" >/dev/null && { echo "circles: accepts a listed use that is in no circle"; exit 2; }

python3 ci/circles.py check ci/circles.txt $crates
known=$(grep -vc '^#' ci/circles.txt || true)
echo "circles: ok ($known known uses in circles)"
