//! The group: who belongs to it, how its ranks speak while they run, and how they notice that one has gone.

mod birth;
pub(crate) mod control;
pub(crate) mod frames;
pub(crate) mod group;
pub(crate) mod links;
pub(crate) mod membership;
pub(crate) mod neighbours;
pub(crate) mod peer;
pub(crate) mod standing;
pub(crate) mod subscriber;
pub(crate) mod subset;
pub(crate) mod wire_up;

pub(crate) use group::Group;
