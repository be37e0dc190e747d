//! Operations that a user's kernel can call. Each is one fragment whose parameters come from handles and arguments.

use crate::abi::{STRUCTS, StructLayout, symbol};
use crate::fragment::{Direction, Fragment, FragmentParam, Variant};
use crate::{TemplateError, failure};

/// A row of the device library. From it come a PTX function and a C++ function for every variant of the fragment.
pub(super) struct Operation {
    /// The function is `aqueduct_<name>` in C++ and `aqueduct_device_<name>` in PTX, followed by the suffix of the
    /// fragment's variant.
    pub(super) name: &'static str,
    /// Its documentation, one string per line.
    pub(super) does: &'static [&'static str],
    /// The fragment that does it.
    pub(super) fragment: &'static str,
    /// Its arguments in order.
    pub(super) takes: &'static [Argument],
    /// Values of the fragment's parameters that do not come from their [`usual`] place: sums of paths, constants of the
    /// ABI and numbers, as in `dst + dst_offset`.
    pub(super) with: &'static [(&'static str, &'static str)],
    /// The fragment's results that it returns. In C++ the first is the return value, the others are references.
    pub(super) gives: &'static [Given],
}

/// An argument of an operation.
#[derive(Clone, Copy)]
pub(super) struct Argument {
    pub(super) name: &'static str,
    pub(super) ty: Type,
    pub(super) doc: &'static str,
}

/// The type of an [`Argument`].
#[derive(Clone, Copy)]
pub(super) enum Type {
    U32,
    U64,
    /// Type and documentation are those of the fragment's parameter of this name.
    Same,
    /// An address: a pointer in C++, a global address in PTX.
    Address,
    /// A structure that lies somewhere: a reference in C++, a generic address in PTX.
    Handle(&'static StructLayout),
    /// A structure passed by value.
    Value(&'static StructLayout),
}

/// A result of an operation.
#[derive(Clone, Copy)]
pub(super) struct Given {
    /// The fragment's parameter.
    pub(super) param: &'static str,
    pub(super) name: &'static str,
    pub(super) doc: &'static str,
}

/// An argument called `name` that is the fragment's parameter of the same name, in upper case.
pub(super) const fn same(name: &'static str) -> Argument {
    Argument { name, ty: Type::Same, doc: "" }
}

/// A 64-bit integer argument.
pub(super) const fn wide(name: &'static str, doc: &'static str) -> Argument {
    Argument { name, ty: Type::U64, doc }
}

/// The usual source of a fragment's parameter: a path that begins with an argument or a field of a handle. `abort` is the
/// path of the abort handle.
fn usual(param: &str, abort: &str) -> String {
    let path = match param {
        "ABORT_WORD" => return format!("{abort}.word"),
        "ABORT_CLAIM" => return format!("{abort}.claim"),
        "RANK" => return format!("{abort}.rank"),
        "PEER" => return format!("{abort}.peer"),
        "INBOUND" => "semaphore.inbound",
        "EXPECTED" => "semaphore.expected_inbound",
        "OUTBOUND" => "semaphore.outbound",
        "REMOTE_INBOUND" => "semaphore.remote_inbound",
        "SLOTS" => "fifo.slots",
        "HEAD" => "fifo.head",
        "TAIL" => "fifo.tail",
        "TAIL_CACHE" => "fifo.tail_cache",
        "CAPACITY" => "fifo.capacity",
        "CAPACITY_LOG2" => "fifo.capacity_log2",
        "FIFO_WORD" => "fifo.abort.word",
        "ABORTED" => "LEFT_NOT",
        "TID" => "thread",
        "NTHREADS" => "threads",
        other => return other.to_lowercase(),
    };
    path.to_owned()
}

/// An operation for one variant of its fragment, every parameter found.
pub(super) struct Call {
    pub(super) operation: &'static Operation,
    pub(super) fragment: Fragment,
    pub(super) variant: Variant,
    /// Name without prefix.
    pub(super) name: String,
    /// Per argument, its type among `u32`, `u64` and `f32`, unless it is a structure; and what it is.
    pub(super) arguments: Vec<(&'static Argument, String, String)>,
    /// Per parameter of the fragment, the sum that is its value; `None` for those only written.
    pub(super) values: Vec<Option<Vec<Term>>>,
}

/// A summand.
pub(super) enum Term {
    /// An argument that is a number or an address.
    Argument(&'static Argument),
    /// A field of an argument that is a structure: its path in C and its offset.
    Field { argument: &'static Argument, path: String, offset: usize },
    /// A constant of the ABI (or, without a name, a number).
    Constant { name: Option<String>, value: u64 },
}

impl Call {
    /// Every operation in every variant of its fragment.
    pub(super) fn all(
        operations: impl Iterator<Item = &'static Operation>,
    ) -> Result<Vec<Self>, TemplateError> {
        let fragments = Fragment::all().map_err(|message| failure("kernels/inc", message))?;
        let mut calls = Vec::new();
        for operation in operations {
            let fail = |message: String| failure(operation.name, message);
            let fragment = fragments
                .iter()
                .find(|fragment| fragment.name == operation.fragment)
                .ok_or_else(|| fail(format!("there is no fragment {}", operation.fragment)))?;
            if !fragment.is_exported() {
                return Err(fail(format!("fragment {} can only be inlined", fragment.name)));
            }
            for variant in fragment.variants() {
                calls.push(Self::new(operation, fragment, variant).map_err(fail)?);
            }
        }
        Ok(calls)
    }

    fn new(operation: &'static Operation, fragment: &Fragment, variant: Variant) -> Result<Self, String> {
        if let Some((name, _)) = operation.with.iter().find(|(name, _)| fragment.param(name).is_none()) {
            return Err(format!("fragment {} has no parameter {name}", fragment.name));
        }
        let mut arguments = Vec::new();
        for argument in operation.takes {
            let (ty, doc) = match argument.ty {
                Type::U32 => ("u32".to_owned(), argument.doc.to_owned()),
                Type::Same => {
                    let param = fragment
                        .param(&argument.name.to_uppercase())
                        .ok_or_else(|| format!("fragment {} has no {}", fragment.name, argument.name))?;
                    (param.register(&variant), param.doc.clone())
                }
                _ => ("u64".to_owned(), argument.doc.to_owned()),
            };
            arguments.push((argument, ty, doc));
        }
        let mut call = Self {
            operation,
            fragment: fragment.clone(),
            name: format!("{}{}", operation.name, variant.suffix),
            variant,
            arguments,
            values: Vec::new(),
        };
        for param in &fragment.params {
            call.values.push(match param.direction {
                Direction::Out => None,
                _ => Some(call.value(param)?),
            });
        }
        for given in operation.gives {
            if fragment.param(given.param).is_none_or(|param| param.direction == Direction::In) {
                return Err(format!("fragment {} has no result {}", fragment.name, given.param));
            }
        }
        Ok(call)
    }

    /// The results in order, each with its parameter and type.
    pub(super) fn results(&self) -> impl Iterator<Item = (&'static Given, &FragmentParam, String)> {
        self.operation.gives.iter().filter_map(|given| {
            let param = self.fragment.param(given.param)?;
            Some((given, param, param.register(&self.variant)))
        })
    }

    /// Its effect, arguments and results, and the fragment's notes on threads and order.
    pub(super) fn documentation(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.operation.does.iter().map(|&line| line.to_owned()).collect();
        lines.extend(self.arguments.iter().map(|(argument, _, doc)| format!("{}: {doc}", argument.name)));
        let results = self.operation.gives.iter().enumerate();
        lines.extend(results.map(|(nth, given)| match nth {
            0 => format!("returns {}: {}", given.name, given.doc),
            _ => format!("gives {}: {}", given.name, given.doc),
        }));
        for note in &self.fragment.notes {
            match note.split_once(':') {
                Some(("threads", who)) => lines.push(format!("called by:{who}")),
                Some(("sync", tags)) => lines.push(format!("order:{tags}")),
                _ => {}
            }
        }
        lines
    }

    fn value(&self, param: &FragmentParam) -> Result<Vec<Term>, String> {
        let bound = self.operation.with.iter().find(|(name, _)| *name == param.name);
        // A channel's own waits are for the peer of its semaphore.
        let abort = if self.owner("semaphore").is_some() { "semaphore.abort" } else { "abort" };
        let sum = bound.map_or_else(|| usual(&param.name, abort), |(_, sum)| (*sum).to_owned());
        let wanted = param.register(&self.variant);
        let mut terms = Vec::new();
        for text in sum.split('+').map(str::trim) {
            let (term, ty) = self.term(text).map_err(|why| format!("{} = {sum}: {why}", param.name))?;
            if ty.is_some_and(|ty| ty != wanted) {
                return Err(format!("{} = {sum}: {text} is no {wanted}", param.name));
            }
            terms.push(term);
        }
        Ok(terms)
    }

    /// The structure among the arguments that has a field `name`.
    fn owner(&self, name: &str) -> Option<(&'static Argument, &'static StructLayout)> {
        let mut structures = self.arguments.iter().filter_map(|&(a, ..)| Some((a, a.layout()?)));
        structures.find(|(_, layout)| layout.fields.iter().any(|field| field.name == name))
    }

    /// One summand, and its type if it has one.
    fn term(&self, text: &str) -> Result<(Term, Option<String>), String> {
        if let Ok(value) = text.parse() {
            return Ok((Term::Constant { name: None, value }, None));
        }
        if text.starts_with(|c: char| c.is_ascii_uppercase()) {
            let value = symbol(text).ok_or_else(|| format!("there is no constant {text}"))?;
            return Ok((Term::Constant { name: Some(text.to_owned()), value }, None));
        }
        let first = text.split('.').next().unwrap_or(text);
        if let Some((argument, ty, _)) = self.arguments.iter().find(|(a, ..)| a.name == first) {
            return match (argument.layout(), text.split_once('.')) {
                (Some(layout), Some((_, path))) => field(argument, layout, path),
                (None, None) => Ok((Term::Argument(argument), Some(ty.clone()))),
                _ => Err(format!("{first} is not used as what it is")),
            };
        }
        match self.owner(first) {
            Some((argument, layout)) => field(argument, layout, text),
            None => Err(format!("no argument is, and none has a field, {first}")),
        }
    }
}

impl Argument {
    /// The layout of a structure.
    pub(super) fn layout(&self) -> Option<&'static StructLayout> {
        match self.ty {
            Type::Handle(layout) | Type::Value(layout) => Some(layout),
            _ => None,
        }
    }
}

/// Follows `path` (`abort.word`, `words[2]`) from a structure.
fn field(
    argument: &'static Argument,
    mut layout: &'static StructLayout,
    path: &str,
) -> Result<(Term, Option<String>), String> {
    let mut offset = 0;
    let mut steps = path.split('.').peekable();
    while let Some(step) = steps.next() {
        let (name, index) = match step.strip_suffix(']').and_then(|step| step.split_once('[')) {
            Some((name, index)) => {
                (name, Some(index.parse::<usize>().map_err(|_| format!("{step}: index"))?))
            }
            None => (step, None),
        };
        let field = layout.fields.iter().find(|field| field.name == name);
        let field = field.ok_or_else(|| format!("{} has no field {name}", layout.name))?;
        offset += field.offset;
        let mut ty = field.rust_type.rsplit("::").next().unwrap_or(field.rust_type).trim();
        if let Some(index) = index {
            ty = ty.strip_prefix('[').and_then(|ty| ty.split(';').next()).unwrap_or(ty).trim();
            offset += index * if ty == "u64" { 8 } else { 4 };
        }
        if steps.peek().is_none() {
            let term = Term::Field { argument, path: path.to_owned(), offset };
            return Ok((term, Some(ty.to_owned())));
        }
        let inner = STRUCTS.iter().find(|inner| inner.name == ty);
        layout = inner.ok_or_else(|| format!("{name} is no structure"))?;
    }
    Err("an empty path".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{DeviceStruct, FifoHandle, PortChannelHandle};

    const PORT: Argument = Argument { name: "port", ty: Type::Handle(&PortChannelHandle::LAYOUT), doc: "" };
    static POLL: Operation =
        Operation { name: "poll", does: &[], fragment: "fifo_poll", takes: &[], with: &[], gives: &[] };

    const POSITION: Argument = same("position");

    fn attempt(
        takes: &'static [Argument],
        with: &'static [(&'static str, &'static str)],
    ) -> Result<Call, String> {
        let operation: &Operation = Box::leak(Box::new(Operation { takes, with, ..POLL }));
        Call::all([operation].into_iter()).map(|mut calls| calls.remove(0)).map_err(|error| error.message)
    }

    #[test]
    fn fields_are_found_through_handles() {
        let call = attempt(&[PORT, POSITION], &[]).unwrap();
        let [Term::Field { path, offset, .. }] = call.values[0].as_deref().unwrap() else { panic!() };
        assert_eq!((path.as_str(), *offset), ("fifo.tail", std::mem::offset_of!(FifoHandle, tail)));
        assert!(matches!(call.values[1].as_deref(), Some([Term::Argument(a)]) if a.name == "position"));
        assert!(call.values[2].is_none(), "only written");
    }

    #[test]
    fn what_cannot_be_found_is_named() {
        let message = |result: Result<Call, String>| result.err().unwrap();
        assert_eq!(
            message(attempt(&[PORT], &[])),
            "POSITION = position: no argument is, and none has a field, position"
        );
        assert_eq!(message(attempt(&[PORT], &[("PLACE", "0")])), "fragment fifo_poll has no parameter PLACE");
        assert_eq!(
            message(attempt(&[PORT], &[("POSITION", "fifo.capacity")])),
            "POSITION = fifo.capacity: fifo.capacity is no u64"
        );
        assert_eq!(
            message(attempt(&[PORT], &[("POSITION", "flushed + LEFT_OVER")])),
            "POSITION = flushed + LEFT_OVER: there is no constant LEFT_OVER"
        );
        assert_eq!(
            message(attempt(&[PORT], &[("POSITION", "port.fifo.depth")])),
            "POSITION = port.fifo.depth: FifoHandle has no field depth"
        );
        assert!(attempt(&[PORT], &[("POSITION", "flushed + src_bytes + 8")]).is_ok());
    }
}
