//! Names inside a function: scopes, and the register slots behind them.

use std::collections::HashMap;

use crate::code::{Pred, Reg, Ty};

/// What a name inside a function means.
#[derive(Clone, Debug)]
pub(super) enum Entity {
    /// A register and its declared type.
    Register(Reg, Ty),
    /// A predicate.
    Predicate(Pred),
    /// `.reg .v2` or `.v4`: its components.
    Vector(Vec<Reg>, Ty),
    /// A variable in the frame: `.local`, or a `.param` of a call or of this function.
    Frame {
        /// Byte offset in the frame.
        offset: u32,
        /// Bytes.
        size: u32,
        /// `.local` or `.param`.
        local: bool,
    },
    /// A parameter of the kernel: byte offset in its parameter buffer.
    KernelParam(u32),
    /// A shared variable of this function: byte offset in the block's shared memory.
    Shared(u32),
    /// `.extern .shared x[]` declared in the function.
    DynamicShared,
    /// A place in the code, by number.
    Label(u32),
    /// `.branchtargets`: labels by number.
    Targets(Vec<u32>),
}

/// The register slots of a function. A slot is given back when the scope that declared its register ends.
#[derive(Debug, Default)]
pub(super) struct Slots {
    narrow: Pool,
    wide: Pool,
    predicates: Pool,
}

#[derive(Debug, Default)]
struct Pool {
    free: Vec<u16>,
    used: u16,
}

impl Pool {
    fn take(&mut self) -> Option<u16> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let slot = self.used;
        self.used = slot.checked_add(1)?;
        Some(slot)
    }
}

impl Slots {
    /// A slot for a value of type `ty`; `None` when the function uses too many.
    pub(super) fn register(&mut self, ty: Ty) -> Option<Reg> {
        if ty.size() == 8 { self.wide.take().map(Reg::W64) } else { self.narrow.take().map(Reg::W32) }
    }

    pub(super) fn predicate(&mut self) -> Option<Pred> {
        self.predicates.take().map(Pred)
    }

    pub(super) fn release(&mut self, reg: Reg) {
        match reg {
            Reg::W32(slot) => self.narrow.free.push(slot),
            Reg::W64(slot) => self.wide.free.push(slot),
        }
    }

    /// How many slots of 32 bits, of 64 bits and of predicates were ever in use at once.
    pub(super) fn totals(&self) -> (u16, u16, u16) {
        (self.narrow.used, self.wide.used, self.predicates.used)
    }

    fn release_entity(&mut self, entity: &Entity) {
        match entity {
            Entity::Register(reg, _) => self.release(*reg),
            Entity::Predicate(pred) => self.predicates.free.push(pred.0),
            Entity::Vector(regs, _) => regs.iter().for_each(|reg| self.release(*reg)),
            _ => {}
        }
    }
}

/// The nested scopes of a function, innermost last.
#[derive(Debug, Default)]
pub(super) struct Scopes {
    stack: Vec<Scope>,
}

#[derive(Debug, Default)]
struct Scope {
    names: HashMap<String, Entity>,
    /// `%r<5>`: stem, count and type (`None` for predicates). Members get a slot at first use.
    families: Vec<(String, u32, Option<Ty>)>,
    /// Frame bytes in use when the scope began.
    frame: u32,
}

impl Scopes {
    pub(super) fn enter(&mut self, frame: u32) {
        self.stack.push(Scope { frame, ..Scope::default() });
    }

    /// Ends the innermost scope and gives back its slots; returns the frame bytes in use before it.
    pub(super) fn leave(&mut self, slots: &mut Slots) -> u32 {
        let Some(scope) = self.stack.pop() else {
            return 0;
        };
        scope.names.values().for_each(|entity| slots.release_entity(entity));
        scope.frame
    }

    /// Declares `name` in the innermost scope; false if it is declared there already.
    pub(super) fn declare(&mut self, name: &str, entity: Entity) -> bool {
        let Some(scope) = self.stack.last_mut() else {
            return false;
        };
        if scope.family(name).is_some() {
            return false;
        }
        scope.names.insert(name.to_owned(), entity).is_none()
    }

    /// Declares `stem0` to `stem(count - 1)`; false if `stem` is a family there already.
    pub(super) fn declare_family(&mut self, stem: &str, count: u32, ty: Option<Ty>) -> bool {
        let Some(scope) = self.stack.last_mut() else {
            return false;
        };
        if scope.families.iter().any(|(other, ..)| other == stem) {
            return false;
        }
        scope.families.push((stem.to_owned(), count, ty));
        true
    }

    /// What `name` means here. A member of a family gets its slot now; the error says there are no more.
    pub(super) fn find(&mut self, name: &str, slots: &mut Slots) -> Result<Option<Entity>, &'static str> {
        for scope in self.stack.iter_mut().rev() {
            if let Some(entity) = scope.names.get(name) {
                return Ok(Some(entity.clone()));
            }
            if let Some(ty) = scope.family(name) {
                let entity = match ty {
                    Some(ty) => slots.register(ty).map(|reg| Entity::Register(reg, ty)),
                    None => slots.predicate().map(Entity::Predicate),
                };
                let entity = entity.ok_or(TOO_MANY)?;
                scope.names.insert(name.to_owned(), entity.clone());
                return Ok(Some(entity));
            }
        }
        Ok(None)
    }
}

/// Said when a function's registers do not fit the 16-bit slot numbers.
pub(super) const TOO_MANY: &str = "Function uses too many registers";

impl Scope {
    /// The type of the family that `name` is a member of.
    fn family(&self, name: &str) -> Option<Option<Ty>> {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        // The stem may itself end in digits (`%x1_<3>` does not, `%x1<3>` does): try every split.
        (stem.len()..name.len()).find_map(|split| {
            let (stem, digits) = name.split_at(split);
            if digits.len() > 1 && digits.starts_with('0') {
                return None;
            }
            let number: u32 = digits.parse().ok()?;
            let member = |(other, count, _): &&(String, u32, Option<Ty>)| other == stem && number < *count;
            self.families.iter().find(member).map(|(_, _, ty)| *ty)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_and_shadowing() {
        let (mut scopes, mut slots) = (Scopes::default(), Slots::default());
        scopes.enter(0);
        assert!(scopes.declare_family("%r", 3, Some(Ty::B32)));
        assert!(!scopes.declare("%r2", Entity::DynamicShared), "declared twice");
        let Ok(Some(Entity::Register(outer, Ty::B32))) = scopes.find("%r2", &mut slots) else {
            panic!("a member is found")
        };
        assert!(scopes.find("%r3", &mut slots).expect("room").is_none());
        assert!(scopes.find("%r02", &mut slots).expect("room").is_none());
        scopes.enter(16);
        assert!(scopes.declare_family("%r", 3, Some(Ty::B32)));
        let Ok(Some(Entity::Register(inner, _))) = scopes.find("%r2", &mut slots) else {
            panic!("a member is found")
        };
        assert_ne!(outer, inner);
        assert_eq!(scopes.leave(&mut slots), 16);
        assert_eq!(slots.register(Ty::F32), Some(inner), "a slot is used again after its scope");
        assert_eq!(slots.totals(), (2, 0, 0));
    }
}
