//! The memory behind the ranges of the address space.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::EventCount;
use super::mapping::Mapping;
use super::multicast::Team;
use super::object::Object;

/// The memory behind a range of the address space.
#[derive(Debug)]
pub(crate) enum Backing {
    /// Pages of an object. The mapping is declared first so that it is dropped before the object.
    Object { mapping: Mapping, object: Arc<Object> },
    /// Reserved addresses that stand for the memory of a team of devices. They have no pages of their own.
    Multicast { base: u64, team: Arc<Team> },
    /// Memory that the user registered. Other processes that share it do not share this event count.
    Borrowed { event_count: Arc<EventCount> },
}

/// An owning reference to an event count, usable without a view. It keeps the event count mapped, but not the memory
/// beside it.
#[derive(Clone, Debug)]
pub struct EventCountRef(Keeper);

#[derive(Clone, Debug)]
enum Keeper {
    Object(Arc<Object>),
    Own(Arc<EventCount>),
}

impl std::ops::Deref for EventCountRef {
    type Target = EventCount;

    fn deref(&self) -> &EventCount {
        match &self.0 {
            // SAFETY: the control page stays mapped while the object lives, which `self` holds.
            Keeper::Object(object) => unsafe { &*object.event_count() },
            Keeper::Own(event_count) => event_count,
        }
    }
}

impl Backing {
    /// Maps the first `len` bytes of an object, at `fixed` inside a reservation or anywhere.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub(crate) fn of(object: &Arc<Object>, len: usize, fixed: Option<NonNull<u8>>) -> io::Result<Self> {
        Ok(Self::Object { mapping: object.map(len, fixed)?, object: Arc::clone(object) })
    }

    /// Describes memory that the user owns and unmaps.
    pub(crate) fn borrowed() -> Self {
        Self::Borrowed { event_count: Arc::default() }
    }

    /// The memory's event count, valid while `self` lives.
    pub(crate) fn event_count(&self) -> *const EventCount {
        match self {
            Self::Object { object, .. } => object.event_count(),
            Self::Multicast { team, .. } => team.object().event_count(),
            Self::Borrowed { event_count } => &raw const **event_count,
        }
    }

    /// An owning reference to the memory's event count.
    pub(crate) fn event_count_ref(&self) -> EventCountRef {
        EventCountRef(match self {
            Self::Object { object, .. } => Keeper::Object(Arc::clone(object)),
            Self::Multicast { team, .. } => Keeper::Object(Arc::clone(team.object())),
            Self::Borrowed { event_count } => Keeper::Own(Arc::clone(event_count)),
        })
    }

    /// Makes the addresses inaccessible now, even if other owners of `self` remain. The caller has ended all access.
    pub(crate) fn unmap(&self) {
        if let Self::Object { mapping, .. } = self {
            mapping.unmap();
        }
    }

    /// The object, if there is one.
    pub(crate) fn object(&self) -> Option<&Arc<Object>> {
        match self {
            Self::Object { object, .. } => Some(object),
            Self::Multicast { .. } | Self::Borrowed { .. } => None,
        }
    }

    /// The team of devices that the addresses stand for.
    pub(crate) fn team(&self) -> Option<&Arc<Team>> {
        match self {
            Self::Multicast { team, .. } => Some(team),
            Self::Object { .. } | Self::Borrowed { .. } => None,
        }
    }

    /// The first address, if this driver mapped the memory.
    pub(crate) fn base(&self) -> Option<u64> {
        match self {
            Self::Object { mapping, .. } => Some(mapping.address()),
            Self::Multicast { base, .. } => Some(*base),
            Self::Borrowed { .. } => None,
        }
    }
}
