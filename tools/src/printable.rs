//! Names out of plan files, fit for a terminal.

/// The text with every character escaped that a terminal would obey or not show: a plan's author may have named it anything.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\'' | '\\' => out.push(c),
            c => out.extend(c.escape_debug()),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_escaped() {
        assert_eq!(printable("\"all\" réduire 全て's \\ plan"), "\"all\" réduire 全て's \\ plan");
        assert_eq!(printable("a\x1b[31mb\n\r\0\u{202e}\u{9b}c"), r"a\u{1b}[31mb\n\r\0\u{202e}\u{9b}c");
    }
}
