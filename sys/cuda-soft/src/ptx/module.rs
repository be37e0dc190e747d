//! Module scope: version, target, variables, functions (PTX ISA 11).

use super::ast::{Function, Item, Linkage, Module, Name, Space};
use super::body;
use super::cursor::Cursor;
use super::declaration;
use super::diagnostic::Diagnostic;
use super::directive;
use super::lex::{Kind, Token};

/// The newest PTX ISA that this parser knows.
const NEWEST: (u32, u32) = (9, 0);

/// Architectures with a published PTX target.
const ARCHITECTURES: [u32; 20] =
    [50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 120, 121];

/// Parses a whole module.
pub(super) fn module(mut c: Cursor<'_>) -> Result<Module, Diagnostic> {
    let mut errors = Vec::new();
    let result = items(&mut c, &mut errors);
    match result {
        Ok(module) => Diagnostic::join(errors).map_or(Ok(module), Err),
        Err(last) => {
            errors.push(last.clone());
            Err(Diagnostic::join(errors).unwrap_or(last))
        }
    }
}

fn items(c: &mut Cursor<'_>, errors: &mut Vec<Diagnostic>) -> Result<Module, Diagnostic> {
    let version = version(c)?;
    let (sm, sm_suffix) = target(c)?;
    if c.eat_dot("address_size") {
        let token = c.take();
        if (token.kind, token.text) != (Kind::Integer, "64") {
            return Err(token.at.error(".address_size must be 64 on this device"));
        }
    }
    let mut module = Module { version, sm, sm_suffix, items: Vec::new() };
    while c.peek().kind != Kind::End {
        if !directive::neutral(c)? {
            item(c, &mut module.items, errors)?;
        }
    }
    Ok(module)
}

fn version(c: &mut Cursor<'_>) -> Result<(u32, u32), Diagnostic> {
    if !c.eat_dot("version") {
        return Err(c.at().error("Missing .version directive at start of file"));
    }
    let token = c.take();
    let parsed = token.text.split_once('.').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    match parsed {
        Some(version) if token.kind == Kind::Float && (1, 0) <= version && version <= NEWEST => Ok(version),
        Some(_) if token.kind == Kind::Float => {
            let (major, minor) = NEWEST;
            let what = format!("Unsupported .version {}; current version is '{major}.{minor}'", token.text);
            Err(Diagnostic { unsupported_version: true, ..token.at.error(what) })
        }
        _ => Err(token.at.error("Expected a version such as 8.0")),
    }
}

fn target(c: &mut Cursor<'_>) -> Result<(u32, Option<char>), Diagnostic> {
    if !c.eat_dot("target") {
        return Err(c.at().error("Missing .target directive after .version"));
    }
    let mut found = None;
    for word in c.separated(|c| c.name("a target"))? {
        let unknown = || word.at.error(format!("Unknown target '{}'", word.text));
        if let Some(number) = word.text.strip_prefix("sm_") {
            let digits = number.trim_end_matches(['a', 'f']);
            let suffix = number[digits.len()..].chars().next();
            let sm: u32 = digits.parse().map_err(|_| unknown())?;
            if number.len() > digits.len() + 1 || !ARCHITECTURES.contains(&sm) || found.is_some() {
                return Err(unknown());
            }
            found = Some((sm, suffix));
        } else if !matches!(word.text.as_str(), "texmode_unified" | "texmode_independent" | "debug") {
            return Err(unknown());
        }
    }
    found.ok_or_else(|| c.at().error(".target names no architecture"))
}

fn item(c: &mut Cursor<'_>, items: &mut Vec<Item>, errors: &mut Vec<Diagnostic>) -> Result<(), Diagnostic> {
    let linkage = linkage(c);
    let Token { kind, text, at } = c.peek();
    match (kind, text) {
        (Kind::Dot, "entry" | "func") => items.push(Item::Function(function(c, linkage, errors)?)),
        (Kind::Dot, _) if declaration::space(text).is_some() => {
            let variables = declaration::variables(c, linkage)?;
            if matches!(variables[0].space, Space::Reg | Space::Param | Space::Local) {
                return Err(at.error(format!("'.{text}' variables cannot be declared at module scope")));
            }
            items.extend(variables.into_iter().map(Item::Variable));
        }
        (Kind::Dot, _) => return Err(at.error(format!("Unknown directive '.{text}'"))),
        _ => return Err(c.unexpected("a directive")),
    }
    Ok(())
}

fn linkage(c: &mut Cursor<'_>) -> Linkage {
    let words = [
        ("visible", Linkage::Visible),
        ("weak", Linkage::Weak),
        ("extern", Linkage::Extern),
        ("common", Linkage::Common),
    ];
    words.into_iter().find(|(word, _)| c.eat_dot(word)).map_or(Linkage::Internal, |(_, linkage)| linkage)
}

fn function(
    c: &mut Cursor<'_>,
    linkage: Linkage,
    errors: &mut Vec<Diagnostic>,
) -> Result<Function, Diagnostic> {
    let is_entry = c.take().text == "entry";
    // `.func .attribute(...)` would be parsed here; no attribute is supported.
    let returns = if !is_entry && c.sees("(") { declaration::parameters(c)? } else { Vec::new() };
    let name: Name = c.name("a function name")?;
    let params = if c.sees("(") { declaration::parameters(c)? } else { Vec::new() };
    if let (true, Some(param)) = (is_entry, params.iter().find(|p| p.space != Space::Param)) {
        return Err(param.name.at.error("Parameters of a kernel are in .param space"));
    }
    let hints = directive::hints(c)?;
    let end = c.at();
    if c.eat(";") {
        return Ok(Function { name, linkage, is_entry, returns, params, hints, body: None, end });
    }
    if linkage == Linkage::Extern {
        return Err(end.error(format!("'.extern' function '{}' cannot have a body", name.text)));
    }
    let (body, end) = body::body(c, errors)?;
    Ok(Function { name, linkage, is_entry, returns, params, hints, body: Some(body), end })
}
