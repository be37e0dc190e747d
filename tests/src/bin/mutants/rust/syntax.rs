//! Where the mutants of one source stand in its syntax, and how each can be planted there.

use std::collections::HashMap;
use std::ops::Range;

use proc_macro2::{LineColumn, Span, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// How a mutant is planted. Ranges are bytes of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// An early return at the beginning of a function's body.
    Body(Range<usize>),
    /// Another expression instead of that in the range.
    Expression(Range<usize>, String),
    /// A condition of an arm of the match `whole`: in front of its guard, or where a guard can stand.
    Arm { guard: Option<Range<usize>>, behind: usize, whole: Range<usize> },
    /// It cannot be chosen at run time, for this reason.
    Nowhere(&'static str),
}

/// The nodes of a source that mutants change, by the position where the mutant's span begins; functions by their end.
#[derive(Default)]
pub(super) struct Nodes {
    source: String,
    functions: HashMap<(usize, usize), Range<usize>>,
    operators: HashMap<(usize, usize), Operator>,
    arms: HashMap<(usize, usize), Place>,
    guards: HashMap<(usize, usize), Range<usize>>,
    fields: HashMap<(usize, usize), (Range<usize>, Range<usize>)>,
    /// Constant expressions, which the compiler evaluates.
    constants: Vec<Range<usize>>,
    /// First and last lines of modules of tests whose condition cargo-mutants does not understand.
    tests: Vec<Range<usize>>,
}

struct Operator {
    whole: Range<usize>,
    left: Option<Range<usize>>,
    right: Range<usize>,
    /// A part is a `let` of a condition.
    binds: bool,
}

/// A mutant as cargo-mutants describes it.
pub(super) struct Wanted<'a> {
    pub(super) kind: &'a str,
    pub(super) start: (usize, usize),
    pub(super) function_end: Option<(usize, usize)>,
    pub(super) replacement: &'a str,
}

impl Nodes {
    pub(super) fn parse(source: &str) -> syn::Result<Self> {
        let file = syn::parse_file(source)?;
        let mut nodes = Self { source: source.to_owned(), ..Self::default() };
        nodes.visit_file(&file);
        Ok(nodes)
    }

    /// Whether a line is that of a test.
    pub(super) fn is_test(&self, line: usize) -> bool {
        self.tests.iter().any(|lines| lines.contains(&line))
    }

    /// Where `wanted` is planted, and the text that it changes, if that says more than its description.
    pub(super) fn place(&self, wanted: &Wanted<'_>) -> (Place, String) {
        let text = |range: &Range<usize>| {
            self.source[range.clone()].split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let unknown = (Place::Nowhere("its expression was not found"), String::new());
        let (place, old) = match wanted.kind {
            "FnValue" => match wanted.function_end.and_then(|end| self.functions.get(&end)) {
                Some(body) => (Place::Body(body.clone()), String::new()),
                None => return unknown,
            },
            "BinaryOperator" | "UnaryOperator" => match self.operators.get(&wanted.start) {
                Some(operator) if operator.binds => {
                    return (Place::Nowhere("a condition with `let` has only `&&`"), text(&operator.whole));
                }
                Some(Operator { whole, left, right, .. }) => {
                    let right = &self.source[right.clone()];
                    let new = match left {
                        Some(left) => {
                            let left = &self.source[left.clone()];
                            format!("({left}) {} ({right})", wanted.replacement)
                        }
                        None => format!("({right})"),
                    };
                    (Place::Expression(whole.clone(), new), text(whole))
                }
                None => return unknown,
            },
            "MatchArmGuard" => match self.guards.get(&wanted.start) {
                Some(range) => {
                    (Place::Expression(range.clone(), wanted.replacement.to_owned()), String::new())
                }
                None => return unknown,
            },
            "MatchArm" => match self.arms.get(&wanted.start) {
                Some(place) => (place.clone(), String::new()),
                None => return unknown,
            },
            "StructField" => match self.fields.get(&wanted.start) {
                Some((whole, field)) => {
                    let new = [&self.source[whole.start..field.start], &self.source[field.end..whole.end]];
                    (Place::Expression(whole.clone(), new.concat()), String::new())
                }
                None => return unknown,
            },
            _ => return unknown,
        };
        let at = match &place {
            Place::Arm { behind: at, .. } => *at,
            Place::Body(range) | Place::Expression(range, _) => range.start,
            Place::Nowhere(_) => return (place, old),
        };
        if self.constants.iter().any(|constant| constant.contains(&at)) {
            return (Place::Nowhere("the compiler evaluates it"), old);
        }
        (place, old)
    }

    fn constant(&mut self, span: Span) {
        self.constants.push(span.byte_range());
    }

    /// Notes the lines of an item that only tests are built with. cargo-mutants itself knows no condition but `cfg(test)`.
    fn skip_of_tests(&mut self, attributes: &[syn::Attribute], span: Span) {
        let condition = |attribute: &syn::Attribute| match &attribute.meta {
            syn::Meta::List(list) if list.path.is_ident("cfg") => {
                list.tokens.clone().into_iter().any(|token| match token {
                    TokenTree::Group(all) => {
                        all.stream().into_iter().any(|token| token.to_string() == "test")
                    }
                    _ => false,
                })
            }
            _ => false,
        };
        if attributes.iter().any(condition) {
            self.tests.push(span.start().line..span.end().line + 1);
        }
    }

    fn function(&mut self, block: &syn::Block) {
        let braces = block.brace_token.span;
        let body = braces.open().byte_range().end..braces.close().byte_range().start;
        self.functions.insert(position(braces.close().end()), body);
    }
}

/// Line and column, both from 1.
fn position(at: LineColumn) -> (usize, usize) {
    (at.line, at.column + 1)
}

fn start(span: Span) -> (usize, usize) {
    position(span.start())
}

/// Whether a condition has a `let` outside of parentheses.
fn binds(condition: &syn::Expr) -> bool {
    match condition {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) => binds(&binary.left) || binds(&binary.right),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Nodes {
    fn visit_expr_binary(&mut self, node: &'ast syn::ExprBinary) {
        let operator = Operator {
            whole: node.span().byte_range(),
            left: Some(node.left.span().byte_range()),
            right: node.right.span().byte_range(),
            binds: binds(&node.left) || binds(&node.right),
        };
        self.operators.insert(start(node.op.span()), operator);
        visit::visit_expr_binary(self, node);
    }

    fn visit_expr_unary(&mut self, node: &'ast syn::ExprUnary) {
        let right = node.expr.span().byte_range();
        let operator = Operator { whole: node.span().byte_range(), left: None, right, binds: false };
        self.operators.insert(start(node.op.span()), operator);
        visit::visit_expr_unary(self, node);
    }

    fn visit_expr_match(&mut self, node: &'ast syn::ExprMatch) {
        for arm in &node.arms {
            let guard = arm.guard.as_ref().map(|(_, guard)| guard.span().byte_range());
            if let Some((_, guard)) = &arm.guard {
                self.guards.insert(start(guard.span()), guard.span().byte_range());
            }
            let (behind, whole) = (arm.pat.span().byte_range().end, node.span().byte_range());
            self.arms.insert(start(arm.span()), Place::Arm { guard, behind, whole });
        }
        visit::visit_expr_match(self, node);
    }

    fn visit_expr_struct(&mut self, node: &'ast syn::ExprStruct) {
        let whole = node.span().byte_range();
        for pair in node.fields.pairs() {
            let field = pair.value().span().byte_range();
            let end = pair.punct().map_or(field.end, |comma| comma.span().byte_range().end);
            self.fields.insert(start(pair.value().span()), (whole.clone(), field.start..end));
        }
        visit::visit_expr_struct(self, node);
    }

    fn visit_item_mod(&mut self, node: &'ast syn::ItemMod) {
        self.skip_of_tests(&node.attrs, node.span());
        visit::visit_item_mod(self, node);
    }

    fn visit_item_fn(&mut self, node: &'ast syn::ItemFn) {
        self.skip_of_tests(&node.attrs, node.span());
        self.function(&node.block);
        visit::visit_item_fn(self, node);
    }

    fn visit_impl_item_fn(&mut self, node: &'ast syn::ImplItemFn) {
        self.skip_of_tests(&node.attrs, node.span());
        self.function(&node.block);
        visit::visit_impl_item_fn(self, node);
    }

    fn visit_trait_item_fn(&mut self, node: &'ast syn::TraitItemFn) {
        if let Some(block) = &node.default {
            self.function(block);
        }
        visit::visit_trait_item_fn(self, node);
    }

    fn visit_item_const(&mut self, node: &'ast syn::ItemConst) {
        self.constant(node.expr.span());
        visit::visit_item_const(self, node);
    }

    fn visit_item_static(&mut self, node: &'ast syn::ItemStatic) {
        self.constant(node.expr.span());
        visit::visit_item_static(self, node);
    }

    fn visit_impl_item_const(&mut self, node: &'ast syn::ImplItemConst) {
        self.constant(node.expr.span());
        visit::visit_impl_item_const(self, node);
    }

    fn visit_trait_item_const(&mut self, node: &'ast syn::TraitItemConst) {
        self.constant(node.span());
        visit::visit_trait_item_const(self, node);
    }

    fn visit_expr_const(&mut self, node: &'ast syn::ExprConst) {
        self.constant(node.span());
        visit::visit_expr_const(self, node);
    }

    fn visit_expr_repeat(&mut self, node: &'ast syn::ExprRepeat) {
        self.constant(node.len.span());
        visit::visit_expr_repeat(self, node);
    }

    fn visit_type_array(&mut self, node: &'ast syn::TypeArray) {
        self.constant(node.len.span());
        visit::visit_type_array(self, node);
    }

    fn visit_variant(&mut self, node: &'ast syn::Variant) {
        if let Some((_, value)) = &node.discriminant {
            self.constant(value.span());
        }
        visit::visit_variant(self, node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str =
        "fn f(a: u32, b: u32) -> u32 {\n    if !(a == b) { a + b } else { 0 }\n}\nconst N: u32 = 1 << 3;\n";

    fn wanted(kind: &str, start: (usize, usize), replacement: &str) -> (Place, String) {
        let wanted = Wanted { kind, start, function_end: Some((3, 2)), replacement };
        Nodes::parse(SOURCE).unwrap().place(&wanted)
    }

    #[test]
    fn every_kind_has_its_place() {
        assert_eq!(wanted("FnValue", (2, 5), "0").0, Place::Body(29..68));
        let sum = Place::Expression(49..54, "(a) * (b)".to_owned());
        assert_eq!(wanted("BinaryOperator", (2, 22), "*"), (sum, "a + b".to_owned()));
        let not = Place::Expression(37..46, "((a == b))".to_owned());
        assert_eq!(wanted("UnaryOperator", (2, 8), "").0, not);
        assert!(matches!(wanted("BinaryOperator", (4, 18), ">>").0, Place::Nowhere(_)));
    }

    #[test]
    fn modules_and_functions_of_tests_are_known() {
        for item in ["mod tests {\n}", "fn f() {\n}"] {
            let source = format!("fn f() {{}}\n#[cfg(all(test, not(loom)))]\n{item}\nfn g() {{}}\n");
            let nodes = Nodes::parse(&source).unwrap();
            assert_eq!([1, 2, 4].map(|line| nodes.is_test(line)), [false, true, true], "{source}");
            assert!(!nodes.is_test(source.lines().count()), "{source}");
        }
        let nodes =
            Nodes::parse("impl S {\nfn f(&self) {}\n#[cfg(all(test, x))]\nfn g(&self) {\n}\n}\n").unwrap();
        assert_eq!([2, 3, 5, 6].map(|line| nodes.is_test(line)), [false, true, true, false]);
    }
}
