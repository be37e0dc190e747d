//! Tables of measured choices: which way serves messages of which size, and by how many blocks.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use crate::comm::Communicator;
use crate::error::{Error, Result};
use crate::plan::Kind;

const OP: &str = "collective::Tuning";
/// The first line of a table: its format's name and version.
const FORMAT: &str = "aqueduct-tuning 3";
/// Kernels of more blocks than this are no better on any device, and their channels cost setup time.
const MOST_BLOCKS: u32 = 512;
/// No table is longer.
const MOST_TEXT: u64 = 1 << 20;

/// Tables that come with the library.
const SHIPPED: [(&str, &str); 2] =
    [("h100", include_str!("h100.tuning")), ("h200", include_str!("h200.tuning"))];

/// How a collective is run on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The largest message that goes as packets, in bytes of the larger of a rank's two buffers; 0 for none.
    pub packet_bytes: u64,
    /// The largest message that goes as LL128 packets where it is too long for `packet_bytes`; 0 for none. Only ranks that NVLink
    /// joins heed it.
    pub line_bytes: u64,
    /// The most blocks of a kernel that sends packets of either sort; it takes as many of them as the message needs.
    pub packet_blocks: u32,
    /// The blocks of a kernel that reads and writes the peers' buffers.
    pub blocks: u32,
    /// The smallest message that copy engines move between buffers shown to the peers, if it is too long for packets; 0 for none.
    pub copy_bytes: u64,
}

/// Measured choices for one sort of device, by collective and number of ranks. `aqueduct tune` writes them.
///
/// The text begins with a line `aqueduct-tuning 3`, then `device` with the product name and `multiprocessors` with their number, and
/// then a line for each choice: the collective, ranks, bytes that go as packets and as LL128 packets, blocks of kernels that send
/// these and blocks of those that reach the peers' buffers, and bytes from which on copy engines move the data, as in
/// `all-reduce 2 524288 0 64 32 0`. `#` begins a comment. A table
/// speaks only for devices of its name and size: on others it is passed over, and the log says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuning {
    name: String,
    device: String,
    multiprocessors: u32,
    choices: BTreeMap<(String, u32), Choice>,
}

/// The names of collectives in tables, as the command has them.
const NAMES: [&str; 9] = [
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send-recv",
];

fn name_of(kind: &Kind) -> Option<&'static str> {
    Some(match kind {
        Kind::AllReduce => "all-reduce",
        Kind::AllGather => "all-gather",
        Kind::ReduceScatter => "reduce-scatter",
        Kind::AllToAll => "all-to-all",
        Kind::Broadcast { .. } => "broadcast",
        Kind::Reduce { .. } => "reduce",
        Kind::Gather { .. } => "gather",
        Kind::Scatter { .. } => "scatter",
        Kind::SendRecv => "send-recv",
        Kind::Custom(_) => return None,
    })
}

impl Tuning {
    /// An empty table for devices of this product name with so many multiprocessors. `name` is for messages.
    pub fn new(name: impl Into<String>, device: impl Into<String>, multiprocessors: u32) -> Self {
        Self { name: name.into(), device: device.into(), multiprocessors, choices: BTreeMap::new() }
    }

    /// Adds or replaces the choice for a collective of so many ranks. A root does not matter.
    ///
    /// # Errors
    /// `InvalidUsage` for a collective of the user's own, no ranks, or blocks that are not 1 to 512.
    pub fn insert(&mut self, kind: &Kind, ranks: u32, choice: Choice) -> Result<()> {
        let Some(name) = name_of(kind) else {
            return Err(Error::usage(OP, format!("{} is no built-in collective", kind.name())));
        };
        check(ranks, choice).map_err(|message| Error::usage(OP, message))?;
        self.choices.insert((name.to_owned(), ranks), choice);
        Ok(())
    }

    /// The choice for a collective of so many ranks, if there is one.
    pub fn choice(&self, kind: &Kind, ranks: u32) -> Option<Choice> {
        self.choices.get(&(name_of(kind)?.to_owned(), ranks)).copied()
    }

    /// Reads a table. `name` is for messages.
    ///
    /// # Errors
    /// `InvalidUsage`, with the line that is wrong; also for a table of another version of the format.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let refuse =
            |line: usize, message: String| Err(Error::usage(OP, format!("{name}, line {line}: {message}")));
        let mut table = Self::new(name, "", 0);
        let mut first = true;
        for (line, content) in (1..).zip(text.lines()) {
            let content = content.split('#').next().unwrap_or("").trim();
            if content.is_empty() {
                continue;
            }
            if std::mem::take(&mut first) {
                if content != FORMAT {
                    return refuse(
                        line,
                        format!("{content:?} instead of {FORMAT:?}; make it anew with `aqueduct tune`"),
                    );
                }
                continue;
            }
            let (key, rest) = content.split_once(char::is_whitespace).unwrap_or((content, ""));
            let numbers: Vec<Option<u64>> = rest.split_whitespace().map(|word| word.parse().ok()).collect();
            let added = match key {
                "device" if table.device.is_empty() && !rest.is_empty() => {
                    table.device = rest.trim().to_owned();
                    Ok(())
                }
                "multiprocessors" => match numbers[..] {
                    [Some(number @ 1..=0xffff)] if table.multiprocessors == 0 => {
                        table.multiprocessors = number as u32;
                        Ok(())
                    }
                    _ => Err("one number of multiprocessors expected, once".to_owned()),
                },
                _ => table.add(key, &numbers),
            };
            if let Err(message) = added {
                return refuse(line, message);
            }
        }
        if table.device.is_empty() || table.multiprocessors == 0 {
            let message = format!("{name}: `{FORMAT}`, `device` and `multiprocessors` must stand in it");
            return Err(Error::usage(OP, message));
        }
        Ok(table)
    }

    /// Adds the choice of a line.
    fn add(&mut self, key: &str, numbers: &[Option<u64>]) -> std::result::Result<(), String> {
        if !NAMES.contains(&key) {
            return Err(format!("unknown {key:?}; device, multiprocessors, or one of {}", NAMES.join(", ")));
        }
        let expected =
            || format!("{key} needs ranks, packet_bytes, line_bytes, packet_blocks, blocks and copy_bytes");
        let [
            Some(ranks),
            Some(packet_bytes),
            Some(line_bytes),
            Some(packet_blocks),
            Some(blocks),
            Some(copy_bytes),
        ] = *numbers
        else {
            return Err(expected());
        };
        let small = |number: u64| u32::try_from(number).map_err(|_| expected());
        let (packet_blocks, blocks) = (small(packet_blocks)?, small(blocks)?);
        let choice = Choice { packet_bytes, line_bytes, packet_blocks, blocks, copy_bytes };
        let ranks = small(ranks)?;
        check(ranks, choice)?;
        match self.choices.insert((key.to_owned(), ranks), choice) {
            None => Ok(()),
            Some(_) => Err(format!("{key} of {ranks} ranks stands here a second time")),
        }
    }

    /// Reads a table from a file.
    ///
    /// # Errors
    /// As for [`parse`](Self::parse); also if the file cannot be read or is longer than 1 MiB.
    pub fn read(path: &Path) -> Result<Self> {
        let failed = |error| Error::system(OP, format!("cannot read {}", path.display()), error);
        // Not blocking: a pipe in its place must not hold us up.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.file_type().is_fifo() {
            let message =
                format!("{} is a pipe; every rank reads the table, so it must be a file", path.display());
            return Err(Error::usage(OP, message));
        }
        let mut text = String::new();
        // A device or a file that grows has no end.
        let length = file.take(MOST_TEXT + 1).read_to_string(&mut text).map_err(failed)?;
        if length as u64 > MOST_TEXT {
            let message = format!("{} is longer than a table may be, {MOST_TEXT} bytes", path.display());
            return Err(Error::usage(OP, message));
        }
        Self::parse(&path.display().to_string(), &text)
    }

    /// Where it came from.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The product name of the devices that it is for.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The number of their multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// Why it says nothing about the devices of these ranks, if so. All ranks come to the same answer.
    pub(super) fn misfit(&self, comm: &Communicator) -> Option<String> {
        comm.peers()
            .iter()
            .filter_map(|peer| peer.device.as_ref().map(|device| (peer.rank, device)))
            .find_map(|(rank, device)| {
                let other = device.name != self.device || device.multiprocessors != self.multiprocessors;
                other.then(|| {
                    format!(
                        "{} is for {} with {} multiprocessors, and rank {rank} has {} with {}",
                        self.name, self.device, self.multiprocessors, device.name, device.multiprocessors
                    )
                })
            })
    }

    /// The table of the library for the devices of these ranks, if there is one.
    pub(super) fn shipped(comm: &Communicator) -> Option<Self> {
        let parsed =
            SHIPPED.iter().map(|(name, text)| Self::parse(name, text).expect("tests read all of them"));
        parsed.into_iter().find(|table| table.misfit(comm).is_none())
    }
}

/// Why these are no numbers of a choice, if so.
fn check(ranks: u32, choice: Choice) -> std::result::Result<(), String> {
    let blocks = 1..=MOST_BLOCKS;
    if ranks == 0 || !blocks.contains(&choice.packet_blocks) || !blocks.contains(&choice.blocks) {
        return Err(format!("at least 1 rank and 1 to {MOST_BLOCKS} blocks expected"));
    }
    Ok(())
}

impl fmt::Display for Tuning {
    /// The text that [`parse`](Self::parse) reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{FORMAT}\ndevice {}\nmultiprocessors {}", self.device, self.multiprocessors)?;
        writeln!(f, "# collective ranks packet_bytes line_bytes packet_blocks blocks copy_bytes")?;
        self.choices.iter().try_for_each(|((name, ranks), choice)| {
            let Choice { packet_bytes, line_bytes, packet_blocks, blocks, copy_bytes } = choice;
            writeln!(f, "{name} {ranks} {packet_bytes} {line_bytes} {packet_blocks} {blocks} {copy_bytes}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHOICE: Choice =
        Choice { packet_bytes: 4096, line_bytes: 65_536, packet_blocks: 8, blocks: 16, copy_bytes: 1 << 26 };

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let mut table = Tuning::new("mine", "NVIDIA H200", 132);
        table.insert(&Kind::AllReduce, 2, CHOICE).unwrap();
        table.insert(&Kind::Broadcast { root: 3 }, 8, Choice { packet_bytes: 0, ..CHOICE }).unwrap();
        let read = Tuning::parse("mine", &table.to_string()).unwrap();
        assert_eq!(read, table);
        assert_eq!(read.choice(&Kind::AllReduce, 2), Some(CHOICE));
        assert_eq!(read.choice(&Kind::AllReduce, 4), None, "not measured");
        assert_eq!(read.choice(&Kind::Reduce { root: 0 }, 8), None, "not measured");
        assert_eq!(read.choice(&Kind::Broadcast { root: 0 }, 8).unwrap().packet_bytes, 0, "of any root");
    }

    #[test]
    fn shipped_tables_can_be_read() {
        for (name, text) in SHIPPED {
            let table = Tuning::parse(name, text).unwrap();
            assert!(!table.choices.is_empty(), "{name}");
            assert!(table.device.to_lowercase().contains(name), "{name} is for {}", table.device);
            for (of, choice) in &table.choices {
                // Each way is for longer messages than the one before it, if it is used at all.
                let mut limits = vec![choice.packet_bytes, choice.line_bytes, choice.copy_bytes];
                limits.retain(|&bytes| bytes > 0);
                assert!(limits.is_sorted(), "{name}, {of:?}: {choice:?}");
            }
        }
    }

    #[test]
    fn a_wrong_table_names_its_line() {
        let head = "aqueduct-tuning 3\ndevice X\nmultiprocessors 4\n";
        let of = |lines: &str| Tuning::parse("t", &format!("{head}{lines}")).unwrap_err().to_string();
        for (lines, expected) in [
            ("all-reduce 2 4096 0 8 8", "line 4: all-reduce needs ranks"),
            ("all-reduce 2 4096 0 8 x 0", "line 4: all-reduce needs ranks"),
            ("all-reduce 2 4096 0 8 8 x", "line 4: all-reduce needs ranks"),
            ("all-reduce 2 4096 0 8 8589934592 0", "line 4: all-reduce needs ranks"),
            ("all-reduce 0 4096 0 8 8 0", "line 4: at least 1 rank"),
            ("all-reduce 2 4096 0 8 513 0", "1 to 512 blocks"),
            ("all-reduce 2 4096 0 0 8 0", "1 to 512 blocks"),
            ("reduce 2 1 0 1 1 0\nreduce 2 1 0 1 1 0", "line 5: reduce of 2 ranks stands here a second time"),
            ("allreduce 2 1 0 1 1 0", "line 4: unknown \"allreduce\""),
            ("multiprocessors 4", "line 4: one number"),
            ("device Y", "line 4: unknown \"device\""),
        ] {
            let text = of(lines);
            assert!(text.contains(expected), "{text}");
        }
        let of = |text: &str| Tuning::parse("t", text).unwrap_err().to_string();
        assert!(of("aqueduct-tuning 2\n").contains("`aqueduct tune`"), "{}", of("aqueduct-tuning 2\n"));
        assert!(of("").contains("must stand in it"));
        assert!(of("aqueduct-tuning 3\ndevice X\n").contains("must stand in it"));
    }

    #[test]
    fn a_collective_of_the_users_own_has_no_row() {
        let mut table = Tuning::new("t", "X", 1);
        assert!(table.insert(&Kind::Custom("mine".into()), 2, CHOICE).is_err());
        assert!(table.insert(&Kind::AllReduce, 0, CHOICE).is_err());
        assert!(table.insert(&Kind::AllReduce, 2, Choice { blocks: 0, ..CHOICE }).is_err());
    }
}
