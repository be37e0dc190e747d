//! Names of operations in plan files, and the shape of move behind each.

use super::ir::{Buffer, ChannelKind, Form, Move, Place, Reduction};
use super::tree::Path;
use crate::error::{Error, Result};

/// One kind of operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Local,
    LocalPackets,
    Remote,
    RemotePackets,
    Switch,
    SwitchPackets,
}

/// A move's name in files and its shape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    /// Kinds of the first sources; each occurs once.
    pub(super) sources: &'static [Side],
    /// Kind of all further sources.
    pub(super) more_sources: Option<Side>,
    /// Kinds of the first targets; each occurs once.
    pub(super) targets: &'static [Side],
    /// Kind of all further targets.
    pub(super) more_targets: Option<Side>,
    /// In files, `src_buff` and `dst_buff` are pairs of moves that were fused.
    pub(super) pairs: bool,
}

const fn shape(
    name: &'static str,
    sources: &'static [Side],
    more_sources: Option<Side>,
    targets: &'static [Side],
    more_targets: Option<Side>,
    pairs: bool,
) -> Shape {
    Shape { name, sources, more_sources, targets, more_targets, pairs }
}

use Side::{Local, LocalPackets, Remote, RemotePackets, Switch, SwitchPackets};

/// All moves that files can name. A move is written by the first name that fits.
pub(super) const SHAPES: &[Shape] = &[
    shape("copy", &[Local], None, &[Local], None, false),
    shape("put", &[Local], None, &[Remote], None, true),
    shape("get", &[Remote], None, &[Local], None, true),
    shape("ppkt", &[Local], None, &[RemotePackets], None, true),
    shape("rppkt", &[LocalPackets], None, &[RemotePackets], Some(RemotePackets), false),
    shape("cpkt", &[Local], None, &[LocalPackets], None, false),
    shape("upkt", &[LocalPackets], None, &[Local], None, false),
    shape("re", &[Local, Local], Some(Local), &[Local], None, false),
    shape("res", &[Local, Local], Some(Local), &[Local, Remote], Some(Remote), false),
    shape("rre", &[Local, Remote], Some(Remote), &[Local], None, false),
    shape("rres", &[Local, Remote], Some(Remote), &[Local, Remote], Some(Remote), false),
    shape("repkt", &[Local, LocalPackets], Some(LocalPackets), &[Local], None, false),
    shape(
        "respkt",
        &[Local, LocalPackets],
        Some(LocalPackets),
        &[Local, RemotePackets],
        Some(RemotePackets),
        false,
    ),
    shape("recpkt", &[Local, LocalPackets], Some(LocalPackets), &[Local, LocalPackets], None, false),
    shape(
        "recspkt",
        &[Local, LocalPackets],
        Some(LocalPackets),
        &[Local, LocalPackets, RemotePackets],
        Some(RemotePackets),
        false,
    ),
    shape("glres", &[Switch], None, &[Switch], None, false),
    shape("glre", &[Switch], None, &[Local], None, false),
    shape("gstore", &[Local], None, &[Switch], None, false),
    shape("gstorepkt", &[Local], None, &[SwitchPackets], None, false),
];

impl Shape {
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        SHAPES.iter().find(|shape| shape.name == name)
    }

    pub(super) fn of(moved: &Move) -> Option<&'static Self> {
        let fits = |first: &[Side], more: Option<Side>, operands: &[super::ir::Operand]| {
            operands.len() >= first.len()
                && operands.iter().enumerate().all(|(index, operand)| {
                    first.get(index).copied().or(more) == Some(Side::of(operand.place, operand.form))
                })
        };
        SHAPES.iter().find(|shape| {
            fits(shape.sources, shape.more_sources, &moved.sources)
                && fits(shape.targets, shape.more_targets, &moved.targets)
        })
    }

    /// Whether the operation has a `reduce_op`.
    pub(super) fn reduces(&self) -> bool {
        self.sources.len() > 1 || self.sources == [Switch]
    }

    /// The value of `channel_type`, if the operation has one.
    pub(super) fn channel_type(&self) -> Option<&'static str> {
        let sides = || self.sources.iter().chain(self.targets);
        if sides().any(|side| matches!(side, Switch | SwitchPackets)) {
            Some("switch")
        } else if sides().any(|side| matches!(side, Remote | RemotePackets)) {
            Some("memory")
        } else {
            None
        }
    }

    /// Kind of source or target `index`, `None` if there can be no so many.
    pub(super) fn side(&self, target: bool, index: usize) -> Option<Side> {
        let (first, more) =
            if target { (self.targets, self.more_targets) } else { (self.sources, self.more_sources) };
        first.get(index).copied().or(more)
    }
}

impl Side {
    fn of(place: Place, form: Form) -> Self {
        match (place, form) {
            (Place::Local(_), Form::Plain) => Local,
            (Place::Local(_), Form::Packets) => LocalPackets,
            (Place::Remote { .. }, Form::Plain) => Remote,
            (Place::Remote { .. }, Form::Packets) => RemotePackets,
            (Place::Switch(_), Form::Plain) => Switch,
            (Place::Switch(_), Form::Packets) => SwitchPackets,
        }
    }

    pub(super) fn form(self) -> Form {
        match self {
            Local | Remote | Switch => Form::Plain,
            LocalPackets | RemotePackets | SwitchPackets => Form::Packets,
        }
    }
}

pub(super) fn reduction_of(name: &str) -> Option<Reduction> {
    Reduction::ALL.into_iter().find(|reduction| reduction.name() == name)
}

pub(super) fn buffer(name: &str, path: &Path<'_>) -> Result<Buffer> {
    match name {
        "i" => Ok(Buffer::Input),
        "o" => Ok(Buffer::Output),
        "s" => Ok(Buffer::Scratch),
        _ => Err(path.error(format_args!("{name:?} is no buffer; use i, o or s"))),
    }
}

pub(super) fn buffer_name(buffer: Buffer) -> &'static str {
    match buffer {
        Buffer::Input => "i",
        Buffer::Output => "o",
        Buffer::Scratch => "s",
    }
}

pub(super) fn kind_of_memory_or_port(name: &str, path: &Path<'_>) -> Result<ChannelKind> {
    match name {
        "memory" => Ok(ChannelKind::Memory),
        "port" => Ok(ChannelKind::Port),
        other => Err(path.error(format_args!("{other:?} cannot stand here; use memory or port"))),
    }
}

pub(super) fn unknown_channel_type(name: &str, path: &Path<'_>) -> Error {
    path.error(format_args!("{name:?} is no kind of channel; use memory, port or switch"))
}
