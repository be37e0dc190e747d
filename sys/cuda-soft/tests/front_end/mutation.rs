//! The front end returns for every text: it never panics and never loops.

use super::{compile, corpus};

/// A pseudo-random generator (xorshift64*) with a fixed seed, so that failures can be reproduced.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }

    fn pick<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }
}

/// Pieces of PTX to insert at random positions.
const PIECES: [&str; 40] = [
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ";",
    ",",
    ":",
    "@!%p1",
    "|",
    "!",
    "-",
    "<",
    ">",
    "=",
    "_",
    ".",
    "..",
    "\"",
    "/*",
    "//",
    "0x",
    "0f3F80000",
    "99999999999999999999",
    "-9223372036854775808",
    "%r1",
    "%rd1",
    "%tid.x",
    ".v4",
    ".pred",
    ".b128",
    ".param",
    ".reg .b32 %r<4294967295>;",
    ".shared .b8 big[1099511627776];",
    ".align 3",
    ".global",
    "ret;",
    "call (%r1), _Z6opcodeiii, (1);",
    "\u{e9}",
];

/// One to four random edits of `text`, at character boundaries.
fn mutate(text: &str, random: &mut Random) -> String {
    let mut out: Vec<char> = text.chars().collect();
    for _ in 0..=random.below(3) {
        let at = random.below(out.len());
        match random.below(6) {
            0 => {
                out.remove(at);
            }
            1 => {
                let end = (at + random.below(40)).min(out.len());
                out.drain(at..end);
            }
            2 => {
                let from = random.below(out.len());
                let piece: Vec<char> = out[from..].iter().take(random.below(60)).copied().collect();
                out.splice(at..at, piece);
            }
            3 => out.truncate(at),
            4 => {
                let other = random.below(out.len());
                out.swap(at, other);
            }
            _ => {
                out.splice(at..at, random.pick(&PIECES).chars());
            }
        }
        if out.is_empty() {
            break;
        }
    }
    out.into_iter().collect()
}

#[test]
fn mutated_corpus_text_never_panics() {
    let texts: Vec<String> = corpus::all().into_iter().map(|(_, text)| text).collect();
    let mut random = Random(0x5eed_1234_9876_0001);
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..60 {
        for (file, text) in texts.iter().enumerate() {
            let mutant = mutate(text, &mut random);
            match std::panic::catch_unwind(|| compile(&mutant)) {
                Ok(Ok(_)) => accepted += 1,
                Ok(Err(error)) => {
                    assert!(error.contains("error   : "), "{error}");
                    assert!(!error.contains("Internal"), "{error}\nround {round}, file {file}");
                    refused += 1;
                }
                Err(_) => panic!("round {round}, file {file}:\n{mutant}"),
            }
        }
    }
    assert!(refused > 300 && accepted > 10, "the edits must hit: {refused} refused, {accepted} accepted");
}

#[test]
fn deep_nesting_is_an_error() {
    let head = ".version 8.0\n.target sm_70\n.address_size 64\n";
    for (open, close) in
        [("{", "}"), ("@%p mov.b32 %r, (", ");"), ("ld.u32 %r, [-", "];"), ("mov.b64 {", "}, %r;")]
    {
        let text = format!("{head}.entry k() {{ {} {} }}", open.repeat(100_000), close.repeat(100_000));
        compile(&text).expect_err(open);
    }
    let lists = format!("{head}.global .u32 x[1] = {}1{};", "{".repeat(100_000), "}".repeat(100_000));
    compile(&lists).expect_err("initial values");
    let expression = format!("{head}.global .u32 x = {}1;", "-(".repeat(100_000));
    compile(&expression).expect_err("constant expression");
    let section = format!("{head}.section .debug {}", "{".repeat(100_000));
    compile(&section).expect_err("section");
}

#[test]
fn enormous_declarations_are_errors() {
    let head = ".version 8.0\n.target sm_70\n.address_size 64\n";
    for declaration in [
        ".global .b8 x[18446744073709551615];",
        ".global .b64 x[4294967296][4294967296];",
        ".global .b8 x[4294967295] = {1};",
        ".entry k() { .shared .b8 x[4294967295]; mov.u64 %r, x; }",
        ".entry k() { .local .b8 x[4294967295]; }",
        ".entry k(.param .b8 x[4294967295]) { }",
    ] {
        let error = compile(&format!("{head}{declaration}")).expect_err(declaration);
        assert!(error.contains("large") || error.contains("overflow"), "{error}");
    }
    let families = format!("{head}.entry k() {{ .reg .b32 %r<4294967295>; mov.b32 %r4294967294, 1; }}");
    compile(&families).expect("registers that nobody uses cost nothing");
    let uses: String = (0..70_000).map(|n| format!("mov.b32 %r{n}, 1;\n")).collect();
    let error =
        compile(&format!("{head}.entry k() {{ .reg .b32 %r<70000>;\n{uses} }}")).expect_err("too many");
    assert!(error.contains("too many registers"), "{error}");
}
