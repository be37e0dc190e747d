//! The example of docs/race-detector.md, and what the page says about it.

use crate::device::races;

const PAGE: &str = include_str!("../../../../docs/race-detector.md");

/// The first code block of this language.
fn block(language: &str) -> &'static str {
    let fence = format!("```{language}\n");
    let begin = PAGE.find(&fence).expect("the page has such a block") + fence.len();
    &PAGE[begin..begin + PAGE[begin..].find("```").expect("it ends")]
}

/// The races of the kernel, under the name that these tests launch.
fn reports(ptx: &str) -> Vec<String> {
    let ptx = ptx.replace(".entry tell(", ".entry k(");
    races(|devices| devices.launch_text(&ptx, 0, 2, 1))
}

#[test]
fn the_page_shows_what_is_found() {
    let found = reports(block("ptx"));
    let [race] = found.as_slice() else { panic!("one race: {found:#?}") };
    for access in block("text").lines().filter(|line| line.starts_with("    ")) {
        let access = access.trim().replace(": tell,", ": k,");
        assert!(race.contains(&access), "{access} is not in {race}");
    }
    // All but the number.
    let title = |text: &str| {
        let (before, rest) = text.split_once("0x").expect("an address");
        let (_, behind) = rest.split_once(" + ").expect("an offset");
        [before.trim_start_matches("cuda-soft: "), behind.lines().next().expect("a line")].map(str::to_owned)
    };
    assert_eq!(title(race), title(block("text")));
    let mended = block("ptx").replace("st.relaxed.gpu", "st.release.gpu");
    assert_eq!(reports(&mended), Vec::<String>::new());
}
