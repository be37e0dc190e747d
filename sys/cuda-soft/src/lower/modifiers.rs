//! The modifiers after an opcode, and their meanings.

use crate::code::op::{BoolOp, Cmp, Fp};
use crate::code::{Round, Scope, Space, Ty};
use crate::ptx::Diagnostic;
use crate::ptx::ast::{Instruction, Name, Position};

/// The modifiers of one instruction. Lowering takes each modifier that it knows; one that is left at the end is an
/// error. Order matters only among types, as in ptxas.
#[derive(Debug)]
pub(super) struct Modifiers<'a> {
    opcode: &'a Name,
    words: &'a [Name],
    taken: Vec<bool>,
}

impl<'a> Modifiers<'a> {
    pub(super) fn new(instruction: &'a Instruction) -> Self {
        let words = &instruction.modifiers[..];
        Self { opcode: &instruction.opcode, words, taken: vec![false; words.len()] }
    }

    /// The position of the instruction.
    pub(super) fn at(&self) -> Position {
        self.opcode.at
    }

    /// Takes `.word` if present.
    pub(super) fn take(&mut self, word: &str) -> bool {
        self.pick(|w| (w == word).then_some(())).is_some()
    }

    /// Takes the first modifier that `choose` accepts.
    pub(super) fn pick<T>(&mut self, choose: impl Fn(&str) -> Option<T>) -> Option<T> {
        for (word, taken) in self.words.iter().zip(&mut self.taken) {
            if *taken {
                continue;
            }
            if let Some(value) = choose(&word.text) {
                *taken = true;
                return Some(value);
            }
        }
        None
    }

    /// Takes the first modifier that is in `table`.
    pub(super) fn one_of<T: Copy>(&mut self, table: &[(&str, T)]) -> Option<T> {
        self.pick(|word| table.iter().find(|(name, _)| *name == word).map(|(_, value)| *value))
    }

    /// Like [`Self::one_of`], but returns an error if none is present.
    pub(super) fn required<T: Copy>(&mut self, what: &str, table: &[(&str, T)]) -> Result<T, Diagnostic> {
        self.one_of(table).ok_or_else(|| {
            self.at().error(format!("{what} modifier required for instruction '{}'", self.opcode.text))
        })
    }

    /// Takes the next type, which must be one of `allowed`.
    pub(super) fn ty(&mut self, allowed: &[Ty]) -> Result<Ty, Diagnostic> {
        match self.pick(ty) {
            Some(found) if allowed.contains(&found) => Ok(found),
            Some(_) => Err(self
                .at()
                .error(format!("Unexpected instruction types specified for '{}'", self.opcode.text))),
            None => {
                Err(self.at().error(format!("Type modifier required for instruction '{}'", self.opcode.text)))
            }
        }
    }

    /// Takes `.ftz`, `.sat` and a rounding direction, where ordinary arithmetic on `ty` has them.
    pub(super) fn arithmetic(&mut self, ty: Ty) -> Fp {
        let mut fp = Fp::default();
        match ty {
            Ty::F32 => {
                fp.round = self.round();
                fp.ftz = self.take("ftz");
                fp.sat = self.take("sat");
            }
            Ty::F64 => fp.round = self.round(),
            Ty::F16 | Ty::F16x2 => {
                self.take("rn");
                fp.ftz = self.take("ftz");
                fp.sat = self.take("sat");
            }
            Ty::Bf16 | Ty::Bf16x2 => {
                self.take("rn");
            }
            _ => {}
        }
        fp
    }

    fn round(&mut self) -> Round {
        self.one_of(&ROUNDS).unwrap_or_default()
    }

    /// Returns an error if a word is not a modifier of any instruction. Checked first, because other errors would only
    /// be consequences.
    pub(super) fn all_known(&self) -> Result<(), Diagnostic> {
        match self.words.iter().find(|word| !known(&word.text)) {
            Some(Name { text, at }) => {
                Err(at.error(format!("Unknown modifier '.{text}': the software device does not support it")))
            }
            None => Ok(()),
        }
    }

    /// Returns an error if a modifier is left.
    pub(super) fn finish(self) -> Result<(), Diagnostic> {
        let Some(left) = self.taken.iter().position(|taken| !taken) else {
            return Ok(());
        };
        let Name { text, at } = &self.words[left];
        Err(at.error(format!("Illegal modifier '.{text}' for instruction '{}'", self.opcode.text)))
    }
}

/// Rounding of floating results.
pub(super) const ROUNDS: [(&str, Round); 4] =
    [("rn", Round::Nearest), ("rz", Round::Zero), ("rm", Round::Down), ("rp", Round::Up)];

/// Rounding to integral values.
pub(super) const INTEGER_ROUNDS: [(&str, Round); 4] =
    [("rni", Round::Nearest), ("rzi", Round::Zero), ("rmi", Round::Down), ("rpi", Round::Up)];

/// Scopes of strong operations.
pub(super) const SCOPES: [(&str, Scope); 4] =
    [("cta", Scope::Cta), ("cluster", Scope::Cluster), ("gpu", Scope::Gpu), ("sys", Scope::Sys)];

/// State spaces of accesses.
pub(super) const SPACES: [(&str, Space); 9] = [
    ("global", Space::Global),
    ("const", Space::Const),
    ("shared", Space::Shared),
    ("shared::cta", Space::Shared),
    ("shared::cluster", Space::Cluster),
    ("local", Space::Local),
    ("param", Space::Param),
    ("param::entry", Space::Param),
    ("param::func", Space::Param),
];

/// Operators that combine predicates.
pub(super) const BOOLEANS: [(&str, BoolOp); 3] =
    [("and", BoolOp::And), ("or", BoolOp::Or), ("xor", BoolOp::Xor)];

/// Comparisons. `lo`, `ls`, `hi`, `hs` are the unsigned names of `lt`, `le`, `gt`, `ge`.
pub(super) const COMPARISONS: [(&str, Cmp); 18] = [
    ("eq", Cmp::Eq),
    ("ne", Cmp::Ne),
    ("lt", Cmp::Lt),
    ("le", Cmp::Le),
    ("gt", Cmp::Gt),
    ("ge", Cmp::Ge),
    ("lo", Cmp::Lt),
    ("ls", Cmp::Le),
    ("hi", Cmp::Gt),
    ("hs", Cmp::Ge),
    ("equ", Cmp::Equ),
    ("neu", Cmp::Neu),
    ("ltu", Cmp::Ltu),
    ("leu", Cmp::Leu),
    ("gtu", Cmp::Gtu),
    ("geu", Cmp::Geu),
    ("num", Cmp::Num),
    ("nan", Cmp::Nan),
];

const TYPES: [(&str, Ty); 18] = [
    ("b8", Ty::B8),
    ("b16", Ty::B16),
    ("b32", Ty::B32),
    ("b64", Ty::B64),
    ("u8", Ty::U8),
    ("u16", Ty::U16),
    ("u32", Ty::U32),
    ("u64", Ty::U64),
    ("s8", Ty::S8),
    ("s16", Ty::S16),
    ("s32", Ty::S32),
    ("s64", Ty::S64),
    ("f16", Ty::F16),
    ("f16x2", Ty::F16x2),
    ("bf16", Ty::Bf16),
    ("bf16x2", Ty::Bf16x2),
    ("f32", Ty::F32),
    ("f64", Ty::F64),
];

/// The type that `.word` names.
pub(super) fn ty(word: &str) -> Option<Ty> {
    TYPES.iter().find(|(name, _)| *name == word).map(|(_, ty)| *ty)
}

/// The word that names `ty`.
pub(super) fn word(ty: Ty) -> &'static str {
    TYPES.iter().find(|(_, found)| *found == ty).map_or("?", |(name, _)| name)
}

/// Whether `.word` is a modifier of any instruction.
fn known(word: &str) -> bool {
    const OTHERS: &str = "ftz sat rn rz rm rp rna rni rzi rmi rpi approx full nan NaN xorsign abs relu lo hi wide cc \
        uni to sync aligned arrive red popc ballot all any idx up down bfly clamp wrap l r l1 L1 L2 \
        weak relaxed acquire release acq_rel sc volatile mmio nc ca cg cs lu cv wb wt v2 v4 v8 \
        add min max inc dec exch cas noftz shiftamt pred b128 level warp cta alias proxy async gl \
        f4e b4e rc8 ecl ecr rc16 finite infinite number notanumber normal subnormal \
        e4m3 e5m2 e4m3x2 e5m2x2 tf32 u16x2 s16x2 f32x2 satfinite rs idx sc unified \
        launch_dependents wait bulk tensor commit_group wait_group wait_all bulk_group read prefetch reduce \
        mbarrier init inval expect_tx complete_tx arrive_drop noComplete test_wait try_wait parity pending_count noinc \
        mbarrier::complete_tx::bytes mbarrier_init multicast::cluster cp_mask fractional \
        ld_reduce st acc::f32 acc::f16 e4m3x4 e5m2x4 mask";
    ty(word).is_some()
        || SCOPES.iter().any(|(name, _)| *name == word)
        || SPACES.iter().any(|(name, _)| *name == word)
        || BOOLEANS.iter().any(|(name, _)| *name == word)
        || COMPARISONS.iter().any(|(name, _)| *name == word)
        || word.starts_with("L1::")
        || word.starts_with("L2::")
        || OTHERS.split_whitespace().any(|name| name == word)
}
