//! The sizes of a kernel's parameters, read from the PTX that was loaded. A driver says them, too, since CUDA 12.4, but not how
//! many there are: it has to be asked until it refuses, and compute-sanitizer reports each refusal.

use std::collections::HashMap;

/// The bytes of each parameter of a kernel, in order.
pub(super) type Sizes = Box<[usize]>;

/// The parameters of kernels as their PTX declares them.
#[derive(Debug, Default)]
pub(super) struct Declared(HashMap<String, Sizes>);

impl Declared {
    /// The kernels of these texts.
    pub(super) fn by<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        Self(texts.flat_map(kernels).collect())
    }

    /// A kernel with one parameter of so many bytes.
    pub(super) fn one(kernel: &str, bytes: usize) -> Self {
        Self(HashMap::from([(kernel.to_owned(), [bytes].into())]))
    }

    /// The sizes of the parameters of `kernel`, if its declaration could be read.
    pub(super) fn get(&self, kernel: &str) -> Option<&Sizes> {
        self.0.get(kernel)
    }
}

/// Names and parameters of the kernels that `ptx` defines. A kernel with a parameter whose size is not a plain number,
/// which PTX permits and compilers do not write, is left out.
fn kernels(ptx: &str) -> impl Iterator<Item = (String, Sizes)> {
    let mut words = Words(ptx);
    std::iter::from_fn(move || {
        loop {
            if words.next()? == ".entry" {
                let name = words.next()?;
                if let Some(sizes) = parameters(&mut words) {
                    return Some((name.to_owned(), sizes.into()));
                }
            }
        }
    })
}

/// Reads what follows the name of a kernel: a list in parentheses, or something else if it has no parameters.
fn parameters(words: &mut Words<'_>) -> Option<Vec<usize>> {
    let mut sizes = Vec::new();
    if words.next()? != "(" {
        return Some(sizes);
    }
    let mut size: Option<usize> = None;
    loop {
        match words.next()? {
            ".param" | ".ptr" | ".global" | ".const" | ".shared" | ".local" => {}
            ".align" => _ = words.next()?,
            "[" => {
                let length: usize = words.next()?.parse().ok()?;
                size = Some(size?.checked_mul(length)?);
                if words.next()? != "]" {
                    return None;
                }
            }
            "," => sizes.push(size.take()?),
            ")" if sizes.is_empty() && size.is_none() => return Some(sizes),
            ")" => {
                sizes.push(size?);
                return Some(sizes);
            }
            word if word.starts_with('.') => size = Some(bytes(word)?),
            _name if size.is_none() => return None,
            _name => {}
        }
    }
}

/// The bytes of a value of this type, if it is a number.
fn bytes(ty: &str) -> Option<usize> {
    let bits = [".b", ".u", ".s", ".f"].into_iter().find_map(|kind| ty.strip_prefix(kind))?;
    bits.parse::<usize>().ok().filter(|bits| bits.is_multiple_of(8)).map(|bits| bits / 8)
}

/// The words and punctuation marks of a PTX text, without comments and strings.
struct Words<'a>(&'a str);

impl<'a> Iterator for Words<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        loop {
            let text = self.0.trim_start();
            let skip = |text: &'a str, begin: usize, end: &str| {
                text[begin..].find(end).map_or("", |at| &text[begin + at + end.len()..])
            };
            self.0 = match text.as_bytes() {
                [] => return None,
                [b'/', b'/', ..] => skip(text, 2, "\n"),
                [b'/', b'*', ..] => skip(text, 2, "*/"),
                [b'"', ..] => skip(text, 1, "\""),
                _ => {
                    let part = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '$' | '%');
                    let end = text.find(|c| !part(c)).unwrap_or(text.len());
                    let end = if end == 0 { text.chars().next().map_or(0, char::len_utf8) } else { end };
                    let (word, rest) = text.split_at(end);
                    self.0 = rest;
                    return Some(word);
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ptx: &str) -> Vec<(String, Vec<usize>)> {
        kernels(ptx).map(|(name, sizes)| (name, sizes.into())).collect()
    }

    fn one(list: &str) -> Option<Vec<usize>> {
        of(&format!(".visible .entry k({list}) {{ ret; }}")).pop().map(|(_, sizes)| sizes)
    }

    #[test]
    fn every_form_of_parameter_has_its_size() {
        assert_eq!(one(""), Some(vec![]));
        assert_eq!(one(".param .u32 a, .param .u64 b"), Some(vec![4, 8]));
        assert_eq!(one(".param .b8 a,.param .s16 b,.param .f64 c,.param .b128 d"), Some(vec![1, 2, 8, 16]));
        assert_eq!(one("\n\t.param .align 8 .b8 channel[120],\n\t.param .u64 out\n"), Some(vec![120, 8]));
        assert_eq!(one(".param .u64 .ptr .global .align 16 p, .param .f32 x"), Some(vec![8, 4]));
        assert_eq!(one(".param .align 4 .u32 a[3][5]"), Some(vec![60]));
        assert_eq!(
            one(".param .u32 a // .param .u64 b\n, /* .param .u64 c, */ .param .u16 d"),
            Some(vec![4, 2])
        );
    }

    #[test]
    fn what_cannot_be_read_is_left_out() {
        for list in [
            ".param .u32 a[2+3]",
            ".param .u32 a[N]",
            ".param .u32 a[]",
            ".param .texref t",
            ".param .v2 .u32 v",
            ".param .pred p",
            ".param a",
            ".param .u32 a,",
            ".param .u64 a[9223372036854775807]",
        ] {
            assert_eq!(one(list), None, "{list}");
        }
        for text in
            ["", ".entry", ".entry k", ".entry k(", ".entry k(.param .u32 a", ".entry k(.param .u32 a["]
        {
            assert_eq!(of(text), [], "{text}");
        }
    }

    #[test]
    fn only_entries_count() {
        let text = "
            .version 7.0
            .file 1 \".entry f(.param .u8 x)\"
            .extern .func (.param .u32 r) twice(.param .u32 x);
            // .entry comment(.param .u8 x)
            .entry none { ret; }
            .visible .entry $b_1(.param .u64 \u{e9}) .maxntid 32, 1, 1 { call (r), twice, (x); }
        ";
        assert_eq!(of(text), [("none".to_owned(), vec![]), ("$b_1".to_owned(), vec![8])]);
    }
}
