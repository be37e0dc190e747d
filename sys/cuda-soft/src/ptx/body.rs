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
            all.push(labelled(c, name)?);
        }
        Kind::Mark if token.text == ";" => {
            c.take();
        }
        _ => all.push(Statement::Instruction(Box::new(instruction(c)?))),
    }
    Ok(())
}

/// Parses what follows `name:`. Without a directive that takes a name, `name` is an ordinary label.
fn labelled(c: &mut Cursor<'_>, name: Name) -> Result<Statement, Diagnostic> {
    let statement = if c.eat_dot("branchtargets") {
        Statement::BranchTargets { name, targets: c.separated(|c| c.name("a label"))? }
    } else if c.eat_dot("calltargets") {
        Statement::CallTargets { name, targets: c.separated(|c| c.name("a function"))? }
    } else if c.eat_dot("callprototype") {
        let returns = if c.sees("(") { declaration::parameters(c)? } else { Vec::new() };
        c.name("'_'")?;
        let params = if c.sees("(") { declaration::parameters(c)? } else { Vec::new() };
        directive::hints(c)?;
        Statement::Prototype { name, returns, params }
    } else {
        return Ok(Statement::Label(name));
    };
    c.expect(";")?;
    Ok(statement)
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
    if opcodes::refused(&opcode.text) {
        // Lowering says that this device does not have the instruction; the operands have a syntax of their own.
        c.skip_to(";");
        c.expect(";")?;
        return Ok(Instruction { guard, opcode, modifiers, operands: Vec::new() });
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
