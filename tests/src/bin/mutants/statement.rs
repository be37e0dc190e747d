//! One statement of a PTX template, taken apart as far as a mutation needs.

/// A statement or a directive, which may reach over several lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Statement {
    /// Of its first line, from 1.
    pub(crate) line: usize,
    pub(crate) lines: usize,
    /// Without comment, on one line.
    pub(crate) text: String,
    /// Leading blanks, and the guard (`@%p `) if there is one.
    pub(crate) head: String,
    /// The operation's parts: `ld`, `acquire`, `sys`, `global`, `u64`.
    pub(crate) parts: Vec<String>,
    pub(crate) operands: Vec<String>,
}

/// Every statement of `source` that does something: no declarations, labels, comments, nor conditions of the template.
pub(crate) fn statements(source: &str) -> Vec<Statement> {
    let lines: Vec<&str> = source.lines().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let first = at;
        let include = lines[at].trim_start().starts_with("#include");
        let mut text = code(lines[at]).to_owned();
        at += 1;
        let open = |text: &str| {
            if include { text.ends_with('\\') } else { is_operation(text) && !text.ends_with(';') }
        };
        while open(&text) && at < lines.len() {
            text = format!("{} {}", text.trim_end_matches('\\').trim_end(), code(lines[at]).trim_start());
            at += 1;
        }
        if include || (is_operation(&text) && text.ends_with(';')) {
            found.push(parse(first + 1, at - first, &text));
        }
    }
    found
}

fn parse(line: usize, lines: usize, text: &str) -> Statement {
    let trimmed = text.trim_start();
    let mut head = text[..text.len() - trimmed.len()].to_owned();
    let mut rest = trimmed.trim_end_matches(';');
    if is_guard(rest) {
        let (guard, after) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        head.push_str(guard);
        head.push(' ');
        rest = after.trim_start();
    }
    let (operation, operands) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let parts = operation.split('.').map(str::to_owned).collect();
    Statement { line, lines, text: text.to_owned(), head, parts, operands: split(operands) }
}

/// The line without its comment and trailing blanks.
fn code(line: &str) -> &str {
    line.split_once("//").map_or(line, |(code, _)| code).trim_end()
}

/// Whether an operation begins with a predicate, or with the name of one that a call passes to its fragment.
fn is_guard(text: &str) -> bool {
    text.starts_with('@') || text.starts_with("${IF} ")
}

fn is_operation(text: &str) -> bool {
    let text = text.trim_start();
    is_guard(text) || (text.starts_with(|c: char| c.is_ascii_lowercase()) && !text.ends_with(':'))
}

/// Operands, split at the commas outside braces and brackets.
fn split(text: &str) -> Vec<String> {
    let mut operands = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                operands.push(text[start..at].trim().to_owned());
                start = at + 1;
            }
            _ => {}
        }
    }
    operands.push(text[start..].trim().to_owned());
    operands.retain(|operand| !operand.is_empty());
    operands
}

/// The names of registers and parameters in an operand: `%x`, `X` of `${X}`; not the indices of repetitions, which are small
/// letters.
pub(crate) fn names(operand: &str) -> impl Iterator<Item = &str> {
    let word = |c: char| !(c.is_ascii_alphanumeric() || "_%".contains(c));
    operand.split(word).filter(|name| name.starts_with(|c: char| c == '%' || c.is_ascii_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_joined_and_taken_apart() {
        let source = "// head\n{\n    .reg .u32 %x;\nWAIT:\n    @!%p ld.acquire.sys.global.u64 %x, [${A}+${B+8}]; // why\n\
                      \tatom.cas.b32 %y, [%a],\n        0, 1;\n#if X == 1\n    #include \"spin.ptxi\" A=%a \\\n        B=%b\n#endif\n}\n";
        let found = statements(source);
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!((found[0].line, found[0].lines, found[0].head.as_str()), (5, 1, "    @!%p "));
        assert_eq!(found[0].parts, ["ld", "acquire", "sys", "global", "u64"]);
        assert_eq!(found[0].operands, ["%x", "[${A}+${B+8}]"]);
        assert_eq!((found[1].line, found[1].lines), (6, 2));
        assert_eq!(found[1].operands, ["%y", "[%a]", "0", "1"]);
        assert_eq!((found[2].line, found[2].lines, found[2].parts[0].as_str()), (9, 2, "#include"));
    }

    #[test]
    fn vectors_are_one_operand() {
        assert_eq!(split("{%a, %b}, [%c+4]"), ["{%a, %b}", "[%c+4]"]);
        assert_eq!(names("{%a${k}, ${FLAG}}").collect::<Vec<_>>(), ["%a", "FLAG"]);
    }
}
