//! Names inside a function: scopes, and the allocation of register slots.

use std::collections::HashMap;

use crate::code::{Pred, Reg, Ty};

/// The meaning of a name inside a function.
#[derive(Clone, Debug)]
pub(super) enum Entity {
    /// A register and its declared type.
    Register(Reg, Ty),
    /// A predicate.
    Predicate(Pred),
    /// `.reg .v2` or `.v4`: its components.
    Vector(Vec<Reg>, Ty),
    /// A variable in the frame: `.local`, or a `.param` of this function or of a call it makes.
    Frame {
        /// Byte offset in the frame.
        offset: u32,
        /// Bytes.
        size: u32,
        /// Its purpose.
        role: Role,
    },
    /// A parameter of the kernel, by byte offset in the parameter buffer.
    KernelParam(u32),
    /// A shared variable of this function, by byte offset in the block's shared memory.
    Shared(u32),
    /// `.extern .shared x[]` declared in the function.
    DynamicShared,
    /// A label, by number.
    Label(u32),
    /// `.branchtargets`: labels by number.
    Targets(Vec<u32>),
    /// `.callprototype` or `.calltargets`, by number.
    Prototype(u32),
}

/// The roles of variables in the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// `.local`.
    Local,
    /// A parameter or returned value of this function.
    Own,
    /// A `.param` that passes values to a call or takes them from it.
    Call,
}

/// The register slots of a function.
///
/// When a scope ends, its slots become free, but only for scopes entered later. A register of a scope that is still
/// open must not get one: it may be live around a loop that runs through the ended scope again.
#[derive(Debug, Default)]
pub(super) struct Slots {
    narrow: Pool,
    wide: Pool,
    predicates: Pool,
}

#[derive(Debug, Default)]
struct Pool {
    /// Number of slots allocated so far.
    used: u16,
    /// The open scopes, outermost first.
    scopes: Vec<Free>,
    /// Free slots for temporaries, which hold a value only within one instruction.
    temporaries: Vec<u16>,
}

/// The slots of one scope.
#[derive(Debug, Default)]
struct Free {
    /// Free slots for its own registers.
    own: Vec<u16>,
    /// Slots freed by inner scopes, for the next inner scope.
    recycled: Vec<u16>,
    /// Slots in use by its own registers.
    held: Vec<u16>,
}

impl Pool {
    fn enter(&mut self) {
        let own = self.scopes.last_mut().map(|outer| std::mem::take(&mut outer.recycled)).unwrap_or_default();
        self.scopes.push(Free { own, ..Free::default() });
    }

    fn leave(&mut self) {
        if let Some(Free { own, recycled, held }) = self.scopes.pop()
            && let Some(outer) = self.scopes.last_mut()
        {
            outer.recycled.extend(own.into_iter().chain(recycled).chain(held));
        }
    }

    fn fresh(&mut self) -> Option<u16> {
        let slot = self.used;
        self.used = slot.checked_add(1)?;
        Some(slot)
    }

    /// Allocates a slot for a register of the open scope at `depth`.
    fn take(&mut self, depth: usize) -> Option<u16> {
        let reused = self.scopes.get_mut(depth).and_then(|scope| scope.own.pop());
        let slot = reused.or_else(|| self.fresh())?;
        if let Some(scope) = self.scopes.get_mut(depth) {
            scope.held.push(slot);
        }
        Some(slot)
    }
}

impl Slots {
    fn pools(&mut self) -> [&mut Pool; 3] {
        [&mut self.narrow, &mut self.wide, &mut self.predicates]
    }

    /// Allocates a slot for a register of the innermost scope; `None` if the function uses too many.
    pub(super) fn register(&mut self, ty: Ty) -> Option<Reg> {
        let depth = self.narrow.scopes.len().saturating_sub(1);
        self.register_at(ty, depth)
    }

    pub(super) fn predicate(&mut self) -> Option<Pred> {
        let depth = self.predicates.scopes.len().saturating_sub(1);
        self.predicates.take(depth).map(Pred)
    }

    fn register_at(&mut self, ty: Ty, depth: usize) -> Option<Reg> {
        if ty.size() == 8 {
            self.wide.take(depth).map(Reg::W64)
        } else {
            self.narrow.take(depth).map(Reg::W32)
        }
    }

    /// Allocates a slot for a temporary, which [`Self::release`] frees.
    pub(super) fn temporary(&mut self, ty: Ty) -> Option<Reg> {
        let pool = if ty.size() == 8 { &mut self.wide } else { &mut self.narrow };
        let slot = pool.temporaries.pop().or_else(|| pool.fresh())?;
        Some(if ty.size() == 8 { Reg::W64(slot) } else { Reg::W32(slot) })
    }

    /// Frees a temporary.
    pub(super) fn release(&mut self, reg: Reg) {
        match reg {
            Reg::W32(slot) => self.narrow.temporaries.push(slot),
            Reg::W64(slot) => self.wide.temporaries.push(slot),
        }
    }

    /// The numbers of 32-bit slots, 64-bit slots and predicates.
    pub(super) fn totals(&self) -> (u16, u16, u16) {
        (self.narrow.used, self.wide.used, self.predicates.used)
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
    /// Families such as `%r<5>`: stem, count and type (`None` for predicates). A member gets its slot at first use.
    families: Vec<(String, u32, Option<Ty>)>,
    /// Frame bytes in use at the beginning of the scope.
    frame: u32,
}

impl Scopes {
    pub(super) fn enter(&mut self, frame: u32, slots: &mut Slots) {
        slots.pools().into_iter().for_each(Pool::enter);
        self.stack.push(Scope { frame, ..Scope::default() });
    }

    /// Ends the innermost scope and frees its slots. Returns the frame bytes in use before it.
    pub(super) fn leave(&mut self, slots: &mut Slots) -> u32 {
        slots.pools().into_iter().for_each(Pool::leave);
        self.stack.pop().map_or(0, |scope| scope.frame)
    }

    /// Declares `name` in the innermost scope. Returns false if it is already declared there.
    pub(super) fn declare(&mut self, name: &str, entity: Entity) -> bool {
        let Some(scope) = self.stack.last_mut() else {
            return false;
        };
        if scope.family(name).is_some() {
            return false;
        }
        scope.names.insert(name.to_owned(), entity).is_none()
    }

    /// Declares `stem0` to `stem(count - 1)`. Returns false if the scope already has a family `stem`.
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

    /// Looks `name` up. A member of a family gets its slot now; the error says that there are none left.
    pub(super) fn find(&mut self, name: &str, slots: &mut Slots) -> Result<Option<Entity>, &'static str> {
        for (depth, scope) in self.stack.iter_mut().enumerate().rev() {
            if let Some(entity) = scope.names.get(name) {
                return Ok(Some(entity.clone()));
            }
            if let Some(ty) = scope.family(name) {
                let entity = match ty {
                    Some(ty) => slots.register_at(ty, depth).map(|reg| Entity::Register(reg, ty)),
                    None => slots.predicates.take(depth).map(|slot| Entity::Predicate(Pred(slot))),
                };
                let entity = entity.ok_or(TOO_MANY)?;
                scope.names.insert(name.to_owned(), entity.clone());
                return Ok(Some(entity));
            }
        }
        Ok(None)
    }
}

/// The error if the registers of a function do not fit the 16-bit slot numbers.
pub(super) const TOO_MANY: &str = "Function uses too many registers";

impl Scope {
    /// The type of the family that has `name` as a member.
    fn family(&self, name: &str) -> Option<Option<Ty>> {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        // The stem may itself end in digits, as in `%x1<3>`: try every split.
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

    fn register(scopes: &mut Scopes, slots: &mut Slots, name: &str) -> Option<Reg> {
        match scopes.find(name, slots).expect("room") {
            Some(Entity::Register(reg, Ty::B32)) => Some(reg),
            _ => None,
        }
    }

    #[test]
    fn families_and_shadowing() {
        let (mut scopes, mut slots) = (Scopes::default(), Slots::default());
        scopes.enter(0, &mut slots);
        assert!(scopes.declare_family("%r", 3, Some(Ty::B32)));
        assert!(!scopes.declare("%r2", Entity::DynamicShared), "declared twice");
        let outer = register(&mut scopes, &mut slots, "%r2").expect("a member");
        assert_eq!(register(&mut scopes, &mut slots, "%r3"), None);
        assert_eq!(register(&mut scopes, &mut slots, "%r02"), None);
        scopes.enter(16, &mut slots);
        assert!(scopes.declare_family("%r", 3, Some(Ty::B32)));
        assert_ne!(register(&mut scopes, &mut slots, "%r2"), Some(outer));
        assert_eq!(scopes.leave(&mut slots), 16);
        assert_eq!(register(&mut scopes, &mut slots, "%r2"), Some(outer));
    }

    #[test]
    fn a_slot_is_used_again_only_by_a_later_scope() {
        let (mut scopes, mut slots) = (Scopes::default(), Slots::default());
        scopes.enter(0, &mut slots);
        scopes.declare_family("%o", 9, Some(Ty::B32));
        scopes.enter(0, &mut slots);
        scopes.declare_family("%i", 9, Some(Ty::B32));
        let inner = register(&mut scopes, &mut slots, "%i0");
        scopes.leave(&mut slots);
        // `%o0` may be live around a loop in which the inner scope runs again.
        assert_ne!(register(&mut scopes, &mut slots, "%o0"), inner);
        let temporary = slots.temporary(Ty::B32).expect("room");
        slots.release(temporary);
        assert_ne!(register(&mut scopes, &mut slots, "%o1"), Some(temporary));
        scopes.enter(0, &mut slots);
        scopes.declare_family("%s", 9, Some(Ty::B32));
        assert_ne!(register(&mut scopes, &mut slots, "%o2"), inner, "an outer register first seen inside");
        assert_eq!(register(&mut scopes, &mut slots, "%s0"), inner);
        assert_eq!(slots.totals(), (5, 0, 0));
    }
}
