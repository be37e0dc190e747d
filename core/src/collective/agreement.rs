//! The agreement of all ranks that they were asked for the same collective, before they choose its plans.

use super::config::CollectiveConfig;
use super::named::described;
use super::selector::PlanSelector;
use super::tuning::{Choice, Tuning};
use crate::comm::Communicator;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::{Element, Kind, Plan, Reduction};
use crate::wire::{Reader, WireResult, Writer, printable};

/// The longest text in a rank's word, in bytes.
const MAX_TEXT: usize = 1024;
/// The most settings in a rank's word, one of which stands for each variant and each plan of the caller's.
const MAX_SETTINGS: usize = 1 << 16;

/// Facts of all ranks together.
pub(super) struct Agreed {
    /// NVLink joins all ranks, as far as every one of them sees.
    pub(super) whole_lines: bool,
    /// What this collective may take of the scratch of every rank: half of what is left, so that the next one finds some, too.
    pub(super) scratch: u64,
}

/// What a rank tells the others.
#[derive(Debug, PartialEq, Eq)]
struct Word {
    whole_lines: bool,
    scratch: u64,
    /// The collective.
    kind: String,
    /// What its caller passed, in words that an error can quote.
    settings: Vec<String>,
    /// The row of its table and what else decides whether the table speaks, or why the rank cannot go on.
    table: std::result::Result<Table, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Table {
    given: bool,
    /// It is for other devices.
    misfit: bool,
    row: [u64; 5],
}

/// Makes sure that all ranks were given the same, and that none has failed.
pub(super) fn agree(
    op: &'static str,
    comm: &Communicator,
    (kind, config): (&Kind, &CollectiveConfig),
    given: &Result<Option<Tuning>>,
    deadline: Deadline,
) -> Result<Agreed> {
    // Scratch of collectives that were dropped while calls were in flight is free once these are over and somebody looks.
    comm.context().reap();
    let mine = Word {
        whole_lines: comm.topology().all_nvlink(),
        scratch: comm.scratch().left() / 2,
        kind: described(kind),
        settings: settings(config),
        table: given.as_ref().map(|table| Table::of(table.as_ref(), comm, kind)).map_err(ToString::to_string),
    };
    let all = comm.gather(op, &mine.encode(), deadline);
    let mut agreed = Agreed { whole_lines: mine.whole_lines, scratch: mine.scratch };
    if given.is_err() {
        // Its own error says more, also than a failure to tell it.
        return Ok(agreed);
    }
    for (rank, said) in (0..).zip(&all?) {
        let theirs = Word::decode(said).map_err(|error| {
            let message = format!("rank {rank} called something else; make the same calls on all ranks");
            Error::new(ErrorKind::Remote, op, message).with_peer(rank).with_source(error)
        })?;
        compare(&mine, &theirs, rank, comm.rank())
            .map_err(|(kind, message)| Error::new(kind, op, message).with_peer(rank))?;
        agreed.whole_lines &= theirs.whole_lines;
        agreed.scratch = agreed.scratch.min(theirs.scratch);
    }
    Ok(agreed)
}

/// Makes sure that input and output are one buffer on all ranks, or on none.
pub(super) fn agree_on_place(
    op: &'static str,
    comm: &Communicator,
    in_place: bool,
    deadline: Deadline,
) -> Result<()> {
    let all = comm.gather(op, &[u8::from(in_place)], deadline)?;
    let Some((rank, _)) = (0..).zip(&all).find(|(_, said)| **said != [u8::from(in_place)]) else {
        return Ok(());
    };
    let says = |one: bool| if one { "one buffer" } else { "two buffers" };
    let message = format!(
        "rank {rank} gives {}, and this rank {}; give one on all ranks or two on all",
        says(!in_place),
        says(in_place)
    );
    Err(Error::usage(op, message).with_peer(rank))
}

/// Ranks may differ in facts, and in nothing else.
fn compare(mine: &Word, theirs: &Word, rank: u32, me: u32) -> std::result::Result<(), (ErrorKind, String)> {
    if let Err(text) = &theirs.table {
        return Err((ErrorKind::Remote, format!("rank {rank} cannot prepare the collective: {text}")));
    }
    if mine.kind != theirs.kind {
        let (theirs, mine) = (printable(&theirs.kind), &mine.kind);
        let message = format!(
            "rank {rank} prepares {theirs}, and rank {me} {mine}; prepare the same on all ranks, in the same order"
        );
        return Err((ErrorKind::InvalidUsage, message));
    }
    let differs = mine.settings.iter().zip(&theirs.settings).find(|(mine, theirs)| mine != theirs);
    if let Some((own, other)) = differs {
        let (kind, other) = (&mine.kind, printable(other));
        let message = format!(
            "{kind}: rank {rank} was given {other}, rank {me} {own}; give every rank the same settings"
        );
        return Err((ErrorKind::InvalidUsage, message));
    }
    if mine.table != theirs.table {
        let message = format!(
            "rank {rank} has another table of choices than rank {me}; give all ranks the same file in AQUEDUCT_TUNING, or none"
        );
        return Err((ErrorKind::InvalidUsage, message));
    }
    Ok(())
}

/// What a caller passed, from which plans, sizes and ways follow. Which plans they are is compared when they are prepared.
fn settings(config: &CollectiveConfig) -> Vec<String> {
    let CollectiveConfig {
        variants,
        plans,
        packet_bytes,
        line_bytes,
        copy_bytes,
        push_bytes,
        staging_bytes,
        port_transport,
        any_order,
        call_order,
        tuning: _,
    } = config;
    let bytes = |name: &str, bytes: Option<u64>| match bytes {
        Some(bytes) => format!("{name} {bytes}"),
        None => format!("no {name}"),
    };
    let mut settings = vec![
        format!("{} types and reductions", variants.len()),
        bytes("packet_bytes", *packet_bytes),
        bytes("line_bytes", *line_bytes),
        bytes("copy_bytes", *copy_bytes),
        bytes("push_bytes", *push_bytes),
        bytes("staging_bytes", staging_bytes.map(|bytes| bytes as u64)),
        port_transport
            .map_or("no port_transport".to_owned(), |transport| format!("port_transport {transport}")),
        (if *any_order { "calls in any order" } else { "calls that may take turns" }).to_owned(),
        (if *call_order { "calls in one order" } else { "calls in an order to agree on" }).to_owned(),
        format!("{} plans of its own", plans.len()),
    ];
    // Each is a text of its own, because longer ones are cut on the way and would differ from this rank's.
    let variant = |(element, reduction): &(Element, Option<Reduction>)| {
        format!("{} {}", element.name(), reduction.map_or("moves", Reduction::name))
    };
    settings.extend(variants.iter().take(MAX_SETTINGS / 4).map(variant));
    let sizes = |(plan, calls): &(Plan, PlanSelector)| format!("the plan {:.200} for {calls}", plan.name);
    settings.extend(plans.iter().take(MAX_SETTINGS / 2).map(sizes));
    settings
}

impl Table {
    fn of(table: Option<&Tuning>, comm: &Communicator, kind: &Kind) -> Self {
        let row = table.and_then(|table| table.choice(kind, comm.size())).map_or([0; 5], |choice| {
            let Choice { packet_bytes, line_bytes, packet_blocks, blocks, copy_bytes } = choice;
            [packet_bytes, line_bytes, packet_blocks.into(), blocks.into(), copy_bytes]
        });
        // As the row decides, so do the devices that it is for.
        let misfit = table.is_some_and(|table| table.misfit(comm).is_some());
        Self { given: table.is_some(), misfit, row }
    }
}

impl Word {
    fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u8(self.whole_lines.into())
            .u64(self.scratch)
            .str_cut(&self.kind, MAX_TEXT)
            .count(self.settings.len());
        self.settings.iter().for_each(|text| _ = w.str_cut(text, MAX_TEXT));
        match &self.table {
            Ok(Table { given, misfit, row }) => {
                w.u8(0).u8((*given).into()).u8((*misfit).into());
                row.iter().for_each(|&number| _ = w.u64(number));
            }
            Err(text) => _ = w.u8(1).str_cut(text, MAX_TEXT),
        }
        w.finish()
    }

    fn decode(said: &[u8]) -> WireResult<Self> {
        let mut r = Reader::new(said);
        let (whole_lines, scratch, kind) = (r.bool()?, r.u64()?, r.str(MAX_TEXT)?.to_owned());
        let settings = (0..r.count(MAX_SETTINGS, size_of::<u32>())?)
            .map(|_| r.str(MAX_TEXT).map(str::to_owned))
            .collect::<WireResult<_>>()?;
        let table = if r.bool()? {
            Err(r.text(MAX_TEXT)?)
        } else {
            let (given, misfit) = (r.bool()?, r.bool()?);
            let mut row = [0; 5];
            for number in &mut row {
                *number = r.u64()?;
            }
            Ok(Table { given, misfit, row })
        };
        r.finish()?;
        Ok(Self { whole_lines, scratch, kind, settings, table })
    }
}

/// For [`crate::fuzzing`].
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    use super::*;

    /// A rank's word about a collective.
    pub fn collective_word(bytes: &[u8]) -> Option<Vec<u8>> {
        Word::decode(bytes).ok().map(|word| word.encode())
    }

    pub(crate) fn said() -> Vec<(&'static str, Vec<u8>)> {
        let row = Table { given: true, misfit: false, row: [1, 2, 3, 4, u64::MAX] };
        let settings = vec!["packet_bytes 3".to_owned(), String::new()];
        let say = |settings, table| {
            let kind = "allreduce".to_owned();
            ("collective-word", Word { whole_lines: true, scratch: 9, kind, settings, table }.encode())
        };
        vec![say(settings, Ok(row)), say(Vec::new(), Err("no such file".to_owned()))]
    }
}
