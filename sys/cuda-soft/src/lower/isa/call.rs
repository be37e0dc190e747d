//! `call`: copies arguments and results between the frames of caller and callee (PTX ISA 7.1).

use crate::code::op::{Call, CallTarget, FrameCopy};
use crate::code::{Op, Param, Reg, Src, Ty};
use crate::lower::builder::{Builder, Lowered, frame_access};
use crate::lower::link::{Signature, Symbol, unresolved};
use crate::lower::modifiers::Modifiers;
use crate::lower::operand::Fit;
use crate::lower::scope::{Entity, Role};
use crate::ptx::Diagnostic;
use crate::ptx::ast::{Instruction, Operand, OperandKind, Space, Variable};

pub(super) fn call<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    m.take("uni");
    let (returns, callee, args, prototype) = split(b, i)?;
    let (target, signature, declared) = match b.register(callee)? {
        Some((reg, ty)) => through_pointer(b, callee, (reg, ty), prototype)?,
        None => resolve(b, callee)?,
    };
    if returns.len() != signature.returns.len() || args.len() != signature.params.len() {
        return Err(callee.at.error("Call has wrong number of parameters"));
    }
    let mut call = Call { target, args: Vec::new(), returns: Vec::new() };
    for (nth, (operand, param)) in args.iter().zip(&signature.params).enumerate() {
        let from = argument(b, operand, *param, declared.1.get(nth))?;
        call.args.push(FrameCopy { from, to: param.offset, size: param.size });
    }
    let mut loads = Vec::new();
    for (nth, (operand, param)) in returns.iter().zip(&signature.returns).enumerate() {
        let to = result(b, operand, *param, declared.0.get(nth), &mut loads)?;
        call.returns.push(FrameCopy { from: param.offset, to, size: param.size });
    }
    b.emit(Op::Call(Box::new(call)));
    for (reg, ty, offset) in loads {
        b.emit(Op::Ld { mem: frame_access(ty, offset), d: [Some(reg), None, None, None] });
    }
    Ok(())
}

type Parts<'i> = (&'i [Operand], &'i Operand, &'i [Operand], Option<&'i Operand>);

/// Splits `(returns), callee, (args), prototype`, where all but the callee may be absent.
fn split<'i>(b: &Builder<'_, '_>, i: &'i Instruction) -> Result<Parts<'i>, Diagnostic> {
    fn list(operand: &Operand) -> Option<&[Operand]> {
        if let OperandKind::List(all) = &operand.kind { Some(all) } else { None }
    }
    let (returns, rest) = match &i.operands[..] {
        [first, rest @ ..] if list(first).is_some() => (list(first).unwrap_or_default(), rest),
        all => (&[][..], all),
    };
    match rest {
        [callee] => Ok((returns, callee, &[], None)),
        [callee, args, rest @ ..] if list(args).is_some() && rest.len() <= 1 => {
            Ok((returns, callee, list(args).unwrap_or_default(), rest.first()))
        }
        [callee, prototype] => Ok((returns, callee, &[], Some(prototype))),
        _ => Err(b.mismatch(i.opcode.at, "'(returned), function, (arguments)' is wanted")),
    }
}

/// The declared returned values and parameters of a signature.
type Declared<'a> = (&'a [Variable], &'a [Variable]);

/// The callee and the signature of a call to the function whose address a register holds.
fn through_pointer<'a>(
    b: &mut Builder<'_, 'a>,
    callee: &Operand,
    (reg, ty): (Reg, Ty),
    prototype: Option<&Operand>,
) -> Result<(CallTarget, Signature, Declared<'a>), Diagnostic> {
    if ty.float() || ty.size() != 8 {
        return Err(b.mismatch(callee.at, "the address of a function has 64 bits"));
    }
    let wanted = "a call through a pointer needs a '.callprototype' or '.calltargets'";
    let Some(Operand { at, kind: OperandKind::Name { name, component: None, offset: 0 } }) = prototype else {
        return Err(b.mismatch(callee.at, wanted));
    };
    match b.scopes.find(name, &mut b.slots) {
        Ok(Some(Entity::Prototype(number))) => {
            let found = b.prototypes[number as usize].clone();
            Ok((CallTarget::Indirect(reg), found.signature, (found.returns, found.params)))
        }
        Ok(Some(_)) => Err(b.mismatch(*at, wanted)),
        _ => Err(at.error(format!("Unknown symbol '{name}'"))),
    }
}

fn resolve<'a>(
    b: &mut Builder<'_, 'a>,
    callee: &Operand,
) -> Result<(CallTarget, Signature, Declared<'a>), Diagnostic> {
    let OperandKind::Name { name, component: None, offset: 0 } = &callee.kind else {
        return Err(b.mismatch(callee.at, "a function is wanted"));
    };
    let program = b.program;
    match program.symbol(b.defined.unit, name) {
        Some(Symbol::Function(index)) => {
            let defined = &program.functions[*index as usize];
            if defined.ast.is_entry {
                return Err(callee.at.error(format!("Kernel '{name}' cannot be called")));
            }
            let declared = (&defined.ast.returns[..], &defined.ast.params[..]);
            Ok((CallTarget::Function(*index), defined.signature.clone(), declared))
        }
        Some(Symbol::Service(service, signature)) => {
            Ok((CallTarget::Service(*service), signature.clone(), (&[], &[])))
        }
        Some(Symbol::Unresolved) => Err(unresolved(name, callee.at)),
        Some(_) => Err(b.mismatch(callee.at, &format!("'{name}' is not a function"))),
        None => Err(callee.at.error(format!("Unknown symbol '{name}'"))),
    }
}

/// The frame offset of a `.param` variable, which can be passed without a copy.
fn in_frame(b: &mut Builder<'_, '_>, operand: &Operand, param: Param) -> Result<Option<u32>, Diagnostic> {
    let OperandKind::Name { name, component: None, offset: 0 } = &operand.kind else {
        return Ok(None);
    };
    match b.scopes.find(name, &mut b.slots) {
        Ok(Some(Entity::Frame { offset, size, role: Role::Own | Role::Call })) if size == param.size => {
            Ok(Some(offset))
        }
        Ok(Some(Entity::Frame { .. })) => Err(wrong_type(operand)),
        _ => Ok(None),
    }
}

fn wrong_type(operand: &Operand) -> Diagnostic {
    operand.at.error("Type of argument does not match formal parameter")
}

/// The type of a register or constant that is passed.
fn scalar(operand: &Operand, param: Param, declared: Option<&Variable>) -> Result<Ty, Diagnostic> {
    if declared.is_some_and(|v| !v.dimensions.is_empty() || v.vector > 1) {
        return Err(wrong_type(operand));
    }
    let written = declared.and_then(|v| crate::lower::modifiers::ty(&v.ty.text));
    written
        .or(match param.size {
            1 => Some(Ty::B8),
            2 => Some(Ty::B16),
            4 => Some(Ty::B32),
            8 => Some(Ty::B64),
            _ => None,
        })
        .ok_or_else(|| wrong_type(operand))
}

/// The offset of an argument in the caller's frame. Stores registers and constants there first.
fn argument(
    b: &mut Builder<'_, '_>,
    operand: &Operand,
    param: Param,
    declared: Option<&Variable>,
) -> Result<u32, Diagnostic> {
    if let Some(offset) = in_frame(b, operand, param)? {
        return Ok(offset);
    }
    let ty = scalar(operand, param, declared)?;
    let value = b.src(operand, ty, fit(declared))?;
    let offset = b.frame_space(u64::from(param.size), param.align, operand.at)?;
    let mut src = [Src::Imm(0); 4];
    src[0] = value;
    b.emit(Op::St { mem: frame_access(ty, offset), src });
    Ok(offset)
}

/// The offset of a result in the caller's frame. If a register receives it, adds the load to `loads`.
fn result(
    b: &mut Builder<'_, '_>,
    operand: &Operand,
    param: Param,
    declared: Option<&Variable>,
    loads: &mut Vec<(Reg, Ty, u32)>,
) -> Result<u32, Diagnostic> {
    if let Some(offset) = in_frame(b, operand, param)? {
        b.returned.insert(offset);
        return Ok(offset);
    }
    let ty = scalar(operand, param, declared)?;
    let offset = b.frame_space(u64::from(param.size), param.align, operand.at)?;
    if let Some(reg) = b.dst_or_sink(operand, ty, fit(declared))? {
        loads.push((reg, ty, offset));
    }
    Ok(offset)
}

/// A register passed to a `.param` may be wider than the parameter, as in `st.param`.
fn fit(declared: Option<&Variable>) -> Fit {
    if declared.is_some_and(|v| v.space == Space::Reg) { Fit::Exact } else { Fit::Wide }
}
