//! The contract block of a fragment, read by machine.
//!
//! The names of `// param:` and `// const:` lines are what an `#include` binds, and what an operation of the device
//! library finds in handles and arguments. Types: `addr` (a global address), `u32`, `u64`, `f32`, or a constant's
//! `${NAME}`; a parameter of any other type (`label`, `pred`, `text`) makes a fragment one that can only be inlined.

use crate::sources;

/// A fragment's contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Name: the file's, without its ending.
    pub name: String,
    /// File under `kernels/inc/`.
    pub file: String,
    /// Its effect, from the contract.
    pub doc: Vec<String>,
    /// Parameters in order.
    pub params: Vec<FragmentParam>,
    /// Constants, each with its allowed values.
    pub consts: Vec<FragmentConst>,
    /// The `threads:`, `reads:`, `writes:` and `sync:` lines.
    pub notes: Vec<String>,
}

/// A register (or, for fragments that are only inlined, a text) passed to a fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FragmentParam {
    /// Template name.
    pub name: String,
    /// Type as written.
    pub ty: String,
    /// Whether the fragment reads it, writes it, or both.
    pub direction: Direction,
    /// Its meaning, from the contract.
    pub doc: String,
}

/// Direction of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Read only.
    In,
    /// Written only.
    Out,
    /// Read and written.
    InOut,
}

/// A compile-time parameter of a fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FragmentConst {
    /// Template name.
    pub name: String,
    /// Values for which the other forms are made; several give one function each, the value in its name.
    pub values: Vec<String>,
}

/// One choice of constants: `(name, value)` pairs and the suffix they give to names.
#[derive(Clone, Debug)]
pub(crate) struct Variant {
    pub(crate) consts: Vec<(String, String)>,
    pub(crate) suffix: String,
}

impl Fragment {
    /// Every fragment, in alphabetical order.
    ///
    /// # Errors
    /// The first contract that cannot be read, as a sentence with file and line.
    pub fn all() -> Result<Vec<Self>, String> {
        sources::fragments().map(|(file, text)| Self::parse(file, text)).collect()
    }

    fn parse(file: &str, text: &str) -> Result<Self, String> {
        let name = file.strip_suffix(".ptxi").unwrap_or(file).to_owned();
        let mut fragment =
            Self { name, file: file.to_owned(), doc: vec![], params: vec![], consts: vec![], notes: vec![] };
        for (index, line) in text.lines().enumerate() {
            let Some(line) = line.strip_prefix("//") else { break };
            let fail = |what: &str| Err(format!("{file}:{}: {what}", index + 1));
            let line = line.trim();
            match line.split_once(':').map(|(key, rest)| (key, rest.trim())) {
                Some(("fragment", name)) if name == fragment.name => {}
                Some(("fragment", name)) => {
                    return fail(&format!("the fragment of this file is called {name}"));
                }
                Some(("param", rest)) => match parse_param(rest) {
                    Some(param) => fragment.params.push(param),
                    None => return fail("expected: param: NAME type in|out|inout text"),
                },
                Some(("const", rest)) => {
                    let mut words = rest.split_whitespace();
                    let (Some(name), Some(values)) = (words.next(), words.next()) else {
                        return fail("expected: const: NAME value|value text");
                    };
                    let values = values.split('|').map(str::to_owned).collect();
                    fragment.consts.push(FragmentConst { name: name.to_owned(), values });
                }
                Some(("threads" | "reads" | "writes" | "sync", _)) => fragment.notes.push(line.to_owned()),
                _ if fragment.params.is_empty() => fragment.doc.push(line.to_owned()),
                _ => return fail("free text belongs before the first parameter"),
            }
        }
        if fragment.doc.is_empty() {
            return Err(format!("{file}:1: no contract block"));
        }
        Ok(fragment)
    }

    /// Whether all parameters are registers that a function can take: an operation of the device library can be made
    /// of it.
    pub fn is_exported(&self) -> bool {
        let register = |ty: &str| matches!(ty, "addr" | "u32" | "u64" | "f32") || ty.starts_with("${");
        self.params.iter().all(|param| register(&param.ty))
    }

    /// The parameter called `name`.
    pub fn param(&self, name: &str) -> Option<&FragmentParam> {
        self.params.iter().find(|param| param.name == name)
    }

    /// Every combination of constants.
    pub(crate) fn variants(&self) -> Vec<Variant> {
        let mut variants = vec![Variant { consts: vec![], suffix: String::new() }];
        for constant in &self.consts {
            let named = constant.values.len() > 1;
            variants = variants
                .iter()
                .flat_map(|variant| {
                    constant.values.iter().map(move |value| {
                        let mut next = variant.clone();
                        next.consts.push((constant.name.clone(), value.clone()));
                        if named {
                            next.suffix = format!("{}_{value}", next.suffix);
                        }
                        next
                    })
                })
                .collect();
        }
        variants
    }
}

impl FragmentParam {
    /// PTX type of its register, the variant's constants put in.
    pub(crate) fn register(&self, variant: &Variant) -> String {
        let find =
            |name: &str| variant.consts.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone());
        let constant = self.ty.strip_prefix("${").and_then(|ty| ty.strip_suffix('}'));
        let ty = constant.and_then(find).unwrap_or_else(|| self.ty.clone());
        if ty == "addr" { "u64".to_owned() } else { ty }
    }
}

fn parse_param(text: &str) -> Option<FragmentParam> {
    let mut words = text.split_whitespace();
    let (name, ty) = (words.next()?, words.next()?);
    let rest: Vec<&str> = words.collect();
    let direction = match *rest.first()? {
        "in" => Direction::In,
        "out" => Direction::Out,
        "inout" => Direction::InOut,
        _ => return None,
    };
    Some(FragmentParam { name: name.to_owned(), ty: ty.to_owned(), direction, doc: rest[1..].join(" ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contract_can_be_read() {
        let fragments = Fragment::all().unwrap();
        let wait = fragments.iter().find(|f| f.name == "sem_wait").unwrap();
        assert!(wait.is_exported());
        assert_eq!(wait.params[0].name, "INBOUND");
        assert_eq!(wait.params.last().unwrap().direction, Direction::InOut);
        assert!(!fragments.iter().find(|f| f.name == "spin").unwrap().is_exported());
    }

    #[test]
    fn a_bad_contract_is_named_by_line() {
        let error =
            Fragment::parse("x.ptxi", "// fragment: x\n// does it\n// param: A u32 sideways\n").unwrap_err();
        assert_eq!(error, "x.ptxi:3: expected: param: NAME type in|out|inout text");
        assert!(Fragment::parse("x.ptxi", "// fragment: y\n").unwrap_err().starts_with("x.ptxi:1:"));
        assert!(Fragment::parse("x.ptxi", "{\n}\n").is_err());
    }

    #[test]
    fn constants_multiply() {
        let text = "// fragment: x\n// does it\n// const: T u64|u32 type\n// const: N 4 count\n{\n}\n";
        let names: Vec<_> =
            Fragment::parse("x.ptxi", text).unwrap().variants().into_iter().map(|v| v.suffix).collect();
        assert_eq!(names, ["_u64", "_u32"]);
    }
}
