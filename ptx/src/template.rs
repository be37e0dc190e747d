//! The instantiator: PTX text with four directives.
//!
//! | form | meaning |
//! |---|---|
//! | `${NAME}` | the value of a name; `${EXPR}` also takes integers, `+`, `-` and `*` over integer names |
//! | `#include "x.ptxi" A=%a B=4` | the fragment `x.ptxi`, which sees exactly the names bound here |
//! | `#if expr` / `#elif expr` / `#else` / `#endif` | `==` `!=` `<` `<=` `>` `>=` on integers or strings, `&&`, `\|\|` |
//! | `#repeat N i` / `#end` | the lines `N` times, `${i}` counting from 0 |
//!
//! A directive continues on the next line after a trailing `\`. Known everywhere: `sm` (compute capability as in
//! `sm_90`), `ptx` (version times ten), `UNIT_DATA` and `UNIT_LINES` (a unit of LL128 packets) and the symbols of [`crate::abi`]. A name that is not known, and a
//! name that was given and is never used, are both errors that carry file and line. A use in a branch
//! that is not taken counts as a use.
//!
//! The comment block at the head of an included file (its contract) is not copied. A fragment that declares a
//! register with the name of one passed to it would silently shadow it: that is an error too.

mod expr;

use std::cell::Cell;
use std::fmt;

/// Includes nested deeper than this are refused as a cycle.
const MAX_DEPTH: usize = 16;
/// A `#repeat` of more iterations than this is refused as a mistake.
const MAX_REPEAT: u64 = 256;
/// Limits of the rendered text, because nested repetitions multiply: lines in all, bytes of a line after its names have
/// been replaced, and bytes in all.
const MAX_LINES: usize = 1 << 14;
const MAX_LINE: usize = 16 << 10;
const MAX_TEXT: usize = 4 << 20;

/// A mistake in a template, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError {
    /// File, as named in the catalog or an `#include`.
    pub file: String,
    /// Line, from 1; 0 if the error is about the whole instantiation.
    pub line: usize,
    /// The mistake and how to mend it.
    pub message: String,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

impl std::error::Error for TemplateError {}

/// Finds the text of a file by name.
pub(crate) type Sources<'a, 't> = &'a dyn Fn(&str) -> Option<&'t str>;

/// Renders `file` with `params`; `globals` are known everywhere and need not be used.
pub(crate) fn render(
    file: &str,
    sources: Sources<'_, '_>,
    globals: &[(String, u64)],
    params: &[(String, String)],
) -> Result<String, TemplateError> {
    render_as(file, sources, globals, params, false)
}

/// Renders a fragment on its own, as an `#include` with these bindings would.
pub(crate) fn render_fragment(
    file: &str,
    sources: Sources<'_, '_>,
    globals: &[(String, u64)],
    params: &[(String, String)],
) -> Result<String, TemplateError> {
    render_as(file, sources, globals, params, true)
}

fn render_as(
    file: &str,
    sources: Sources<'_, '_>,
    globals: &[(String, u64)],
    params: &[(String, String)],
    included: bool,
) -> Result<String, TemplateError> {
    let mut renderer = Renderer { sources, globals, out: String::new(), depth: 0, lines: 0 };
    renderer.file(file, params, included).map_err(|failure| match failure {
        Failure::At(error) => error,
        Failure::Caller(message) => TemplateError { file: file.to_owned(), line: 0, message },
    })?;
    Ok(renderer.out)
}

/// An error inside a file, or one for which the line that asked for the file is to blame.
enum Failure {
    At(TemplateError),
    Caller(String),
}

struct Renderer<'a, 't> {
    sources: Sources<'a, 't>,
    globals: &'a [(String, u64)],
    out: String,
    depth: usize,
    /// Lines read so far.
    lines: usize,
}

/// One file being rendered, with the names it sees.
struct Scope<'a> {
    file: &'a str,
    lines: Vec<(usize, String)>,
    params: Vec<(&'a str, &'a str, Cell<bool>)>,
    repeats: Vec<(String, u64)>,
    globals: &'a [(String, u64)],
    declared: Vec<String>,
}

impl Renderer<'_, '_> {
    fn file(&mut self, name: &str, params: &[(String, String)], included: bool) -> Result<(), Failure> {
        let text = (self.sources)(name).ok_or_else(|| Failure::Caller(format!("no such file: {name}")))?;
        let mut scope = Scope {
            file: name,
            lines: logical_lines(text, included),
            params: params.iter().map(|(n, v)| (n.as_str(), v.as_str(), Cell::new(false))).collect(),
            repeats: Vec::new(),
            globals: self.globals,
            declared: Vec::new(),
        };
        let mut at = 0;
        if let Some(end) = self.block(&mut scope, &mut at, true).map_err(Failure::At)? {
            // An `#elif` is left to be read by its `#if`.
            let index = if end == "#elif" { at } else { at - 1 };
            return Err(Failure::At(scope.error(index, format!("{end} without its opening directive"))));
        }
        if let Some((unused, ..)) = scope.params.iter().find(|(.., used)| !used.get()) {
            return Err(Failure::Caller(format!("{name} never uses the name {unused} given to it")));
        }
        for (param, value, _) in &scope.params {
            if let Some(register) = registers_in(value).find(|r| scope.declared.iter().any(|d| d == r)) {
                return Err(Failure::Caller(format!(
                    "{name} declares {register}, which shadows the register passed as {param}"
                )));
            }
        }
        Ok(())
    }

    /// Renders lines until the file or an enclosing directive ends; returns the word that ended it.
    fn block(
        &mut self,
        scope: &mut Scope<'_>,
        at: &mut usize,
        emit: bool,
    ) -> Result<Option<&'static str>, TemplateError> {
        while *at < scope.lines.len() {
            let index = *at;
            let line = scope.lines[index].1.clone();
            *at += 1;
            self.lines += 1;
            if self.lines > MAX_LINES || self.out.len() > MAX_TEXT {
                let limit = format!("{MAX_LINES} lines or {MAX_TEXT} bytes");
                return Err(scope.error(index, format!("more than {limit}: repeats within repeats?")));
            }
            let trimmed = line.trim_start();
            let Some(directive) = trimmed.strip_prefix('#') else {
                if emit {
                    let text = scope.substitute(index, &line)?;
                    scope.declared.extend(declared_registers(&text));
                    self.out.push_str(&text);
                    self.out.push('\n');
                } else {
                    scope.touch(&line);
                }
                continue;
            };
            let (word, rest) = directive.split_once(char::is_whitespace).unwrap_or((directive, ""));
            match word {
                "include" => self.include(scope, index, rest, emit)?,
                "if" => self.condition(scope, at, index, rest, emit)?,
                "repeat" => self.repeat(scope, at, index, rest, emit)?,
                "elif" => {
                    *at = index; // the opening `#if` reads the expression
                    return Ok(Some("#elif"));
                }
                "else" => return Ok(Some("#else")),
                "endif" => return Ok(Some("#endif")),
                "end" => return Ok(Some("#end")),
                _ => return Err(scope.error(index, format!("unknown directive #{word}"))),
            }
        }
        Ok(None)
    }

    fn condition(
        &mut self,
        scope: &mut Scope<'_>,
        at: &mut usize,
        opened: usize,
        first: &str,
        emit: bool,
    ) -> Result<(), TemplateError> {
        let mut expression = first.to_owned();
        let mut index = opened;
        let mut taken = false;
        loop {
            let holds = if emit && !taken {
                expr::condition(&expression, &|name| scope.value(name)).map_err(|m| scope.error(index, m))?
            } else {
                scope.touch_names(&expression);
                false
            };
            taken |= holds;
            match self.block(scope, at, emit && holds)? {
                Some("#endif") => return Ok(()),
                Some("#else") => break,
                Some("#elif") => {
                    index = *at;
                    expression = scope.lines[index].1.trim_start()["#elif".len()..].to_owned();
                    *at += 1;
                }
                _ => return Err(scope.error(opened, "#if without #endif".to_owned())),
            }
        }
        match self.block(scope, at, emit && !taken)? {
            Some("#endif") => Ok(()),
            _ => Err(scope.error(opened, "#else without #endif".to_owned())),
        }
    }

    fn repeat(
        &mut self,
        scope: &mut Scope<'_>,
        at: &mut usize,
        opened: usize,
        rest: &str,
        emit: bool,
    ) -> Result<(), TemplateError> {
        let Some((count, variable)) = rest.trim().rsplit_once(char::is_whitespace) else {
            return Err(scope.error(opened, "expected: #repeat COUNT name".to_owned()));
        };
        let count = if emit {
            expr::integer(count, &|name| scope.value(name)).map_err(|m| scope.error(opened, m))?
        } else {
            scope.touch_names(count);
            0
        };
        if count > MAX_REPEAT {
            return Err(scope.error(opened, format!("#repeat {count} exceeds {MAX_REPEAT}")));
        }
        let body = *at;
        // A count of zero still walks the body once, silently, to find its end.
        for turn in 0..count.max(1) {
            *at = body;
            scope.repeats.push((variable.to_owned(), turn));
            let end = self.block(scope, at, emit && count > 0)?;
            scope.repeats.pop();
            if end != Some("#end") {
                return Err(scope.error(opened, "#repeat without #end".to_owned()));
            }
        }
        Ok(())
    }

    fn include(
        &mut self,
        scope: &mut Scope<'_>,
        index: usize,
        rest: &str,
        emit: bool,
    ) -> Result<(), TemplateError> {
        if !emit {
            scope.touch(rest);
            return Ok(());
        }
        let text = scope.substitute(index, rest)?;
        let mut words = text.split_whitespace();
        let Some(name) = words.next().and_then(|w| w.strip_prefix('"')).and_then(|w| w.strip_suffix('"'))
        else {
            return Err(scope.error(index, "expected: #include \"file.ptxi\" NAME=value ...".to_owned()));
        };
        let mut params = Vec::new();
        for word in words {
            match word.split_once('=') {
                Some((n, v)) if !n.is_empty() && !v.is_empty() => params.push((n.to_owned(), v.to_owned())),
                _ => return Err(scope.error(index, format!("expected NAME=value, found {word}"))),
            }
        }
        if self.depth == MAX_DEPTH {
            return Err(scope.error(index, format!("includes nest deeper than {MAX_DEPTH}: a cycle?")));
        }
        self.depth += 1;
        let result = self.file(name, &params, true);
        self.depth -= 1;
        result.map_err(|failure| match failure {
            Failure::At(error) => error,
            Failure::Caller(message) => scope.error(index, message),
        })
    }
}

impl Scope<'_> {
    fn error(&self, index: usize, message: String) -> TemplateError {
        TemplateError { file: self.file.to_owned(), line: self.lines[index].0, message }
    }

    fn value(&self, name: &str) -> Option<String> {
        if let Some((_, turn)) = self.repeats.iter().rev().find(|(n, _)| n == name) {
            return Some(turn.to_string());
        }
        if let Some((_, value, used)) = self.params.iter().find(|(n, ..)| *n == name) {
            used.set(true);
            return Some((*value).to_owned());
        }
        self.globals.iter().find(|(n, _)| n == name).map(|(_, value)| value.to_string())
    }

    fn substitute(&self, index: usize, line: &str) -> Result<String, TemplateError> {
        let mut out = String::with_capacity(line.len());
        let mut rest = line;
        while let Some((before, after)) = rest.split_once("${") {
            let Some((inside, tail)) = after.split_once('}') else {
                return Err(self.error(index, "${ without }".to_owned()));
            };
            out.push_str(before);
            let name = inside.trim();
            if expr::is_name(name) {
                let unknown = || self.error(index, format!("unknown name {name}"));
                out.push_str(&self.value(name).ok_or_else(unknown)?);
            } else {
                let value = expr::integer(name, &|n| self.value(n)).map_err(|m| self.error(index, m))?;
                out.push_str(&value.to_string());
            }
            rest = tail;
            if out.len() > MAX_LINE {
                return Err(self.error(index, format!("a line of more than {MAX_LINE} bytes")));
            }
        }
        out.push_str(rest);
        Ok(out)
    }

    /// Marks the names of every `${...}` in a line that is skipped.
    fn touch(&self, line: &str) {
        for part in line.split("${").skip(1) {
            self.touch_names(part.split('}').next().unwrap_or(part));
        }
    }

    fn touch_names(&self, text: &str) {
        for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            let _ = self.value(word);
        }
    }
}

/// Lines with their numbers, directives joined over trailing `\`, without the head comment if `skip_head`.
fn logical_lines(text: &str, skip_head: bool) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut head = skip_head;
    let mut open = false;
    for (index, line) in text.lines().enumerate() {
        head &= line.starts_with("//") || line.trim().is_empty();
        if head {
            continue;
        }
        let (part, continues) = match line.strip_suffix('\\') {
            Some(part) if open || line.trim_start().starts_with('#') => (part, true),
            _ => (line, false),
        };
        match lines.last_mut().filter(|_| open) {
            Some((_, joined)) => joined.push_str(part),
            None => lines.push((index + 1, part.to_owned())),
        }
        open = continues;
    }
    lines
}

/// Names declared by a `.reg` line.
fn declared_registers(line: &str) -> impl Iterator<Item = String> + '_ {
    let line = line.split("//").next().unwrap_or("").trim();
    let names = line.strip_prefix(".reg").unwrap_or("");
    registers_in(names).map(str::to_owned)
}

fn registers_in(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '%' | '$'))
        .filter(|word| word.starts_with('%'))
}

#[cfg(test)]
mod tests;
