//! The formats of `vprintf`. The C library writes each conversion, as it does for the driver.

use std::ffi::{CString, c_char, c_int, c_longlong, c_ulonglong, c_void};

/// The memory that a call of `vprintf` reads.
pub(super) trait Source {
    /// Why memory cannot be read.
    type Error;
    /// The `size` bytes at `offset` of the argument buffer, zero-extended.
    fn argument(&mut self, offset: u64, size: u64) -> Result<u64, Self::Error>;
    /// The bytes of the string at `address`, without its NUL.
    fn string(&mut self, address: u64) -> Result<Vec<u8>, Self::Error>;
}

/// Largest width and precision: a hostile format must not make the host allocate gigabytes.
const WIDEST: u64 = 4096;

/// One conversion of a format, without its argument.
struct Conversion {
    /// `%`, flags, width and precision.
    head: Vec<u8>,
    /// Bytes of an integer argument.
    size: u64,
    /// The letter.
    letter: u8,
}

/// Formats `format` with the arguments that `source` reads. Returns the text and the number of arguments.
pub(super) fn format<S: Source>(format: &[u8], source: &mut S) -> Result<(Vec<u8>, u32), S::Error> {
    let (mut text, mut count) = (Vec::new(), 0);
    let mut arguments = Arguments { source, offset: 0 };
    let mut rest = format;
    while let Some(percent) = rest.iter().position(|byte| *byte == b'%') {
        text.extend_from_slice(&rest[..percent]);
        rest = &rest[percent..];
        if rest.get(1) == Some(&b'%') {
            text.push(b'%');
            rest = &rest[2..];
            continue;
        }
        let Some((conversion, length)) = parse(rest, &mut arguments, &mut count)? else {
            // Not a conversion: printed as it is.
            text.push(b'%');
            rest = &rest[1..];
            continue;
        };
        rest = &rest[length..];
        convert(&mut text, &conversion, &mut arguments)?;
        count += 1;
    }
    text.extend_from_slice(rest);
    Ok((text, count))
}

struct Arguments<'s, S> {
    source: &'s mut S,
    offset: u64,
}

impl<S: Source> Arguments<'_, S> {
    /// The next argument, which the compiler has put at a multiple of its size.
    fn next(&mut self, size: u64) -> Result<u64, S::Error> {
        let at = self.offset.next_multiple_of(size);
        self.offset = at + size;
        self.source.argument(at, size)
    }
}

/// Parses the conversion at the beginning of `text`. Returns it and its length; `None` if it is none.
fn parse<S: Source>(
    text: &[u8],
    arguments: &mut Arguments<'_, S>,
    count: &mut u32,
) -> Result<Option<(Conversion, usize)>, S::Error> {
    let mut at = 1;
    let mut head = vec![b'%'];
    let peek = |at: usize| text.get(at).copied().unwrap_or(0);
    while matches!(peek(at), b'-' | b'+' | b' ' | b'#' | b'0') {
        head.push(peek(at));
        at += 1;
    }
    for part in 0..2 {
        if part == 1 {
            if peek(at) != b'.' {
                break;
            }
            head.push(b'.');
            at += 1;
        }
        let mut number = 0u64;
        if peek(at) == b'*' {
            at += 1;
            *count += 1;
            let value = arguments.next(4)? as u32 as i32;
            match (part, value < 0) {
                (0, true) => head.insert(1, b'-'),
                // A negative precision counts as none.
                (1, true) => {
                    head.pop();
                    continue;
                }
                _ => {}
            }
            number = value.unsigned_abs().into();
        } else {
            if part == 0 && !peek(at).is_ascii_digit() {
                continue;
            }
            while peek(at).is_ascii_digit() {
                number = number.saturating_mul(10).saturating_add(u64::from(peek(at) - b'0'));
                at += 1;
            }
        }
        head.extend_from_slice(number.min(WIDEST).to_string().as_bytes());
    }
    let lengths: [(&[u8], u64); 8] =
        [(b"hh", 1), (b"h", 2), (b"ll", 8), (b"l", 8), (b"j", 8), (b"z", 8), (b"t", 8), (b"L", 8)];
    let mut size = 4;
    if let Some((word, bytes)) = lengths.iter().find(|(word, _)| text[at.min(text.len())..].starts_with(word))
    {
        size = *bytes;
        at += word.len();
    }
    let letter = peek(at);
    let known = b"diouxXcsfFeEgGaAp".contains(&letter);
    Ok(known.then_some((Conversion { head, size, letter }, at + 1)))
}

fn convert<S: Source>(
    text: &mut Vec<u8>,
    conversion: &Conversion,
    arguments: &mut Arguments<'_, S>,
) -> Result<(), S::Error> {
    let Conversion { head, size, letter } = conversion;
    let spec = |length: &[u8]| [head, length, &[*letter]].concat();
    match letter {
        b'd' | b'i' => {
            let value = arguments.next((*size).max(4))?;
            let value: c_longlong = match size {
                1 => (value as i8).into(),
                2 => (value as i16).into(),
                4 => (value as i32).into(),
                _ => value.cast_signed(),
            };
            // SAFETY: the conversion has length `ll` and takes this one argument.
            print(text, &spec(b"ll"), |to, n, f| unsafe { libc::snprintf(to, n, f, value) });
        }
        b'o' | b'u' | b'x' | b'X' => {
            let value = arguments.next((*size).max(4))?;
            let value: c_ulonglong = match size {
                1 => value & 0xff,
                2 => value & 0xffff,
                4 => value & 0xffff_ffff,
                _ => value,
            };
            // SAFETY: as above.
            print(text, &spec(b"ll"), |to, n, f| unsafe { libc::snprintf(to, n, f, value) });
        }
        b'c' => {
            let value = c_int::from(arguments.next(4)? as u8);
            // SAFETY: the conversion takes one `int`.
            print(text, &spec(b""), |to, n, f| unsafe { libc::snprintf(to, n, f, value) });
        }
        b'p' => {
            let value = std::ptr::without_provenance::<c_void>(arguments.next(8)? as usize);
            // SAFETY: the conversion takes one pointer, which it only prints.
            print(text, &spec(b""), |to, n, f| unsafe { libc::snprintf(to, n, f, value) });
        }
        b's' => {
            let address = arguments.next(8)?;
            let value = if address == 0 { b"(null)".to_vec() } else { arguments.source.string(address)? };
            let value = CString::new(value).unwrap_or_default();
            // SAFETY: the conversion takes one string, which lives until the call returns.
            print(text, &spec(b""), |to, n, f| unsafe { libc::snprintf(to, n, f, value.as_ptr()) });
        }
        _ => {
            let value = f64::from_bits(arguments.next(8)?);
            // SAFETY: the conversion takes one `double`.
            print(text, &spec(b""), |to, n, f| unsafe { libc::snprintf(to, n, f, value) });
        }
    }
    Ok(())
}

/// Appends what `snprintf`, called by `write` with a buffer, its size and the conversion `spec`, produces.
fn print(text: &mut Vec<u8>, spec: &[u8], write: impl Fn(*mut c_char, usize, *const c_char) -> c_int) {
    let Ok(spec) = CString::new(spec) else { return };
    let mut buffer = vec![0u8; 64];
    loop {
        let length =
            usize::try_from(write(buffer.as_mut_ptr().cast(), buffer.len(), spec.as_ptr())).unwrap_or(0);
        if length < buffer.len() {
            text.extend_from_slice(&buffer[..length]);
            return;
        }
        buffer.resize(length + 1, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arguments as the compiler packs them; strings are indices into a list.
    #[derive(Default)]
    struct Packed(Vec<u8>, Vec<&'static str>);

    impl Packed {
        fn int(mut self, value: i32) -> Self {
            self.0.resize(self.0.len().next_multiple_of(4), 0);
            self.0.extend(value.to_le_bytes());
            self
        }
        fn long(mut self, value: u64) -> Self {
            self.0.resize(self.0.len().next_multiple_of(8), 0);
            self.0.extend(value.to_le_bytes());
            self
        }
        fn text(mut self, value: &'static str) -> Self {
            self.1.push(value);
            let number = self.1.len() as u64;
            self.long(number)
        }
    }

    impl Source for Packed {
        type Error = String;
        fn argument(&mut self, offset: u64, size: u64) -> Result<u64, String> {
            let bytes = self.0.get(offset as usize..(offset + size) as usize).ok_or("no such argument")?;
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            Ok(u64::from_le_bytes(word))
        }
        fn string(&mut self, address: u64) -> Result<Vec<u8>, String> {
            Ok(self.1[address as usize - 1].as_bytes().to_vec())
        }
    }

    fn says(text: &str, mut arguments: Packed) -> (String, u32) {
        let (text, count) = format(text.as_bytes(), &mut arguments).expect("arguments");
        (String::from_utf8(text).expect("text"), count)
    }

    #[test]
    fn every_conversion_reads_its_argument_at_its_place() {
        let one = Packed::default;
        let float = |value: f64| one().long(value.to_bits());
        for (text, arguments, expected, count) in [
            ("plain %% text\n", one(), "plain % text\n", 0),
            (
                "%d|%5d|%-5d|%05d|%+d",
                one().int(-1).int(42).int(42).int(42).int(7),
                "-1|   42|42   |00042|+7",
                5,
            ),
            ("%u %x %X %#o", one().int(-1).int(255).int(255).int(8), "4294967295 ff FF 010", 4),
            (
                "%lld %llu %lx",
                one().long(1 << 63).long(u64::MAX).long(10),
                "-9223372036854775808 18446744073709551615 a",
                3,
            ),
            ("%hhd %hd %hhu", one().int(-1).int(65537).int(257), "-1 1 1", 3),
            ("%c%c", one().int(65).int(66), "AB", 2),
            // An argument of eight bytes is aligned; the gap is skipped.
            ("%d %f %d", one().int(1).long(1.5f64.to_bits()).int(2), "1 1.500000 2", 3),
            (
                "%8.3f|%e|%g",
                one().long(1.25f64.to_bits()).long(1e10f64.to_bits()).long(0.5f64.to_bits()),
                "   1.250|1.000000e+10|0.5",
                3,
            ),
            ("%s, %-6s|%.2s", one().text("one").text("two").text("three"), "one, two   |th", 3),
            ("%p", one().long(0xdead_beef), "0xdeadbeef", 1),
            (
                "%*d|%-*d|%.*f",
                one().int(4).int(1).int(3).int(2).int(1).long(2.25f64.to_bits()),
                "   1|2  |2.2",
                6,
            ),
            ("%s", one().long(0), "(null)", 1),
            ("%y %", one(), "%y %", 0),
            ("%f", float(f64::INFINITY), "inf", 1),
        ] {
            assert_eq!(says(text, arguments), (expected.to_owned(), count), "{text}");
        }
    }

    #[test]
    fn widths_are_bounded_and_missing_arguments_are_errors() {
        assert_eq!(says("%999999999d", Packed::default().int(1)).0.len() as u64, WIDEST);
        format(b"%d", &mut Packed::default()).unwrap_err();
    }
}
