//! Typed access to a tree of JSON, with the path of whatever is wrong.

use std::fmt;

use super::json::Value;
use crate::error::{Error, ErrorKind, Result};

/// The way from the root to a value. Lives on the stack; displayed only in errors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path<'p> {
    parent: Option<&'p Path<'p>>,
    step: Step<'p>,
}

#[derive(Clone, Copy, Debug)]
enum Step<'p> {
    Root,
    Key(&'p str),
    Index(usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.step {
            Step::Root => f.write_str("plan"),
            Step::Key(key) => write!(f, ".{key}"),
            Step::Index(index) => write!(f, "[{index}]"),
        }
    }
}

impl<'p> Path<'p> {
    pub(super) const ROOT: Self = Path { parent: None, step: Step::Root };

    pub(super) fn key(&'p self, key: &'p str) -> Self {
        Path { parent: Some(self), step: Step::Key(key) }
    }

    pub(super) fn index(&'p self, index: usize) -> Self {
        Path { parent: Some(self), step: Step::Index(index) }
    }

    pub(super) fn error(&self, message: impl fmt::Display) -> Error {
        Error::new(ErrorKind::Plan, "plan::file::read", format!("{self}: {message}"))
    }
}

/// An object whose members are taken one by one; [`Object::finish`] refuses the ones that nobody took.
pub(super) struct Object<'v, 'a, 'p> {
    members: &'v [(std::borrow::Cow<'a, str>, Value<'a>)],
    taken: u64,
    pub(super) path: &'p Path<'p>,
}

impl<'v, 'a, 'p> Object<'v, 'a, 'p> {
    pub(super) fn of(value: &'v Value<'a>, path: &'p Path<'p>) -> Result<Self> {
        match value {
            Value::Object(members) => Ok(Self { members, taken: 0, path }),
            other => Err(path.error(format_args!("an object expected, not {}", other.kind()))),
        }
    }

    pub(super) fn optional(&mut self, key: &str) -> Option<&'v Value<'a>> {
        let index = self.members.iter().position(|(name, _)| name == key)?;
        // The JSON reader allows 64 members.
        self.taken |= 1 << index;
        Some(&self.members[index].1)
    }

    pub(super) fn required(&mut self, key: &str) -> Result<&'v Value<'a>> {
        self.optional(key).ok_or_else(|| self.path.error(format_args!("the key \"{key}\" is missing")))
    }

    pub(super) fn text(&mut self, key: &str) -> Result<&'v str> {
        text(self.required(key)?, &self.path.key(key))
    }

    pub(super) fn number(&mut self, key: &str) -> Result<u32> {
        number(self.required(key)?, &self.path.key(key))
    }

    pub(super) fn long(&mut self, key: &str, default: u64) -> Result<u64> {
        self.optional(key).map_or(Ok(default), |value| long(value, &self.path.key(key)))
    }

    pub(super) fn number_or(&mut self, key: &str, default: u32) -> Result<u32> {
        self.optional(key).map_or(Ok(default), |value| number(value, &self.path.key(key)))
    }

    pub(super) fn flag(&mut self, key: &str, default: bool) -> Result<bool> {
        match self.optional(key) {
            None => Ok(default),
            Some(Value::Bool(value)) => Ok(*value),
            Some(other) => {
                Err(self.path.key(key).error(format_args!("a boolean expected, not {}", other.kind())))
            }
        }
    }

    /// The items of an array; none if the key is absent.
    pub(super) fn items(&mut self, key: &str) -> Result<&'v [Value<'a>]> {
        match self.optional(key) {
            None => Ok(&[]),
            Some(Value::Array(items)) => Ok(items),
            Some(other) => {
                Err(self.path.key(key).error(format_args!("an array expected, not {}", other.kind())))
            }
        }
    }

    /// An array of small numbers; empty if the key is absent.
    pub(super) fn numbers(&mut self, key: &str) -> Result<Vec<u32>> {
        let path = self.path.key(key);
        self.items(key)?.iter().enumerate().map(|(index, item)| number(item, &path.index(index))).collect()
    }

    pub(super) fn finish(self) -> Result<()> {
        match self.members.iter().enumerate().find(|(index, _)| self.taken & (1 << index) == 0) {
            None => Ok(()),
            Some((_, (key, _))) => {
                Err(self.path.error(format_args!("unknown key {key:?}; remove it, or correct its spelling")))
            }
        }
    }
}

pub(super) fn text<'v>(value: &'v Value<'_>, path: &Path<'_>) -> Result<&'v str> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(path.error(format_args!("a string expected, not {}", other.kind()))),
    }
}

fn long(value: &Value<'_>, path: &Path<'_>) -> Result<u64> {
    match value {
        Value::Integer(number) => Ok(*number),
        other => Err(path.error(format_args!("a number expected, not {}", other.kind()))),
    }
}

pub(super) fn number(value: &Value<'_>, path: &Path<'_>) -> Result<u32> {
    let number = long(value, path)?;
    u32::try_from(number)
        .map_err(|_| path.error(format_args!("{number} is too large; the limit is {}", u32::MAX)))
}
