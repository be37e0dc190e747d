//! Which choices a collective takes: the caller's, those of a table, or a rule. All ranks come to the same.

use super::agreement::{Agreed, agree};
use super::config::CollectiveConfig;
use super::plans::Hosts;
use super::sizes::{copy_bytes, packet_bytes, push_bytes, push_slice, staging_bytes, usual_blocks};
use super::tuning::{Choice, Tuning};
use crate::channel::Geometry;
use crate::comm::Communicator;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::plan::Kind;

/// A choice, and where it comes from.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub(super) choice: Choice,
    /// For people.
    pub(super) why: String,
    pub(super) push: Push,
    /// Bytes of a slice of a large message on buffers that peers do not reach.
    pub(super) staging: usize,
    /// Bytes of scratch that the collective may take.
    pub(super) scratch: u64,
}

/// Which messages are pushed. No table has a column for it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Push {
    /// The smallest one in bytes of the larger buffer; 0 for none.
    pub(super) from: u64,
    /// Bytes of a slice.
    pub(super) slice: u64,
    /// For people.
    pub(super) why: &'static str,
}

/// The choice for `kind`. Collective.
///
/// # Errors
/// Of every rank: if one cannot read its table, or if tables or settings differ.
pub(super) fn choose(
    op: &'static str,
    comm: &Communicator,
    kind: &Kind,
    config: &CollectiveConfig,
    geometry: Geometry,
    deadline: Deadline,
) -> Result<Chosen> {
    // A rank that fails tells the others, which would wait for it.
    let given =
        config.check(op, kind, comm.size()).and_then(|()| match (&config.tuning, &comm.config().tuning) {
            (Some(table), _) => Ok(Some(table.clone())),
            (None, Some(path)) => Tuning::read(path).map(Some),
            (None, None) => Ok(None),
        });
    let Agreed { whole_lines, scratch } = agree(op, comm, (kind, config), &given, deadline)?;
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
    let (given, staging) = (given?, staging_bytes(ranks, config, geometry, scratch));
    if Hosts::of(comm).count() > 1 {
        let why = "a rule; packets, copy engines and tables are for ranks of one host".to_owned();
        return Ok(Chosen { choice: usual, why, push: Push::default(), staging, scratch });
    }
    let (choice, why) = match given {
        Some(table) => from_table(&table, comm, kind, usual),
        None => shipped(comm, kind, usual, "there is no table for these devices".to_owned()),
    };
    let mut chosen = Chosen { choice, why, push: Push::default(), staging, scratch };
    // A limit that one job's scratch serves may be too much for another's: two halves of packets of twice the bytes, from every
    // rank, in up to four plans, which leave the other half to plans of slices.
    let most = scratch / (32 * u64::from(ranks));
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
    let (from, why) = match config.push_bytes {
        Some(bytes) => (bytes, "the caller's push_bytes"),
        None => (push_bytes(kind, ranks, geometry, whole_lines), "a rule"),
    };
    if from > 0 && *kind == Kind::AllReduce && ranks > 2 {
        match push_slice(geometry, scratch, staging) {
            Some(slice) => chosen.push = Push { from, slice, why },
            None => {
                let words = "; nothing is pushed, for want of scratch: see AQUEDUCT_SCRATCH_BYTES";
                chosen.why.push_str(words);
            }
        }
    }
    Ok(chosen)
}

/// The table's choice if it has one for these ranks and devices, else the usual one.
fn from_table(table: &Tuning, comm: &Communicator, kind: &Kind, usual: Choice) -> (Choice, String) {
    if let Some(misfit) = table.misfit(comm) {
        log::warn!("the table of choices {misfit}; it is passed over: make one here with `aqueduct tune`");
        return shipped(comm, kind, usual, format!("the table {misfit}"));
    }
    match table.choice(kind, comm.size()) {
        Some(choice) => (choice, format!("measured: table {}", table.name())),
        None => {
            let ranks = comm.size();
            let why = format!("table {} has no line for {} of {ranks} ranks", table.name(), kind.name());
            shipped(comm, kind, usual, why)
        }
    }
}

/// The choice of the library's own table if it has one, otherwise the usual one. `why` says why no other table speaks.
fn shipped(comm: &Communicator, kind: &Kind, usual: Choice, why: String) -> (Choice, String) {
    let own = Tuning::shipped(comm).and_then(|table| Some((table.choice(kind, comm.size())?, table)));
    match own {
        Some((choice, table)) => (choice, format!("measured: table {}", table.name())),
        None => (usual, format!("a rule; {why}")),
    }
}
