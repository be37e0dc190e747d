//! Initial bytes of variables (PTX ISA 5.4.4).

use super::link::{Program, Symbol, unresolved};
use super::types::{alignment, element, immediate, size};
use crate::code::{self, Relocation, Ty};
use crate::ptx::Diagnostic;
use crate::ptx::ast::{Init, Linkage, Name, Space, Variable};

/// Maximum bytes of initial data in one variable.
const INIT_LIMIT: u64 = 1 << 28;

/// Builds all `.global` and `.const` variables.
pub(super) fn globals(program: &Program<'_>, errors: &mut Vec<Diagnostic>) -> Vec<code::Global> {
    let mut all = Vec::with_capacity(program.globals.len());
    for (unit, variable) in &program.globals {
        match global(program, *unit, variable) {
            Ok(global) => all.push(global),
            Err(error) => {
                errors.push(error);
                all.push(code::Global::default());
            }
        }
    }
    all
}

fn global(program: &Program<'_>, unit: usize, variable: &Variable) -> Result<code::Global, Diagnostic> {
    let size = size(variable)?;
    if size == 0 && variable.linkage != Linkage::Extern {
        let text = format!("Non-external variable '{}' has incomplete type", variable.name.text);
        return Err(variable.name.at.error(text));
    }
    let mut image = Image { program, unit, pieces: Vec::new(), relocations: Vec::new() };
    if let Some(init) = &variable.init {
        if size > INIT_LIMIT {
            return Err(variable.name.at.error("Initialised variable is too large"));
        }
        let Some(ty) = element(variable)? else {
            return Err(variable.name.at.error("Predicates cannot be initialised"));
        };
        let mut shape: Vec<u64> = variable.dimensions.iter().map(|d| d.unwrap_or(u64::MAX)).collect();
        if variable.vector > 1 {
            shape.push(u64::from(variable.vector));
        }
        image.fill(init, ty, &shape, 0, size)?;
    }
    Ok(code::Global {
        name: variable.name.text.clone(),
        constant: variable.space == Space::Const,
        size,
        align: u64::from(alignment(variable)?),
        init: image.pieces,
        relocations: image.relocations,
    })
}

struct Image<'p, 'a> {
    program: &'p Program<'a>,
    unit: usize,
    /// The initial bytes, as in [`code::Global::init`]. Pieces keep a few values far apart in a large array small.
    pieces: Vec<(u64, Vec<u8>)>,
    relocations: Vec<Relocation>,
}

/// Maximum number of zeros between two values of one piece.
const MAX_GAP: u64 = 32;

impl Image<'_, '_> {
    /// Writes `init` into the `size` bytes at `offset`, which have `shape` (outermost first).
    fn fill(&mut self, init: &Init, ty: Ty, shape: &[u64], offset: u64, size: u64) -> Result<(), Diagnostic> {
        match (init, shape) {
            (Init::List(items, at), [outer, inner @ ..]) => {
                if items.len() as u64 > *outer {
                    return Err(at.error(format!("{} initial values for {outer} elements", items.len())));
                }
                let elements = if *outer == u64::MAX { items.len() as u64 } else { *outer };
                // `elements` is not zero: `global` refuses variables without bytes.
                let stride = size / elements;
                let mut place = offset;
                for item in items {
                    self.fill(item, ty, inner, place, stride)?;
                    place += stride;
                }
                Ok(())
            }
            (Init::List(_, at), []) => Err(at.error("Too many braces in an initial value")),
            (Init::Value(_, at), [_, ..]) => Err(at.error("An array is initialised with a list in braces")),
            (Init::Value(value, at), []) => {
                let bits = immediate(*value, ty, *at)?;
                self.write(offset, &bits.to_le_bytes()[..ty.size() as usize]);
                Ok(())
            }
            (Init::Address { symbol, offset: addend, .. }, []) => self.address(symbol, *addend, ty, offset),
            (Init::Address { symbol, .. }, [_, ..]) => {
                Err(symbol.at.error("An array is initialised with a list in braces"))
            }
        }
    }

    /// Appends bytes. Offsets only grow, because [`fill`](Self::fill) visits the elements in order.
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        if let Some((start, piece)) = self.pieces.last_mut()
            && let Some(gap) = offset.checked_sub(*start + piece.len() as u64)
            && gap <= MAX_GAP
        {
            piece.resize(piece.len() + gap as usize, 0);
            piece.extend_from_slice(bytes);
        } else {
            self.pieces.push((offset, bytes.to_vec()));
        }
    }

    fn address(&mut self, name: &Name, addend: i64, ty: Ty, offset: u64) -> Result<(), Diagnostic> {
        let symbol = match self.program.symbol(self.unit, &name.text) {
            Some(Symbol::Global(index)) => code::Symbol::Global(*index),
            Some(Symbol::Function(index)) => code::Symbol::Function(*index),
            Some(Symbol::Unresolved) => return Err(unresolved(&name.text, name.at)),
            Some(_) => {
                return Err(name.at.error(format!("The address of '{}' is not a constant", name.text)));
            }
            None => return Err(name.at.error(format!("Unknown symbol '{}'", name.text))),
        };
        let size = match ty {
            Ty::B64 | Ty::U64 | Ty::S64 => 8,
            Ty::B32 | Ty::U32 | Ty::S32 => 4,
            _ => return Err(name.at.error("An address does not fit the variable's type")),
        };
        self.relocations.push(Relocation { offset, size, symbol, addend });
        Ok(())
    }
}
