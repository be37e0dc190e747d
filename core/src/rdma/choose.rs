//! Which port of a NIC to use, and which of its addresses.

use super::context::Context;
use super::gid::{self, GidEntry, choose_gid};
use super::port::{LinkLayer, PortAttributes, PortState};
use super::settings::Settings;
use crate::error::{Error, ErrorKind, Result};

/// A port that is ready for traffic, with the address that was chosen on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its attributes, as queried from the NIC.
    pub attributes: PortAttributes,
    /// Its address; none on InfiniBand with an empty GID table.
    pub gid: Option<GidEntry>,
}

impl Context {
    /// The valid entries of the GID table of port `number`.
    ///
    /// # Errors
    /// As for [`port`](Self::port).
    pub fn gids(&self, number: u8) -> Result<Vec<GidEntry>> {
        gid::table(self, &self.port(number)?)
    }

    /// The port to use by `settings`: the one they name, or the first active one; with the GID they name, or the best one
    /// ([`choose_gid`]).
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if no port is active, with the state of each, or if its GID table has no usable entry;
    /// `InvalidUsage` for a port or GID index that does not exist.
    pub fn active_port(&self, settings: &Settings) -> Result<Port> {
        let attributes = self.active(settings.port)?;
        let gid = choose_gid(attributes.link, &self.gids(attributes.number)?, settings.gid_index)?;
        Ok(Port { attributes, gid })
    }

    fn active(&self, wanted: Option<u8>) -> Result<PortAttributes> {
        const OP: &str = "ibv_query_port";
        let name = self.device().name();
        let numbers = match wanted {
            Some(number) => number..=number,
            None => 1..=self.attributes().ports,
        };
        let mut seen = Vec::new();
        for number in numbers {
            let port = self.port(number)?;
            match (port.state, port.link) {
                (PortState::ACTIVE, LinkLayer::InfiniBand | LinkLayer::Ethernet) => return Ok(port),
                (state, LinkLayer::Unknown(link)) => {
                    seen.push(format!("port {number} is {state}, link layer {link}"))
                }
                (state, _) => seen.push(format!("port {number} is {state}")),
            }
        }
        let message = format!(
            "device {name} has no active port: {}; check the cable, and that the network interface or subnet manager is up",
            seen.join(", ")
        );
        Err(Error::new(ErrorKind::Unsupported, OP, message))
    }
}
