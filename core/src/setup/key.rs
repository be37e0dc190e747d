//! Names the objects that two ranks set up together: kind, peer, namespace and tag.
#![forbid(unsafe_code)]

use std::fmt;

use crate::wire::{Reader, WireError, WireResult, Writer};

/// The operation of errors about items of the library's own. Whoever asked for them puts the program's call in its place.
pub(crate) const SETUP: &str = "setup";

/// The sort of object that an item of `setup()` makes, seen from this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Connection,
    MemorySend,
    MemoryRecv,
    Semaphore,
    Multicast,
}

impl Kind {
    /// The kind of the matching item at the peer.
    pub(crate) fn counterpart(self) -> Self {
        match self {
            Self::MemorySend => Self::MemoryRecv,
            Self::MemoryRecv => Self::MemorySend,
            same => same,
        }
    }

    pub(crate) fn to_wire(self) -> u8 {
        match self {
            Self::Connection => 1,
            Self::MemorySend => 2,
            Self::MemoryRecv => 3,
            Self::Semaphore => 4,
            Self::Multicast => 5,
        }
    }

    pub(crate) fn from_wire(value: u8) -> WireResult<Self> {
        match value {
            1 => Ok(Self::Connection),
            2 => Ok(Self::MemorySend),
            3 => Ok(Self::MemoryRecv),
            4 => Ok(Self::Semaphore),
            5 => Ok(Self::Multicast),
            _ => Err(WireError::Invalid { what: "kind of setup item" }),
        }
    }

    /// The call that the user made.
    pub(crate) fn op(self) -> &'static str {
        match self {
            Self::Connection => "connect",
            Self::MemorySend => "send_memory",
            Self::MemoryRecv => "recv_memory",
            Self::Semaphore => "build_semaphore",
            Self::Multicast => "exchange of a multicast object",
        }
    }
}

/// The origin of a tag: equal tags of different namespaces never meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Namespace {
    /// The tag comes from a call of the user's.
    User,
    /// The library makes the object for itself, in `prepare()` for example, and counts its tags.
    Library,
    /// The tag comes from the user's call of `exchange_memory`; this is its buffer number `buffer` of `count`. Calls with
    /// different counts do not meet, so that all ranks hear of the mistake.
    Exchange { buffer: u32, count: u32 },
}

impl Namespace {
    pub(crate) fn encode(self, w: &mut Writer) {
        match self {
            Self::User => w.u8(0).u32(0),
            Self::Library => w.u8(1).u32(0),
            Self::Exchange { buffer, count } => w.u8(2).u32(buffer).u32(count),
        };
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> WireResult<Self> {
        match (r.u8()?, r.u32()?) {
            (0, 0) => Ok(Self::User),
            (1, 0) => Ok(Self::Library),
            (2, buffer) => Ok(Self::Exchange { buffer, count: r.u32()? }),
            _ => Err(WireError::Invalid { what: "namespace of setup item" }),
        }
    }
}

/// Names an item of `setup()`: items of two ranks with counterpart kinds, equal namespaces and equal tags belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) kind: Kind,
    pub(crate) peer: u32,
    pub(crate) space: Namespace,
    pub(crate) tag: u64,
}

impl Key {
    /// An item that the user asked for.
    pub(crate) fn user(kind: Kind, peer: u32, tag: u64) -> Self {
        Self { kind, peer, space: Namespace::User, tag }
    }

    /// The call that errors name: the program made none for an item of the library's own.
    pub(crate) fn op(&self) -> &'static str {
        if self.space == Namespace::Library { SETUP } else { self.kind.op() }
    }

    /// An item that the library makes for itself.
    pub(crate) fn library(kind: Kind, peer: u32, tag: u64) -> Self {
        Self { kind, peer, space: Namespace::Library, tag }
    }

    /// How the matching item is named at rank `peer`, if this key is rank `rank`'s.
    pub(crate) fn mirrored(self, rank: u32) -> Self {
        Self { kind: self.kind.counterpart(), peer: rank, ..self }
    }

    /// Whether rank `rank`, whose key this is, leads the exchange: it offers first, builds last and decides. The higher rank
    /// does, because over TCP the lower one listens and must have built its end before the other connects; of two items of one
    /// rank, the one that sends.
    pub(crate) fn leads(self, rank: u32) -> bool {
        self.peer < rank || (self.peer == rank && self.kind == Kind::MemorySend)
    }

    /// Whether one item of rank `rank` is both ends.
    pub(crate) fn is_own_peer(self, rank: u32) -> bool {
        self.peer == rank && self.kind == self.kind.counterpart()
    }

    /// Namespace and tag in one number, to tell the sockets of connections apart. Equal numbers do no harm: each socket has its
    /// own address.
    pub(crate) fn number(self) -> u64 {
        self.tag ^ (u64::from(self.space == Namespace::Library) << 63)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with rank {}", self.kind.op(), self.peer)?;
        // Tags that the library counts tell a program nothing.
        if self.space != Namespace::Library {
            write!(f, ", tag {}", self.tag)?;
        }
        match self.space {
            Namespace::User => Ok(()),
            Namespace::Library => f.write_str(" of the library's own"),
            Namespace::Exchange { buffer, count } => {
                write!(f, " of exchange_memory, buffer {buffer} of {count}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_about_items_of_the_library_name_neither_its_tags_nor_calls_that_nobody_made() {
        let (users, own) = (Key::user(Kind::MemorySend, 1, 77), Key::library(Kind::MemorySend, 1, 77));
        assert_eq!((users.op(), own.op()), ("send_memory", "setup"));
        assert_eq!(users.to_string(), "send_memory with rank 1, tag 77");
        assert_eq!(own.to_string(), "send_memory with rank 1 of the library's own");
    }

    #[test]
    fn exactly_one_end_leads_and_tags_of_users_and_of_the_library_differ() {
        for kind in [Kind::Connection, Kind::MemorySend, Kind::MemoryRecv, Kind::Semaphore, Kind::Multicast] {
            for (rank, peer) in [(0, 1), (1, 0), (2, 2)] {
                let key = Key::user(kind, peer, 3);
                if !key.is_own_peer(rank) {
                    assert_ne!(key.leads(rank), key.mirrored(rank).leads(peer), "{key}");
                }
                assert_eq!(key.mirrored(rank).mirrored(peer), key);
                assert_eq!(Kind::from_wire(kind.to_wire()), Ok(kind));
            }
        }
        assert_ne!(Key::user(Kind::Connection, 1, 3), Key::library(Kind::Connection, 1, 3));
        for tag in [3, 1 << 63 | 3] {
            let (user, library) =
                (Key::user(Kind::Connection, 1, tag), Key::library(Kind::Connection, 1, tag));
            assert_eq!(user.number(), tag);
            assert_ne!(user.number(), library.number());
        }
        // Of two items of one rank, the one that sends.
        assert!(Key::user(Kind::MemorySend, 2, 3).leads(2) && !Key::user(Kind::MemoryRecv, 2, 3).leads(2));
    }

    #[test]
    fn namespaces_are_read_as_they_were_written() {
        for space in [Namespace::User, Namespace::Library, Namespace::Exchange { buffer: 3, count: 5 }] {
            let mut w = Writer::new();
            space.encode(&mut w);
            let mut r = Reader::new(w.as_bytes());
            assert_eq!(Namespace::decode(&mut r), Ok(space));
            assert_eq!(r.finish(), Ok(()));
        }
        assert!(Namespace::decode(&mut Reader::new(&[3, 0, 0, 0, 0])).is_err());
    }

    #[test]
    fn a_rank_that_sends_memory_to_itself_has_two_items() {
        for (kind, peer, both) in [
            (Kind::Connection, 2, true),
            (Kind::Semaphore, 2, true),
            (Kind::Connection, 1, false),
            (Kind::MemorySend, 2, false),
            (Kind::MemoryRecv, 2, false),
        ] {
            assert_eq!(Key::user(kind, peer, 3).is_own_peer(2), both, "{kind:?} of rank 2 with rank {peer}");
        }
    }
}
