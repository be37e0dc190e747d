//! Operands (PTX ISA 6).

use super::ast::{Name, Operand, OperandKind};
use super::constant;
use super::cursor::Cursor;
use super::diagnostic::Diagnostic;
use super::lex::{Kind, Token};

/// Parses the operands of one instruction, up to but not including its `;`.
pub(super) fn operands(c: &mut Cursor<'_>, opcode: &str) -> Result<Vec<Operand>, Diagnostic> {
    if c.sees(";") {
        return Ok(Vec::new());
    }
    let in_call = opcode == "call";
    c.separated(|c| if in_call && c.sees("(") { list(c) } else { operand(c) })
}

/// Parses `(a, b)` or `()` in a call.
fn list(c: &mut Cursor<'_>) -> Result<Operand, Diagnostic> {
    let at = c.expect("(")?;
    let all = if c.sees(")") { Vec::new() } else { c.separated(operand)? };
    c.expect(")")?;
    Ok(Operand { at, kind: OperandKind::List(all) })
}

fn operand(c: &mut Cursor<'_>) -> Result<Operand, Diagnostic> {
    let first = single(c)?;
    if !c.eat("|") {
        return Ok(first);
    }
    let second = single(c)?;
    Ok(Operand { at: first.at, kind: OperandKind::Pair(Box::new(first), Box::new(second)) })
}

fn single(c: &mut Cursor<'_>) -> Result<Operand, Diagnostic> {
    let token = c.peek();
    let at = token.at;
    let kind = match (token.kind, token.text) {
        (Kind::Mark, "{") => vector(c)?,
        (Kind::Mark, "[") => address(c)?,
        (Kind::Mark, "!") if c.peek_at(1).kind == Kind::Name && !constant::begins(c.peek_at(1)) => {
            c.take();
            OperandKind::Not(c.name("a predicate")?.text)
        }
        (Kind::Name, "_") => {
            c.take();
            OperandKind::Sink
        }
        _ if constant::begins(token) => OperandKind::Constant(constant::expression(c)?),
        (Kind::Name, _) => {
            let Name { text: name, .. } = c.name("an operand")?;
            let component = component(c);
            no_selector(c)?;
            OperandKind::Name { name, component, offset: offset(c)? }
        }
        _ => return Err(c.unexpected("an operand")),
    };
    Ok(Operand { at, kind })
}

/// Parses `.x`, `.y`, `.z` or `.w` after a name; `.r`, `.g`, `.b` and `.a` name the same components.
fn component(c: &mut Cursor<'_>) -> Option<char> {
    let Token { kind: Kind::Dot, text, .. } = c.peek() else {
        return None;
    };
    let component = match text {
        "x" | "r" => 'x',
        "y" | "g" => 'y',
        "z" | "b" => 'z',
        "w" | "a" => 'w',
        _ => return None,
    };
    c.take();
    Some(component)
}

/// Refuses `.b1`, `.h10` and the like after a name: the bytes or halves of a word that a video instruction selects.
fn no_selector(c: &Cursor<'_>) -> Result<(), Diagnostic> {
    let Token { kind: Kind::Dot, text, at } = c.peek() else {
        return Ok(());
    };
    match text.strip_prefix(['b', 'h']) {
        Some(digits) if !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit()) => {
            Err(at.error(format!("Selector '.{text}' is not supported by the software device")))
        }
        _ => Ok(()),
    }
}

/// Parses an offset such as `+4-2` after a name.
fn offset(c: &mut Cursor<'_>) -> Result<i64, Diagnostic> {
    let mut sum = 0i64;
    loop {
        let negative = c.sees("-");
        if !negative && !c.sees("+") {
            return Ok(sum);
        }
        c.take();
        let term = constant::term(c)?;
        sum = if negative { sum.wrapping_sub(term) } else { sum.wrapping_add(term) };
    }
}

fn vector(c: &mut Cursor<'_>) -> Result<OperandKind, Diagnostic> {
    c.expect("{")?;
    let all = c.nested(|c| c.separated(single))?;
    c.expect("}")?;
    Ok(OperandKind::Vector(all))
}

fn address(c: &mut Cursor<'_>) -> Result<OperandKind, Diagnostic> {
    c.expect("[")?;
    let base = if constant::begins(c.peek()) { None } else { Some(c.name("an address")?.text) };
    let offset = if base.is_some() { offset(c)? } else { constant::integer(c)? };
    c.expect("]")?;
    Ok(OperandKind::Address { base, offset })
}
