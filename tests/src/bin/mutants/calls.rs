//! Mutants of the calls that compose the kernels of plans from fragments (`ptx/src/plan`). All text stands in fragments, but
//! such a call decides whether a barrier, a wait or a look at a status is there.
//!
//! | kind | change |
//! |---|---|
//! | `part` | the call adds nothing |
//! | `choice` | a constant that depends on a condition is 0 |

use std::ops::Range;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Expr, ExprMethodCall};

use crate::rules::Mutant;

/// All mutants of the Rust source `file`.
pub(crate) fn mutants(file: &str, source: &str) -> Vec<Mutant> {
    let parsed = syn::parse_file(source).unwrap_or_else(|e| panic!("{file}: {e}"));
    let mut calls = Calls { source, found: Vec::new() };
    calls.visit_file(&parsed);
    let mut found: Vec<Mutant> = Vec::new();
    for call in calls.found {
        let place = format!("{file}:{}", call.line);
        let left_out = ("part", "part".to_owned(), String::new());
        let without = |name: &String| ("choice", format!("choice-{name}"), format!("{name}=0"));
        for (kind, suffix, new) in [left_out].into_iter().chain(call.choices.iter().map(without)) {
            let name = format!("{place}:{suffix}");
            let tail = format!(":{suffix}");
            let same = |other: &&Mutant| other.old == call.text && other.name.ends_with(&tail);
            let nth = 1 + found.iter().filter(same).count();
            let (place, old) = (Some(place.clone()), call.text.clone());
            found.push(Mutant {
                name,
                file: file.to_owned(),
                kind,
                line: call.line,
                lines: 1,
                nth,
                old,
                new,
                place,
            });
        }
    }
    found
}

/// A call that adds a fragment.
struct Call {
    line: usize,
    text: String,
    /// Constants that are `u32::from` of a condition.
    choices: Vec<String>,
}

struct Calls<'s> {
    source: &'s str,
    found: Vec<Call>,
}

impl Calls<'_> {
    fn text(&self, range: Range<usize>) -> String {
        self.source[range].split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// The name and whether its value is a condition, for a pair of a name and a value.
    fn choice(&self, pair: &Expr) -> Option<String> {
        let Expr::Tuple(pair) = pair else { return None };
        let name = self.text(pair.elems.first()?.span().byte_range());
        let value = self.text(pair.elems.get(1)?.span().byte_range());
        value.starts_with("&u32::from(").then(|| name.trim_matches('"').to_owned())
    }
}

impl<'ast> Visit<'ast> for Calls<'_> {
    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        if call.method == "include" {
            let arguments = call.args.first().map_or(0, |first| first.span().byte_range().start);
            let text = self.text(arguments..call.paren_token.span.close().byte_range().start);
            let mut choices = Vec::new();
            if let Some(Expr::Reference(list)) = call.args.get(1)
                && let Expr::Array(list) = &*list.expr
            {
                choices.extend(list.elems.iter().filter_map(|pair| self.choice(pair)));
            }
            // `Location::caller` has the place of the method's name.
            self.found.push(Call { line: call.method.span().start().line, text, choices });
        }
        visit::visit_expr_method_call(self, call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_left_out_and_its_conditions_are_not_met() {
        let source = "fn f(text: &mut Text) {\n    text.include(\n        \"plan_sync\",\n        &[(\"ASKS\", &u32::from(gave_up)), (\"THREADS\", &threads)],\n    );\n    text\n        .include(\"plan_end\", &[]);\n}\n";
        let found: Vec<_> =
            mutants("plan/x.rs", source).into_iter().map(|m| (m.name, m.place.unwrap(), m.new)).collect();
        let expected = [
            ("plan/x.rs:2:part", "plan/x.rs:2", ""),
            ("plan/x.rs:2:choice-ASKS", "plan/x.rs:2", "ASKS=0"),
            ("plan/x.rs:7:part", "plan/x.rs:7", ""),
        ];
        assert_eq!(found, expected.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned())));
    }
}
