//! Settings of a group.
#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::peer::MAX_TEXT;
use crate::env::Selection;
use crate::error::{Error, Result};
use crate::fault;
use crate::net::Layer;
use crate::net::heartbeat::SHORTEST;

/// Settings of a group, with or without devices; each as the setting of the same name of a communicator.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupConfig {
    pub(crate) local_address: Option<IpAddr>,
    pub(crate) host_id: Option<String>,
    pub(crate) peer_timeout: Option<Duration>,
    pub(crate) layer: Option<Arc<dyn Layer>>,
    /// Which network interfaces to choose from if `local_address` names none.
    pub(crate) interfaces: Selection,
    /// Faults on purpose.
    pub(crate) faults: Option<fault::Rules>,
}

impl GroupConfig {
    pub(crate) fn check(&self) -> Result<()> {
        match self.peer_timeout {
            Some(timeout) if timeout < SHORTEST => Err(Error::usage(
                "Communicator::new",
                format!(
                    "a peer timeout of {timeout:?} is shorter than signs of life are apart; set {} seconds or more, or none: \
                     AQUEDUCT_PEER_TIMEOUT=0, or None in the configuration",
                    SHORTEST.as_secs_f64()
                ),
            )),
            _ if self.host_id.as_ref().is_some_and(|id| id.len() > MAX_TEXT) => Err(Error::usage(
                "Communicator::new",
                format!("a host identity has at most {MAX_TEXT} bytes"),
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_be_are_refused() {
        let default = GroupConfig::default();
        let timeout = |timeout| GroupConfig { peer_timeout: Some(timeout), ..default.clone() }.check();
        let host = |len| GroupConfig { host_id: Some("x".repeat(len)), ..default.clone() }.check();
        assert!(default.check().is_ok() && timeout(SHORTEST).is_ok() && timeout(Duration::MAX).is_ok());
        let error = timeout(SHORTEST - Duration::from_millis(1)).unwrap_err();
        assert!(error.message().contains("AQUEDUCT_PEER_TIMEOUT"), "{error}");
        assert!(host(MAX_TEXT).is_ok() && host(1).is_ok());
        let error = host(MAX_TEXT + 1).unwrap_err();
        assert!(error.message().contains("host identity"), "{error}");
    }
}
