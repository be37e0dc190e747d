//! Requests to the proxy of a port channel.

use super::side::{Side, name};
use super::text::Text;
use super::{Base, Number, Port, PortPut, Rows, row_steps};
use crate::TemplateError;
use crate::abi::TriggerKind;

/// Writes a request, for the first thread; all lanes of the first warp come here if it waits for packets.
pub(super) fn write(text: &mut Text<'_>, port: &Port, loops: bool) -> Result<(), TemplateError> {
    let flag = if port.signal { TriggerKind::FLAG } else { TriggerKind::default() };
    let sync = if port.flush { TriggerKind::SYNC } else { TriggerKind::default() };
    let rest = flag.with(sync).0;
    text.line("{");
    text.include("plan_port", &[])?;
    let channel = text.number(port.channel)?;
    text.address(&channel, "%q_handle")?;
    if let Some(put) = port.put.as_ref().filter(|put| put.by_rows) {
        let source = Side::of(text, &put.source, "%q_from".to_owned())?;
        let target = Side::of(text, &put.target, "%q_to".to_owned())?;
        row_steps::piece(text, &source, &target, rest)?;
        ask(text, port.flush, "ASKED")?;
    } else if let Some(put) = &port.put {
        pieces(text, put, rest, port.flush, loops)?;
    } else {
        text.include("plan_no_piece", &[("REST", &rest)])?;
        ask(text, port.flush, "ASKED")?;
    }
    text.line("}");
    Ok(())
}

/// Writes the request to put a rank's rows, for the first thread.
pub(super) fn put_rows(text: &mut Text<'_>, channel: Number, rows: Rows) -> Result<(), TemplateError> {
    text.line("{");
    text.include("plan_port", &[])?;
    let channel = text.number(channel)?;
    text.address(&channel, "%q_handle")?;
    row_steps::put(text, rows)?;
    ask(text, false, "ASKED")?;
    text.line("}");
    Ok(())
}

/// Writes a wait for the peer, for the first thread.
pub(super) fn wait(text: &mut Text<'_>, channel: Number) -> Result<(), TemplateError> {
    text.line("{");
    text.include("plan_handle", &[])?;
    let channel = text.number(channel)?;
    text.address(&channel, "%q_handle")?;
    text.include("plan_port_wait", &[("HANDLE", &"%q_handle")])?;
    text.line("}");
    Ok(())
}

/// Writes a put: one request, or one for each chunk where chunks are apart.
fn pieces(
    text: &mut Text<'_>,
    put: &PortPut,
    rest: u8,
    flush: bool,
    loops: bool,
) -> Result<(), TemplateError> {
    let count = text.number(put.count)?;
    let source = Side::of(text, &put.source, "%q_p0".to_owned())?;
    let target = Side::of(text, &put.target, "%q_p1".to_owned())?;
    let awaited = put.awaits.map(|operand| Side::of(text, &operand, "%q_p2".to_owned())).transpose()?;
    let sides = || [&source, &target].into_iter().chain(&awaited);
    sides().try_for_each(|side| side.locate(text))?;
    text.include(
        "plan_range",
        &[
            ("LOOPS", &u32::from(loops)),
            ("SHARES", &0),
            ("COUNT", &count),
            ("MEMBER", &0),
            ("OF", &1),
            ("START", &"%q_start"),
            ("END", &"%q_end"),
        ],
    )?;
    text.include(
        "plan_pieces",
        &[
            ("USER", &u32::from(sides().any(Side::is_users))),
            ("SCRATCH", &u32::from(sides().any(|side| !side.is_users()))),
            ("COUNT", &count),
            ("PIECE", &"PIECE"),
            ("READY", &"READY"),
            ("PAST", &"PAST"),
        ],
    )?;
    for (side, to) in [(&source, "%q_from"), (&target, "%q_to")] {
        at(text, side, to)?;
    }
    text.include("plan_piece_bytes", &[("PACKETS", &u32::from(source.base == Base::Packets))])?;
    for side in [&source, &target].into_iter().filter(|side| side.is_users()) {
        text.include("plan_piece_user", &[("BASE", &name(side.base)), ("FIRST", &side.first)])?;
    }
    text.include("plan_piece_kind", &[("REST", &rest), ("COUNT", &count)])?;
    if let Some(side) = &awaited {
        at(text, side, "%q_packets")?;
        text.include(
            "plan_await",
            &[("FROM", &"%q_packets"), ("VECTORS", &"%q_length"), ("PEER", &side.rank)],
        )?;
        text.include("plan_together", &[("ASKS", &1)])?;
        text.include("plan_lane", &[("LANES", &1), ("PAST", &"ASKED")])?;
    }
    text.include("plan_unless_left", &[("PAST", &"ASKED")])?;
    ask(text, flush, "ASKED")?;
    text.include("plan_pieces_end", &[("PIECE", &"PIECE"), ("PAST", &"PAST")])
}

fn at(text: &mut Text<'_>, side: &Side, to: &str) -> Result<(), TemplateError> {
    text.include("plan_piece_at", &[("BASE", &name(side.base)), ("RANGE", &side.register), ("TO", &to)])
}

fn ask(text: &mut Text<'_>, flush: bool, past: &str) -> Result<(), TemplateError> {
    text.include("plan_ask", &[("FLUSHES", &u32::from(flush)), ("HANDLE", &"%q_handle"), ("PAST", &past)])?;
    text.include("plan_label", &[("NAME", &past)])
}
