#!/usr/bin/env bash
# Looks in the optimised code of everything that users run for values that rustc has lost; ci/undefined.py says which and why.
# Shows first that it would find one, or says that this compiler loses none.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR=$PWD/target/mir
mkdir -p "$CARGO_TARGET_DIR"
cat >"$CARGO_TARGET_DIR/planted.rs" <<'RUST'
pub struct Count { waiting: Vec<u8>, landed: u64 }
impl Count {
    #[inline]
    pub fn land(&mut self) -> bool {
        let first = self.waiting.is_empty();
        self.landed += u64::from(first);
        first
    }
    pub fn turn(&mut self) -> u8 { if self.land() { 1 } else { 2 } }
}
RUST
rustc --edition 2024 --crate-type lib -O --emit=mir -o "$CARGO_TARGET_DIR/planted.mir" "$CARGO_TARGET_DIR/planted.rs"
if python3 ci/undefined.py "$CARGO_TARGET_DIR/planted.mir" >/dev/null; then
    echo "undefined: $(rustc --version) compiles the example of rust-lang/rust#158206 rightly"
else
    echo "undefined: $(rustc --version) miscompiles the example of rust-lang/rust#158206, and the search finds it"
fi
find "$CARGO_TARGET_DIR/release/deps" -name '*.mir' -delete 2>/dev/null || true
RUSTFLAGS="--emit=mir" cargo build --release --quiet --workspace --lib --bins
mapfile -t files < <(find "$CARGO_TARGET_DIR/release/deps" -name 'aqueduct*.mir' -o -name 'cuda_*.mir' -o -name 'rdma_core_sys*.mir')
[ ${#files[@]} -ge 5 ] || { echo "undefined: only ${#files[@]} crates were compiled"; exit 1; }
python3 ci/undefined.py "${files[@]}"
