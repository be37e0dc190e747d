//! Variables, registers and parameters (PTX ISA 5.4).

use super::ast::{Init, Linkage, Name, Space, Variable};
use super::constant;
use super::cursor::Cursor;
use super::diagnostic::Diagnostic;
use super::lex::{Kind, Token};

/// The state space that `.word` names, if variables can be declared in it.
pub(super) fn space(word: &str) -> Option<Space> {
    Some(match word {
        "reg" => Space::Reg,
        "const" => Space::Const,
        "global" => Space::Global,
        "shared" => Space::Shared,
        "local" => Space::Local,
        "param" => Space::Param,
        _ => return None,
    })
}

/// Parses declarations from the state space to the `;`. Returns one variable per name.
pub(super) fn variables(c: &mut Cursor<'_>, linkage: Linkage) -> Result<Vec<Variable>, Diagnostic> {
    let head = head(c, linkage)?;
    let all = c.separated(|c| declarator(c, &head))?;
    c.expect(";")?;
    Ok(all)
}

/// Parses the parameters, or the returned values, of a function or prototype.
pub(super) fn parameters(c: &mut Cursor<'_>) -> Result<Vec<Variable>, Diagnostic> {
    c.expect("(")?;
    let all = if c.sees(")") { Vec::new() } else { c.separated(parameter)? };
    c.expect(")")?;
    Ok(all)
}

/// Parses one parameter or returned value.
fn parameter(c: &mut Cursor<'_>) -> Result<Variable, Diagnostic> {
    let head = head(c, Linkage::Internal)?;
    let Token { at, .. } = c.peek();
    let variable = declarator(c, &head)?;
    if !matches!(variable.space, Space::Param | Space::Reg)
        || variable.init.is_some()
        || variable.count.is_some()
    {
        return Err(at.error(format!("'{}' cannot be a parameter", variable.name.text)));
    }
    Ok(variable)
}

/// Parses everything before the name.
fn head(c: &mut Cursor<'_>, linkage: Linkage) -> Result<Variable, Diagnostic> {
    let word = c.dot("a state space")?;
    let space = space(&word.text).ok_or_else(|| {
        word.at.error(format!("Parsing error near '.{}': expected a state space", word.text))
    })?;
    let (mut align, mut vector, mut ty) = (0, 1, None);
    while let Token { kind: Kind::Dot, text, at } = c.peek() {
        match text {
            "align" => align = alignment(c)?,
            "v2" => (vector, _) = (2, c.take()),
            "v4" => (vector, _) = (4, c.take()),
            "ptr" => pointer(c)?,
            _ if ty.is_none() && is_type(text) => ty = Some(c.dot("a type")?),
            "texref" | "samplerref" | "surfref" => {
                let what = "textures and surfaces are not supported by the software device";
                return Err(at.error(format!("'.{text}': {what}")));
            }
            _ => return Err(at.error(format!("Unknown modifier '.{text}' in a declaration"))),
        }
    }
    let ty = ty.ok_or_else(|| c.unexpected("a type"))?;
    let name = Name { text: String::new(), at: ty.at };
    Ok(Variable { name, count: None, linkage, space, align, ty, vector, dimensions: Vec::new(), init: None })
}

fn is_type(word: &str) -> bool {
    let Some(kind) = word.find(|c: char| c.is_ascii_digit()) else {
        return word == "pred";
    };
    let (letters, digits) = word.split_at(kind);
    match letters {
        "b" => matches!(digits, "8" | "16" | "32" | "64" | "128"),
        "u" | "s" => matches!(digits, "8" | "16" | "32" | "64"),
        "f" => matches!(digits, "16" | "16x2" | "32" | "64"),
        _ => false,
    }
}

fn alignment(c: &mut Cursor<'_>) -> Result<u32, Diagnostic> {
    c.take();
    let at = c.at();
    let value = constant::natural(c)?;
    match u32::try_from(value) {
        Ok(value) if value.is_power_of_two() && value <= 1 << 20 => Ok(value),
        _ => Err(at.error(format!("Alignment {value} is not a power of two that any variable can have"))),
    }
}

/// Skips `.ptr{.space}{.align N}`, which describes the target of a pointer parameter; this device does not use it.
fn pointer(c: &mut Cursor<'_>) -> Result<(), Diagnostic> {
    c.take();
    for word in ["const", "global", "shared", "local"] {
        if c.eat_dot(word) {
            break;
        }
    }
    if matches!(c.peek(), Token { kind: Kind::Dot, text: "align", .. }) {
        alignment(c)?;
    }
    Ok(())
}

/// Parses `name`, `name<5>` or `name[3][]`, with an optional initial value.
fn declarator(c: &mut Cursor<'_>, head: &Variable) -> Result<Variable, Diagnostic> {
    let mut variable = Variable { name: c.name("a name")?, ..head.clone() };
    let at = c.at();
    if c.eat("<") {
        let token = c.peek();
        let bad = || token.at.error("Expected the number of registers");
        if token.kind != Kind::Integer {
            return Err(bad());
        }
        c.take();
        let count: u32 = token.text.parse().map_err(|_| bad())?;
        if variable.space != Space::Reg {
            return Err(at.error("Only registers are declared in numbered families"));
        }
        variable.count = Some(count);
        c.expect(">")?;
    }
    while c.eat("[") {
        let size = if c.sees("]") { None } else { Some(constant::natural(c)?) };
        variable.dimensions.push(size);
        c.expect("]")?;
    }
    if variable.space == Space::Reg && !variable.dimensions.is_empty() {
        return Err(at.error("Registers cannot be arrays"));
    }
    let at = c.at();
    if c.eat("=") {
        if !matches!(variable.space, Space::Global | Space::Const) {
            return Err(at.error("Only .global and .const variables can have initial values"));
        }
        variable.init = Some(initial(c)?);
    }
    Ok(variable)
}

fn initial(c: &mut Cursor<'_>) -> Result<Init, Diagnostic> {
    let token = c.peek();
    if c.eat("{") {
        let all = if c.sees("}") { Vec::new() } else { c.nested(|c| c.separated(initial))? };
        c.expect("}")?;
        return Ok(Init::List(all, token.at));
    }
    if token.kind != Kind::Name || constant::begins(token) {
        return Ok(Init::Value(constant::expression(c)?, token.at));
    }
    let mut symbol = c.name("a value")?;
    let generic = symbol.text == "generic" && c.eat("(");
    if generic {
        symbol = c.name("a variable")?;
        c.expect(")")?;
    }
    let mut offset = 0i64;
    while c.sees("+") || c.sees("-") {
        let negative = c.take().text == "-";
        let term = constant::term(c)?;
        offset = if negative { offset.wrapping_sub(term) } else { offset.wrapping_add(term) };
    }
    Ok(Init::Address { symbol, offset, generic })
}
