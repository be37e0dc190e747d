//! Chunks of sizes of their own: ranks show each other rows, judge them, and move what they say.

use super::side::{Side, name};
use super::text::{BARRIER, Text};
use super::{Move, Rows};
use crate::TemplateError;

type Done = Result<(), TemplateError>;

/// Writes the search for this call's tables.
pub(super) fn find(text: &mut Text<'_>, rows: Rows) -> Done {
    let (ranks, shared) = (text.kernel.ranks, u32::from(rows.shared));
    text.include("plan_rows_find", &[("RANKS", &ranks), ("TABLES", &rows.tables), ("SHARED", &shared)])
}

/// Writes a rank's rows into the tables of all ranks that it reaches.
pub(super) fn show(text: &mut Text<'_>, rows: Rows) -> Done {
    let (ranks, threads) = (text.kernel.ranks, text.kernel.threads);
    find(text, rows)?;
    text.include(
        "plan_rows_show",
        &[
            ("RANKS", &ranks),
            ("REACHED", &rows.reached),
            ("BOUNDED", &u32::from(rows.bounded)),
            ("ME", &rows.me),
            ("THREADS", &threads),
            ("CONTROLS", &rows.controls),
            ("WORDS", &rows.words),
        ],
    )
}

/// Writes the comparison of all rows.
pub(super) fn judge(text: &mut Text<'_>, rows: Rows) -> Done {
    let (ranks, threads) = (text.kernel.ranks, text.kernel.threads);
    text.include(
        "plan_rows_judge",
        &[
            ("RANKS", &ranks),
            ("ME", &rows.me),
            ("THREADS", &threads),
            ("BARRIER", &BARRIER),
            ("EXACT", &u32::from(rows.exact)),
            ("WORDS", &rows.words),
            ("LEAVE", &"LEAVE"),
        ],
    )
}

/// Writes the block's part of a move, whose size `row` says.
pub(super) fn range(text: &mut Text<'_>, moved: &Move, row: &str) -> Done {
    let (member, of) = match moved.share {
        Some(share) => (text.number(share.member)?, text.number(share.of)?),
        None => ("0".to_owned(), "1".to_owned()),
    };
    text.include(
        "plan_rows_range",
        &[
            ("SHARES", &u32::from(moved.share.is_some())),
            ("ROW", &row),
            ("MEMBER", &member),
            ("OF", &of),
            ("START", &"%m_start"),
            ("END", &"%m_end"),
        ],
    )
}

/// Writes the limits of a move's vectors by one of its operands.
pub(super) fn limit(text: &mut Text<'_>, side: &Side) -> Done {
    text.include("plan_rows_user", &[("START", &"%m_start"), ("AT", &side.register), ("WHOLE", &"%m_whole")])
}

/// Writes the address of an operand.
pub(super) fn locate(text: &mut Text<'_>, side: &Side) -> Done {
    text.include(
        "plan_rows_operand",
        &[
            ("BASE", &name(side.base)),
            ("FIXED", &u32::from(side.fixed)),
            ("INDEX", &side.index),
            ("ROW", &side.first),
            ("TO", &side.register),
        ],
    )
}

/// Writes the way past a move of a chunk onto itself.
pub(super) fn unless_same(text: &mut Text<'_>, source: &Side, target: &Side, past: &str) -> Done {
    text.include("plan_rows_same", &[("FROM", &source.register), ("TO", &target.register), ("PAST", &past)])
}

/// Writes the request to put a rank's rows into the table of a peer that it does not reach, for the first thread.
pub(super) fn put(text: &mut Text<'_>, rows: Rows) -> Done {
    let ranks = text.kernel.ranks;
    text.include("plan_rows_put", &[("RANKS", &ranks), ("ME", &rows.me)])
}

/// Writes the request to put a chunk, for the first thread: the source's row says how long it is.
pub(super) fn piece(text: &mut Text<'_>, source: &Side, target: &Side, rest: u8) -> Done {
    locate(text, source)?;
    match target.is_users() {
        true => locate(text, target)?,
        false => target.locate(text)?,
    }
    text.include("plan_rows_piece", &[("REST", &rest), ("ROW", &source.first)])
}
