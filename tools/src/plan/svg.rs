//! A timeline as a picture: a lane for each block, a box for each operation, an arrow for each signal.
//!
//! Equal timelines give equal files. Boxes say what they are when pointed at; their colours stand in the legend.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use aqueduct::plan::cost::{Arrow, ArrowKind, Span, Timeline};
use aqueduct::plan::{Form, Op, Plan};

use super::show;

/// Most operations of a drawing: viewers become slow with more.
pub(super) const MOST: usize = 20_000;

/// Units of a picture, which are pixels at its usual size.
const WIDTH: f64 = 1200.0;
const LEFT: f64 = 120.0;
const TOP: f64 = 70.0;
const LANE: f64 = 26.0;
/// Between ranks.
const GAP: f64 = 14.0;
/// The smallest box.
const LEAST: f64 = 0.6;
/// Width of a letter of a label.
const LETTER: f64 = 5.6;

/// Kinds of boxes, with their colours.
const KINDS: [(&str, &str); 8] = [
    ("move", "#4c78a8"),
    ("packets", "#72b7b2"),
    ("reduce", "#f58518"),
    ("port", "#b279a2"),
    ("signal", "#54a24b"),
    ("wait", "#e0e0e0"),
    ("sync", "#9d755d"),
    ("other", "#bab0ac"),
];

/// A call of a plan, drawn by its [`Display`].
pub(crate) struct Drawing<'t> {
    pub(crate) plan: &'t Plan,
    pub(crate) timeline: &'t Timeline,
    /// Size of the message, and where the times are from.
    pub(crate) about: &'t str,
}

/// Where things are in the picture.
struct Scale {
    /// Middle of each block's lane.
    lanes: BTreeMap<(u32, u32), f64>,
    /// First lane of each rank.
    ranks: Vec<(u32, f64)>,
    height: f64,
    /// Units of a nanosecond.
    unit: f64,
}

impl Scale {
    fn of(plan: &Plan, timeline: &Timeline) -> Self {
        let (mut lanes, mut ranks, mut y) = (BTreeMap::new(), Vec::new(), TOP);
        for (rank, rank_plan) in (0..).zip(&plan.ranks) {
            ranks.push((rank, y));
            for (block, _) in (0..).zip(&rank_plan.blocks) {
                lanes.insert((rank, block), y + LANE / 2.0);
                y += LANE;
            }
            y += GAP;
        }
        let unit = (WIDTH - LEFT - 20.0) / timeline.end().max(1) as f64;
        Self { lanes, ranks, height: y + 30.0, unit }
    }

    fn x(&self, nanoseconds: u64) -> f64 {
        LEFT + nanoseconds as f64 * self.unit
    }
}

impl Display for Drawing<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { plan, timeline, about } = self;
        let scale = Scale::of(plan, timeline);
        let height = scale.height;
        writeln!(
            f,
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="11">"#
        )?;
        let title =
            format!("{}: {} of {} ranks, {about}", plan.name, plan.collective.kind.name(), plan.ranks.len());
        writeln!(f, "<title>{}</title>", Escaped(&title))?;
        writeln!(
            f,
            r#"<defs><marker id="head" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" markerHeight="6" orient="auto"><path d="M0 0 6 3 0 6z"/></marker></defs>"#
        )?;
        writeln!(f, r#"<rect width="100%" height="100%" fill="white"/>"#)?;
        writeln!(f, r#"<text x="10" y="18" font-size="14">{}</text>"#, Escaped(&title))?;
        legend(f)?;
        axis(f, &scale, timeline.end())?;
        for &(rank, y) in &scale.ranks {
            writeln!(f, r#"<text x="10" y="{:.1}" font-weight="bold">rank {rank}</text>"#, y + 17.0)?;
        }
        for (&(_, block), y) in &scale.lanes {
            writeln!(f, r##"<line x1="{LEFT}" y1="{y:.1}" x2="{WIDTH}" y2="{y:.1}" stroke="#ddd"/>"##)?;
            writeln!(f, r#"<text x="70" y="{:.1}">block {block}</text>"#, y + 4.0)?;
        }
        timeline.spans.iter().try_for_each(|span| operation(f, plan, &scale, span))?;
        timeline.arrows.iter().try_for_each(|given| arrow(f, &scale, given))?;
        writeln!(f, "</svg>")
    }
}

fn legend(f: &mut Formatter<'_>) -> fmt::Result {
    let mut x = 10.0;
    for (name, colour) in KINDS {
        writeln!(f, r#"<rect x="{x:.1}" y="28" width="10" height="10" fill="{colour}"/>"#)?;
        writeln!(f, r#"<text x="{:.1}" y="37">{name}</text>"#, x + 14.0)?;
        x += 30.0 + LETTER * name.len() as f64;
    }
    Ok(())
}

/// Writes lines at round times, ten at most.
fn axis(f: &mut Formatter<'_>, scale: &Scale, end: u64) -> fmt::Result {
    let mut step = 1_u64;
    while end / step > 10 {
        // 1, 2, 5, 10, ...
        step = if step.to_string().starts_with('2') { step / 2 * 5 } else { step * 2 };
    }
    for nanoseconds in (0..=end).step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
        let (x, bottom) = (scale.x(nanoseconds), scale.height - 25.0);
        writeln!(
            f,
            r##"<line x1="{x:.1}" y1="{:.1}" x2="{x:.1}" y2="{bottom:.1}" stroke="#eee"/>"##,
            TOP - 12.0
        )?;
        let us = nanoseconds as f64 / 1e3;
        writeln!(f, r#"<text x="{x:.1}" y="{:.1}" text-anchor="middle">{us} us</text>"#, TOP - 15.0)?;
    }
    Ok(())
}

/// The name of an operation's kind in [`KINDS`].
fn kind(op: &Op) -> &'static str {
    match op {
        Op::Move(moved) if moved.reduction.is_some() => "reduce",
        Op::Move(moved) => {
            let packets =
                moved.sources.iter().chain(&moved.targets).any(|operand| operand.form == Form::Packets);
            if packets { "packets" } else { "move" }
        }
        Op::Port(_) | Op::Flush { .. } => "port",
        Op::Signal { .. } | Op::Release { .. } => "signal",
        Op::Wait { .. } | Op::Acquire { .. } => "wait",
        Op::Sync | Op::Barrier(_) => "sync",
        Op::Loop(_) => "other",
    }
}

fn operation(f: &mut Formatter<'_>, plan: &Plan, scale: &Scale, span: &Span) -> fmt::Result {
    let (Some(op), Some(y)) = (span.op_of(plan), scale.lanes.get(&(span.rank, span.block))) else {
        return Ok(());
    };
    let kind = kind(op);
    let colour = KINDS.iter().find(|(name, _)| *name == kind).map_or("#000", |(_, colour)| colour);
    // Data above, control below: a block's threads do both at once.
    let (top, height) = match kind {
        "move" | "packets" | "reduce" => (y - 11.0, 12.0),
        "sync" => (y - 11.0, 22.0),
        _ => (y + 1.0, 10.0),
    };
    let (x, width) = (scale.x(span.start), ((span.end - span.start) as f64 * scale.unit).max(LEAST));
    let Span { rank, block, op: index, inner, iteration, start, end } = *span;
    let within = inner.map_or_else(String::new, |inner| format!(".{inner} of turn {iteration}"));
    let text = show::text(op);
    writeln!(
        f,
        r#"<g class="op {kind}"><rect x="{x:.2}" y="{top:.1}" width="{width:.2}" height="{height}" fill="{colour}" stroke="white" stroke-width="0.3"/><title>rank {rank} block {block} operation {index}{within}: {}, {} to {} us</title>"#,
        Escaped(&text),
        start as f64 / 1e3,
        end as f64 / 1e3
    )?;
    if width > LETTER * text.len() as f64 {
        writeln!(
            f,
            r#"<text x="{:.2}" y="{:.1}" font-size="9">{}</text>"#,
            x + 2.0,
            top + 9.0,
            Escaped(&text)
        )?;
    }
    writeln!(f, "</g>")
}

fn arrow(f: &mut Formatter<'_>, scale: &Scale, given: &Arrow) -> fmt::Result {
    let Arrow { kind, from, to, .. } = given;
    let (Some(low), Some(high)) =
        (scale.lanes.get(&(from.rank, from.block)), scale.lanes.get(&(to.rank, to.block)))
    else {
        return Ok(());
    };
    let (class, colour) = match kind {
        ArrowKind::Signal => ("signal", "#2a6f23"),
        _ => ("semaphore", "#7b4f9d"),
    };
    let (x1, x2) = (scale.x(from.at), scale.x(to.at));
    writeln!(
        f,
        r#"<path class="arrow {class}" d="M{x1:.2} {:.1}L{x2:.2} {:.1}" stroke="{colour}" fill="none" marker-end="url(#head)"><title>{class}: rank {} block {} to rank {} block {}, {} to {} us</title></path>"#,
        low + 6.0,
        high + 6.0,
        from.rank,
        from.block,
        to.rank,
        to.block,
        from.at as f64 / 1e3,
        to.at as f64 / 1e3
    )
}

/// Text of XML: a name may hold anything, and XML has no way to write control characters.
struct Escaped<'t>(&'t str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        crate::printable::printable(self.0).chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            c => write!(f, "{c}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use aqueduct::plan::cost::{Machine, timeline};
    use aqueduct::plan::programs;

    use super::*;

    /// An element and its attributes.
    type Found = (String, HashMap<String, String>);

    /// Elements and attributes of a document, or what is wrong with it. It knows as much of XML as a drawing uses.
    fn parsed(text: &str) -> Result<Vec<Found>, String> {
        let (mut open, mut found, mut rest) = (Vec::new(), Vec::new(), text);
        while let Some(start) = rest.find('<') {
            let (before, tag) = rest.split_at(start);
            unescaped(before)?;
            let end = tag.find('>').ok_or("a tag does not end")?;
            let (inside, after) = (&tag[1..end], &tag[end + 1..]);
            rest = after;
            if let Some(name) = inside.strip_prefix('/') {
                if open.pop() != Some(name) {
                    return Err(format!("{name} ends where another is open"));
                }
                continue;
            }
            let (inside, empty) = inside.strip_suffix('/').map_or((inside, false), |inside| (inside, true));
            let (name, mut attributes) = inside.split_once(' ').unwrap_or((inside, ""));
            let mut all = HashMap::new();
            while let Some((key, value)) = attributes.split_once("=\"") {
                let (value, more) = value.split_once('"').ok_or("an attribute does not end")?;
                if all.insert(key.trim().to_owned(), unescaped(value)?).is_some() {
                    return Err(format!("{key} twice"));
                }
                attributes = more;
            }
            if !attributes.trim().is_empty() || !name.chars().all(char::is_alphanumeric) {
                return Err(format!("no tag: {inside}"));
            }
            found.push((name.to_owned(), all));
            if !empty {
                open.push(name);
            }
        }
        match (open.as_slice(), rest.trim()) {
            ([], "") => Ok(found),
            _ => Err("not all is closed".into()),
        }
    }

    fn unescaped(text: &str) -> Result<String, String> {
        let mut plain = text.to_owned();
        for (name, c) in [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'")] {
            plain = plain.replace(name, c);
        }
        if text.contains(['<', '>'])
            || text.replace("&amp;", "").matches('&').count()
                != text.matches("&lt;").count()
                    + text.matches("&gt;").count()
                    + text.matches("&quot;").count()
                    + text.matches("&#39;").count()
        {
            return Err(format!("not escaped: {text}"));
        }
        if text.chars().any(|c| c.is_control() && c != '\n') {
            return Err(format!("a control character: {text:?}"));
        }
        Ok(plain.replace("&amp;", "&"))
    }

    fn plan(collective: &str, name: &str) -> Plan {
        programs::find(collective, Some(name))
            .unwrap()
            .program(4, &programs::Choices::default())
            .unwrap()
            .compile()
            .unwrap()
    }

    fn drawn(plan: &Plan) -> (Timeline, String) {
        let timeline = timeline(plan, &Machine::named("h200-x4").unwrap(), 1 << 20).unwrap();
        let text = Drawing { plan, timeline: &timeline, about: "1 MiB" }.to_string();
        (timeline, text)
    }

    #[test]
    fn a_drawing_has_each_operation_and_each_arrow() {
        for (collective, name) in [
            ("all-reduce", "ring"),
            ("all-reduce", "two-shot-packets"),
            ("all-to-all", "pipelined"),
            ("broadcast", "line"),
        ] {
            let plan = plan(collective, name);
            let (timeline, text) = drawn(&plan);
            let elements = parsed(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
            let of = |class: &str| {
                let is = |value: &String| value.split(' ').next() == Some(class);
                elements.iter().filter(|(_, all)| all.get("class").is_some_and(is)).count()
            };
            assert!(!timeline.spans.is_empty());
            assert_eq!(of("op"), timeline.spans.len(), "{name}");
            assert_eq!(of("arrow"), timeline.arrows.len(), "{name}");
            for span in &timeline.spans {
                let said = format!(
                    ">rank {} block {} operation {}{}: {}, ",
                    span.rank,
                    span.block,
                    span.op,
                    span.inner
                        .map_or_else(String::new, |inner| format!(".{inner} of turn {}", span.iteration)),
                    Escaped(&show::text(span.op_of(&plan).unwrap()))
                );
                assert!(text.contains(&said), "{name}: {said}");
            }
            for box_of in elements.iter().filter(|(element, _)| element == "rect").skip(1) {
                let number = |key: &str| box_of.1[key].parse::<f64>().unwrap();
                assert!(number("x") >= 0.0 && number("x") + number("width") <= WIDTH, "{box_of:?}");
            }
            assert_eq!(text, drawn(&plan).1, "the same again");
        }
    }

    #[test]
    fn names_are_escaped() {
        let mut plan = plan("all-reduce", "ring");
        plan.name = "</title><script>\x1b[31m&\"'\u{0}\u{ffff}".into();
        let (_, text) = drawn(&plan);
        parsed(&text).unwrap();
        let escaped =
            r"&lt;/title&gt;&lt;script&gt;\u{1b}[31m&amp;&quot;&#39;\0\u{ffff}: allreduce of 4 ranks, 1 MiB";
        assert!(text.contains(&format!("<title>{escaped}</title>")), "{text}");
    }

    #[test]
    fn this_files_parser_finds_what_is_not_well_formed() {
        for wrong in
            ["<a>", "<a></b>", "<a b=\"1\" b=\"2\"/>", "<a b=1/>", "<a>&</a>", "<a>\x1b</a>", "<a", "</a>"]
        {
            assert!(parsed(wrong).is_err(), "{wrong:?}");
        }
        assert!(parsed("<a b=\"&amp;lt;\"><c/>&lt;</a>\n").is_ok());
    }
}
