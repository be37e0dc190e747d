//! Directives that do not affect execution: debugging, tuning, pragmas.

use super::ast::Hint;
use super::constant;
use super::cursor::{Cursor, DEPTH};
use super::diagnostic::Diagnostic;
use super::lex::{Kind, Token};

/// Directives between a function's head and its body (PTX ISA 11.4, 11.7, 11.8), each with its number of values.
const HINTS: [(&str, std::ops::RangeInclusive<usize>); 12] = [
    ("maxntid", 1..=3),
    ("reqntid", 1..=3),
    ("minnctapersm", 1..=1),
    ("maxnctapersm", 1..=1),
    ("maxnreg", 1..=1),
    ("noreturn", 0..=0),
    ("abi_preserve", 1..=1),
    ("abi_preserve_control", 1..=1),
    ("explicitcluster", 0..=0),
    ("reqnctapercluster", 1..=3),
    ("maxclusterrank", 1..=1),
    ("blocksareclusters", 0..=0),
];

/// Parses the hints before a body or `;`.
pub(super) fn hints(c: &mut Cursor<'_>) -> Result<Vec<Hint>, Diagnostic> {
    let mut all = Vec::new();
    while c.peek().kind == Kind::Dot {
        if neutral(c)? {
            continue;
        }
        let name = c.dot("a directive")?;
        let Some((_, arity)) = HINTS.iter().find(|(hint, _)| *hint == name.text) else {
            return Err(name.at.error(format!("Unknown directive '.{}'", name.text)));
        };
        let values = if *arity.end() == 0 { Vec::new() } else { c.separated(constant::natural)? };
        if !arity.contains(&values.len()) {
            return Err(name.at.error(format!("'.{}' does not take {} values", name.text, values.len())));
        }
        all.push(Hint { name, values });
    }
    Ok(all)
}

/// Skips one directive that has no effect and is allowed nearly everywhere. Returns false if none is next.
pub(super) fn neutral(c: &mut Cursor<'_>) -> Result<bool, Diagnostic> {
    let Token { kind: Kind::Dot, text, .. } = c.peek() else {
        return Ok(false);
    };
    match text {
        "pragma" => pragma(c)?,
        "loc" => location(c)?,
        "file" => file(c)?,
        "section" => section(c)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// `.pragma "text" {, "text"};`
fn pragma(c: &mut Cursor<'_>) -> Result<(), Diagnostic> {
    c.take();
    c.separated(string)?;
    c.expect(";").map(drop)
}

fn string(c: &mut Cursor<'_>) -> Result<(), Diagnostic> {
    if c.peek().kind != Kind::Text {
        return Err(c.unexpected("a string"));
    }
    c.take();
    Ok(())
}

/// `.loc file line column {, function_name label {+ n}, inlined_at file line column}`
fn location(c: &mut Cursor<'_>) -> Result<(), Diagnostic> {
    c.take();
    three(c)?;
    while c.eat(",") {
        let word = c.name("'function_name' or 'inlined_at'")?;
        match word.text.as_str() {
            "function_name" => {
                c.name("a label")?;
                if c.eat("+") {
                    constant::natural(c)?;
                }
            }
            "inlined_at" => three(c)?,
            _ => return Err(word.at.error(format!("Unknown attribute '{}' of .loc", word.text))),
        }
    }
    Ok(())
}

fn three(c: &mut Cursor<'_>) -> Result<(), Diagnostic> {
    for _ in 0..3 {
        number(c)?;
    }
    Ok(())
}

fn number(c: &mut Cursor<'_>) -> Result<(), Diagnostic> {
    if c.peek().kind != Kind::Integer {
        return Err(c.unexpected("a number"));
    }
    c.take();
    Ok(())
}

/// `.file index "name" {, timestamp, size}`
fn file(c: &mut Cursor<'_>) -> Result<(), Diagnostic> {
    c.take();
    number(c)?;
    string(c)?;
    while c.eat(",") {
        number(c)?;
    }
    Ok(())
}

/// `.section .name { ... }`: DWARF data, skipped to the matching brace.
fn section(c: &mut Cursor<'_>) -> Result<(), Diagnostic> {
    let at = c.take().at;
    c.dot("a section name")?;
    c.expect("{")?;
    let mut open = 1u32;
    while open > 0 {
        let token = c.take();
        match (token.kind, token.text) {
            (Kind::End, _) => return Err(at.error("Section is not closed")),
            (Kind::Mark, "{") if open == DEPTH => return Err(token.at.error("Section is nested too deeply")),
            (Kind::Mark, "{") => open += 1,
            (Kind::Mark, "}") => open -= 1,
            _ => {}
        }
    }
    Ok(())
}
