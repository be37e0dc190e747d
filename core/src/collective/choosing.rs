//! Which choices a collective takes: the caller's, those of a table, or a rule. All ranks come to the same.

use super::config::CollectiveConfig;
use super::sizes::{copy_bytes, packet_bytes, usual_blocks};
use super::tuning::{Choice, Tuning};
use crate::channel::Geometry;
use crate::comm::Communicator;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::Kind;
use crate::wire::{Reader, WireError, WireResult, Writer};

/// The longest text of an error that a rank tells the others.
const MAX_TEXT: usize = 1024;
/// Bytes of a rank's word that are facts about it.
const FACTS: usize = 1 + size_of::<u64>();

/// A choice, and where it comes from.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub(super) choice: Choice,
    /// For people.
    pub(super) why: String,
}

/// The choice for `kind`, and the least scratch in bytes that a rank allows. Collective.
///
/// # Errors
/// Of every rank: if one cannot read its table, or if tables differ.
pub(super) fn choose(
    op: &'static str,
    comm: &Communicator,
    kind: &Kind,
    config: &CollectiveConfig,
    geometry: Geometry,
    deadline: Deadline,
) -> Result<(Chosen, u64)> {
    // A rank that fails tells the others, which would wait for it.
    let given = config.check(op, kind).and_then(|()| match (&config.tuning, &comm.config().tuning) {
        (Some(table), _) => Ok(Some(table.clone())),
        (None, Some(path)) => Tuning::read(path).map(Some),
        (None, None) => Ok(None),
    });
    let Agreed { whole_lines, scratch } = agree(op, comm, kind, &given, deadline)?;
    let (most_packet, most) = usual_blocks(geometry);
    let ranks = comm.size();
    let usual = Choice {
        packet_bytes: packet_bytes(kind, ranks, geometry),
        // Nothing was measured.
        line_bytes: 0,
        packet_blocks: most_packet,
        blocks: most,
        copy_bytes: copy_bytes(kind, geometry, whole_lines),
    };
    let mut chosen = match given? {
        Some(table) => from_table(&table, comm, kind, usual),
        None => shipped(comm, kind, usual, "there is no table for these devices".to_owned()),
    };
    // A limit that one job's scratch serves may be too much for another's: two halves of packets of twice the bytes, from every
    // rank.
    let most = scratch / (4 * u64::from(ranks));
    for bytes in [&mut chosen.choice.packet_bytes, &mut chosen.choice.line_bytes] {
        if *bytes > most {
            chosen
                .why
                .push_str(&format!(", up to {most} bytes for want of scratch: see AQUEDUCT_SCRATCH_BYTES"));
            *bytes = most;
        }
    }
    if let Some(bytes) = config.packet_bytes {
        chosen.choice.packet_bytes = bytes;
        chosen.why = format!("the caller's packet_bytes; blocks: {}", chosen.why);
    }
    if let Some(bytes) = config.line_bytes {
        chosen.choice.line_bytes = bytes;
        chosen.why = format!("the caller's line_bytes; otherwise {}", chosen.why);
    }
    if let Some(bytes) = config.copy_bytes {
        chosen.choice.copy_bytes = bytes;
        chosen.why = format!("the caller's copy_bytes; otherwise {}", chosen.why);
    }
    if !whole_lines && chosen.choice.line_bytes > 0 {
        log::info!("NVLink does not join all ranks: {} takes no LL128 packets", kind.name());
        chosen.why.push_str("; no LL128 packets, because NVLink does not join all ranks");
        chosen.choice.line_bytes = 0;
    }
    Ok((chosen, scratch))
}

/// The table's choice if it has one for these ranks and devices, else the usual one.
fn from_table(table: &Tuning, comm: &Communicator, kind: &Kind, usual: Choice) -> Chosen {
    if let Some(misfit) = table.misfit(comm) {
        log::warn!("the table of choices {misfit}; it is passed over: make one here with `aqueduct tune`");
        return shipped(comm, kind, usual, format!("the table {misfit}"));
    }
    match table.choice(kind, comm.size()) {
        Some(choice) => Chosen { choice, why: format!("measured: table {}", table.name()) },
        None => {
            let ranks = comm.size();
            let why = format!("table {} has no line for {} of {ranks} ranks", table.name(), kind.name());
            shipped(comm, kind, usual, why)
        }
    }
}

/// The choice of the library's own table if it has one, otherwise the usual one. `why` says why no other table speaks.
fn shipped(comm: &Communicator, kind: &Kind, usual: Choice, why: String) -> Chosen {
    let own = Tuning::shipped(comm).and_then(|table| Some((table.choice(kind, comm.size())?, table)));
    match own {
        Some((choice, table)) => Chosen { choice, why: format!("measured: table {}", table.name()) },
        None => Chosen { choice: usual, why: format!("a rule; {why}") },
    }
}

/// Facts of all ranks together.
struct Agreed {
    /// NVLink joins all ranks, as far as every one of them sees.
    whole_lines: bool,
    /// The least scratch that a rank allows.
    scratch: u64,
}

/// Makes sure that all ranks were given the same, and that none has failed.
fn agree(
    op: &'static str,
    comm: &Communicator,
    kind: &Kind,
    given: &Result<Option<Tuning>>,
    deadline: Deadline,
) -> Result<Agreed> {
    let mut mine = Writer::new();
    mine.u8(comm.topology().all_nvlink().into()).u64(comm.config().scratch_bytes as u64);
    match given {
        Ok(table) => {
            // As the row decides, so do the devices that it is for.
            let row = table.as_ref().and_then(|table| table.choice(kind, comm.size()));
            let misfit = table.as_ref().is_some_and(|table| table.misfit(comm).is_some());
            mine.u8(0).u8(table.is_some().into()).u8(misfit.into());
            let row = row.map_or([0; 5], |choice| {
                let Choice { packet_bytes, line_bytes, packet_blocks, blocks, copy_bytes } = choice;
                [packet_bytes, line_bytes, packet_blocks.into(), blocks.into(), copy_bytes]
            });
            row.into_iter().for_each(|number| {
                mine.u64(number);
            });
        }
        Err(error) => {
            mine.u8(1).str_cut(&error.to_string(), MAX_TEXT);
        }
    }
    let mine = mine.finish();
    let all = comm.gather(op, &mine, deadline)?;
    let mut agreed = Agreed { whole_lines: true, scratch: u64::MAX };
    for said in &all {
        let mut reader = Reader::new(said);
        let facts = (|| Ok::<_, WireError>((reader.bool()?, reader.u64()?)))();
        let (whole_lines, scratch) = facts.unwrap_or((false, 0));
        agreed.whole_lines &= whole_lines;
        agreed.scratch = agreed.scratch.min(scratch);
    }
    if given.is_err() {
        // Its own error says more.
        return Ok(agreed);
    }
    for (rank, said) in (0..).zip(all).filter(|(rank, _)| *rank != comm.rank()) {
        let failure = failure(&said).map_err(|error| {
            Error::new(ErrorKind::Remote, op, format!("rank {rank} said something else")).with_source(error)
        })?;
        if let Some(text) = failure {
            let message = format!("rank {rank} cannot prepare the collective: {text}");
            return Err(Error::new(ErrorKind::Remote, op, message).with_peer(rank));
        }
        // Ranks may differ in these facts, but must have the same table.
        if said.get(FACTS..) != mine.get(FACTS..) {
            let message = format!(
                "rank {rank} has another table of choices than rank {}; give all ranks the same file in AQUEDUCT_TUNING, or none",
                comm.rank()
            );
            return Err(Error::usage(op, message).with_peer(rank));
        }
    }
    Ok(agreed)
}

/// The text of a rank that could not read its table.
fn failure(said: &[u8]) -> WireResult<Option<&str>> {
    let mut reader = Reader::new(said);
    // Its facts.
    reader.bool()?;
    reader.u64()?;
    if reader.bool()? { reader.str(MAX_TEXT).map(Some) } else { Ok(None) }
}
