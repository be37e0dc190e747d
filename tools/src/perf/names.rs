//! Names of element types and reductions on the command line.

use aqueduct::plan::{Element, Reduction};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// In the order of nccl-tests.
const TYPES: [Element; 12] = [
    Element::I8,
    Element::U8,
    Element::I32,
    Element::U32,
    Element::I64,
    Element::U64,
    Element::F16,
    Element::F32,
    Element::F64,
    Element::Bf16,
    Element::F8E4m3,
    Element::F8E5m2,
];

/// The element types, by the names of nccl-tests and, not shown by `--help`, by other usual ones.
pub(super) fn types() -> impl TypedValueParser<Value = Element> {
    let shown = |ty: Element| PossibleValue::new(names(ty)[0]).aliases(&names(ty)[1..]);
    PossibleValuesParser::new(TYPES.map(shown)).try_map(|text| {
        let chosen = TYPES.into_iter().find(|ty| names(*ty).contains(&text.as_str()));
        chosen.ok_or_else(|| format!("unknown element type {text}"))
    })
}

/// The names of a type, that of nccl-tests first.
pub(crate) const fn names(ty: Element) -> &'static [&'static str] {
    match ty {
        Element::I8 => &["int8", "i8", "char"],
        Element::U8 => &["uint8", "u8"],
        Element::I32 => &["int32", "int", "i32"],
        Element::U32 => &["uint32", "uint", "u32"],
        Element::I64 => &["int64", "i64"],
        Element::U64 => &["uint64", "u64"],
        Element::F16 => &["half", "float16", "f16"],
        Element::F32 => &["float", "float32", "f32"],
        Element::F64 => &["double", "float64", "f64"],
        Element::Bf16 => &["bfloat16", "bf16"],
        Element::F8E4m3 => &["f8e4m3", "fp8_e4m3", "e4m3"],
        Element::F8E5m2 => &["f8e5m2", "fp8_e5m2", "e5m2"],
    }
}

/// The reductions, by name.
pub(super) fn reductions() -> impl TypedValueParser<Value = Reduction> {
    PossibleValuesParser::new(Reduction::ALL.map(Reduction::name)).try_map(|text| {
        let chosen = Reduction::ALL.into_iter().find(|op| op.name() == text);
        chosen.ok_or_else(|| format!("unknown reduction {text}"))
    })
}
