//! Function bodies: labels, scopes, declarations, instructions.

use super::ast::{Guard, Instruction, Linkage, Name, Position, Statement};
use super::cursor::Cursor;
use super::declaration;
use super::diagnostic::Diagnostic;
use super::directive;
use super::lex::{Kind, Token};
use super::opcodes;
use super::operand;

/// Parses `{ ... }`. Statements with syntax errors go to `errors` and are left out of the tree.
pub(super) fn body(
    c: &mut Cursor<'_>,
    errors: &mut Vec<Diagnostic>,
) -> Result<(Vec<Statement>, Position), Diagnostic> {
    c.expect("{")?;
    let mut all = Vec::new();
    loop {
        if c.sees("}") {
            return Ok((all, c.take().at));
        }
        if c.peek().kind == Kind::End {
            return Err(c.unexpected("'}'"));
        }
        if c.sees("{") {
            let (inner, _) = c.nested(|c| body(c, errors))?;
            all.push(Statement::Block(inner));
            continue;
        }
        if let Err(error) = statement(c, &mut all) {
            if !c.recover() {
                return Err(error);
            }
            errors.push(error);
        }
    }
}

fn statement(c: &mut Cursor<'_>, all: &mut Vec<Statement>) -> Result<(), Diagnostic> {
    let token = c.peek();
    match token.kind {
        Kind::Dot if directive::neutral(c)? => {}
        Kind::Dot if declaration::space(token.text).is_some() => {
            let variables = declaration::variables(c, Linkage::Internal)?;
            all.extend(variables.into_iter().map(Statement::Variable));
        }
        Kind::Dot => return Err(token.at.error(format!("Unknown directive '.{}'", token.text))),
        Kind::Name if matches!(c.peek_at(1), Token { kind: Kind::Mark, text: ":", .. }) => {
            let name = c.name("a label")?;
            c.take();
            all.push(match label_list(c)? {
                Some(targets) => Statement::BranchTargets { name, targets },
                None => Statement::Label(name),
            });
        }
        Kind::Mark if token.text == ";" => {
            c.take();
        }
        _ => all.push(Statement::Instruction(Box::new(instruction(c)?))),
    }
    Ok(())
}

/// Parses the list that may follow `name:`. Without one, `name` is an ordinary label.
fn label_list(c: &mut Cursor<'_>) -> Result<Option<Vec<Name>>, Diagnostic> {
    if c.eat_dot("branchtargets") {
        let targets = c.separated(|c| c.name("a label"))?;
        c.expect(";")?;
        return Ok(Some(targets));
    }
    if let Token { kind: Kind::Dot, text: text @ ("calltargets" | "callprototype"), at } = c.peek() {
        return Err(at.error(format!("'.{text}': calls through pointers are not supported on this device")));
    }
    Ok(None)
}

fn instruction(c: &mut Cursor<'_>) -> Result<Instruction, Diagnostic> {
    let guard = guard(c)?;
    let opcode = c.name("an instruction")?;
    if !opcodes::known(&opcode.text) {
        return Err(opcode.at.error(format!("Not a name of any known instruction: '{}'", opcode.text)));
    }
    let mut modifiers = Vec::new();
    while c.peek().kind == Kind::Dot {
        modifiers.push(c.dot("a modifier")?);
    }
    let operands = operand::operands(c, &opcode.text)?;
    c.expect(";")?;
    Ok(Instruction { guard, opcode, modifiers, operands })
}

fn guard(c: &mut Cursor<'_>) -> Result<Option<Guard>, Diagnostic> {
    if !c.eat("@") {
        return Ok(None);
    }
    let negated = c.eat("!");
    Ok(Some(Guard { predicate: c.name("a predicate")?, negated }))
}
