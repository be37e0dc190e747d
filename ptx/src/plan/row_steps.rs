//! Chunks of sizes of their own: ranks show each other rows, judge them, and move what they say.

use super::side::{Side, name};
use super::text::Text;
use super::{Move, Rows};
use crate::TemplateError;

type Done = Result<(), TemplateError>;

/// Writes a rank's rows into the tables of all ranks.
pub(super) fn show(text: &mut Text<'_>, rows: Rows) -> Done {
    let (ranks, threads) = (text.kernel.ranks, text.kernel.threads);
    text.include(
        "plan_rows_show",
        &[
            ("RANKS", &ranks),
            ("ME", &rows.me),
            ("THREADS", &threads),
            ("TABLES", &rows.tables),
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
            ("EXACT", &u32::from(rows.exact)),
            ("WORDS", &rows.words),
            ("LEAVE", &"LEAVE"),
        ],
    )
}

/// Writes the block's part of a move, whose first source's row is `row`.
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
