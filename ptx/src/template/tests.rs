//! Every directive, and every way to get one wrong, with the place the error names.

use super::*;

fn files(name: &str) -> Option<&'static str> {
    Some(match name {
        "add.ptxi" => {
            "// fragment: add\n// param: A u32 in\n{\n    .reg .u32 %sum;\n    add.u32 %sum, ${A}, ${B};\n}\n"
        }
        "bad.ptxi" => "{\n    mov.u32 ${MISSING}, 0;\n}\n",
        "loop.ptxi" => "#include \"loop.ptxi\"\n",
        _ => return None,
    })
}

fn run(text: &str, params: &[(&str, &str)]) -> Result<String, TemplateError> {
    // Leaked: the embedded files are 'static, and so must the test's be.
    let text: &'static str = String::from(text).leak();
    let sources = |name: &str| if name == "main.ptx" { Some(text) } else { files(name) };
    let globals = [("sm".to_owned(), 90), ("FIFO_TAIL".to_owned(), 16)];
    let params: Vec<_> = params.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    render("main.ptx", &sources, &globals, &params)
}

fn failure(text: &str, params: &[(&str, &str)]) -> String {
    run(text, params).expect_err("the template is wrong").to_string()
}

#[test]
fn names_and_arithmetic() {
    let text = run("[%fifo+${FIFO_TAIL}] [%a+${FIFO_TAIL + 8*2 - 1}] ${T}\n", &[("T", "f32")]).unwrap();
    assert_eq!(text, "[%fifo+16] [%a+31] f32\n");
}

#[test]
fn branches() {
    let text = "#if sm >= 90 && MODE == \"x\"\na\n#elif sm < 80 || MODE != \"y\"\nb\n#else\nc\n#endif\n";
    for (mode, expected) in [("x", "a\n"), ("z", "b\n"), ("y", "c\n")] {
        assert_eq!(run(text, &[("MODE", mode)]).unwrap(), expected);
    }
}

#[test]
fn repetition_nests_and_counts_from_zero() {
    let text = "#repeat N i\n#repeat 2 j\n${i*2+j}\n#end\n#end\n";
    assert_eq!(run(text, &[("N", "2")]).unwrap(), "0\n1\n2\n3\n");
    assert_eq!(run(text, &[("N", "0")]).unwrap(), "");
}

#[test]
fn an_include_sees_only_what_it_is_given_and_loses_its_contract() {
    let text = run("#include \"add.ptxi\" A=%x \\\n    B=${V}\nret;\n", &[("V", "7")]).unwrap();
    assert_eq!(text, "{\n    .reg .u32 %sum;\n    add.u32 %sum, %x, 7;\n}\nret;\n");
}

#[test]
fn errors_name_file_and_line() {
    type Case = (&'static str, &'static [(&'static str, &'static str)], &'static str);
    let cases: &[Case] = &[
        ("\n${NOPE}\n", &[], "main.ptx:2: unknown name NOPE"),
        ("a\n", &[("X", "1")], "main.ptx:0: main.ptx never uses the name X given to it"),
        ("\n#include \"bad.ptxi\"\n", &[], "bad.ptxi:2: unknown name MISSING"),
        ("\n#include \"none.ptxi\"\n", &[], "main.ptx:2: no such file: none.ptxi"),
        (
            "#include \"add.ptxi\" A=1 B=2 C=3\n",
            &[],
            "main.ptx:1: add.ptxi never uses the name C given to it",
        ),
        (
            "#include \"add.ptxi\" A=%sum B=2\n",
            &[],
            "main.ptx:1: add.ptxi declares %sum, which shadows the register passed as A",
        ),
        ("#include \"loop.ptxi\"\n", &[], "loop.ptxi:1: includes nest deeper than 16: a cycle?"),
        ("#include add.ptxi\n", &[], "main.ptx:1: expected: #include \"file.ptxi\" NAME=value ..."),
        ("#include \"add.ptxi\" A\n", &[], "main.ptx:1: expected NAME=value, found A"),
        ("a\n#endif\n", &[], "main.ptx:2: #endif without its opening directive"),
        ("a\n#elif 1\n", &[], "main.ptx:2: #elif without its opening directive"),
        ("#elif 1", &[], "main.ptx:1: #elif without its opening directive"),
        ("a\n#if sm == 90\nb\n", &[], "main.ptx:2: #if without #endif"),
        ("#if sm == 90\n#else\nb\n", &[], "main.ptx:1: #else without #endif"),
        ("#if sm\n#endif\n", &[], "main.ptx:1: expected a comparison, found \"sm\""),
        ("#if NOPE == 1\n#endif\n", &[], "main.ptx:1: unknown name NOPE"),
        ("#if sm < \"x\"\n#endif\n", &[], "main.ptx:1: \"x\" cannot be ordered: not an integer"),
        ("#repeat 2 i\n", &[], "main.ptx:1: #repeat without #end"),
        ("#repeat 257 i\n#end\n", &[], "main.ptx:1: #repeat 257 exceeds 256"),
        ("#repeat\n#end\n", &[], "main.ptx:1: expected: #repeat COUNT name"),
        ("#define X\n", &[], "main.ptx:1: unknown directive #define"),
        ("${FIFO_TAIL\n", &[], "main.ptx:1: ${ without }"),
        ("${FIFO_TAIL - 17}\n", &[], "main.ptx:1: FIFO_TAIL - 17 is negative or overflows"),
    ];
    for (text, params, expected) in cases {
        assert_eq!(failure(text, params), *expected);
    }
}

#[test]
fn a_name_used_only_in_a_skipped_branch_counts_as_used() {
    assert_eq!(run("#if sm == 70\n${X}\n#endif\n", &[("X", "1")]).unwrap(), "");
}
