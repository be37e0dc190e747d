//! User settings of RDMA connections.
#![forbid(unsafe_code)]

use crate::env::IbEnv;
use crate::error::{Error, Result};

/// Settings of a NIC's port and of the queue pairs on it. The defaults suit most fabrics.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The port, from 1; the first active one if `None`.
    pub port: Option<u8>,
    /// The index in the GID table; chosen by what the entries are if `None`.
    pub gid_index: Option<u32>,
    /// The index in the partition key table; 0.
    pub pkey_index: u16,
    /// The path MTU in bytes, at most this: 256, 512, 1024, 2048 or 4096; what both ports have if `None`.
    pub mtu: Option<u32>,
    /// InfiniBand service level, 0 to 15; 0. On Ethernet the priority, where no traffic class decides.
    pub service_level: u8,
    /// Traffic class of the global header: with RoCE v2 the IP type of service (DSCP in its upper six bits); 0.
    pub traffic_class: u8,
    /// How many routers a packet may pass; 64.
    pub hop_limit: u8,
    /// How long the NIC waits for an acknowledgement before it sends again: 4.096 us * 2^`timeout`, 1 to 31; 18, about one
    /// second.
    pub timeout: u8,
    /// How often it sends again before it gives up, at most 7; 6. Seven means for ever to some NICs (soft-RoCE).
    pub retry_count: u8,
    /// How often it tries again when the receiver has no receive posted, at most 6, because 7 means for ever; 6.
    pub rnr_retry: u8,
    /// How long the sender waits before such a retry, as IBTA encodes it (0 to 31); 12, 0.64 ms.
    pub min_rnr_timer: u8,
    /// Reads and atomics outstanding at once, at the most what both NICs can do; 16.
    pub max_read_atomic: u8,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            port: None,
            gid_index: None,
            pkey_index: 0,
            mtu: None,
            service_level: 0,
            traffic_class: 0,
            hop_limit: 64,
            timeout: 18,
            retry_count: 6,
            rnr_retry: 6,
            min_rnr_timer: 12,
            max_read_atomic: 16,
        }
    }
}

impl Settings {
    /// The defaults, changed where the environment says so.
    pub fn from_env(env: &IbEnv) -> Self {
        let default = Self::default();
        Self {
            port: env.port,
            gid_index: env.gid_index,
            pkey_index: env.pkey.unwrap_or(default.pkey_index),
            service_level: env.service_level.unwrap_or(default.service_level),
            traffic_class: env.traffic_class.unwrap_or(default.traffic_class),
            timeout: env.timeout.unwrap_or(default.timeout),
            retry_count: env.retry_count.unwrap_or(default.retry_count),
            ..default
        }
    }

    /// Refuses values that no NIC takes, and endless retries.
    ///
    /// # Errors
    /// `InvalidUsage` naming the setting and its range.
    pub fn check(&self) -> Result<()> {
        let at_most = |name: &str, value: u8, limit: u8, why: &str| {
            if value <= limit {
                return Ok(());
            }
            Err(Error::usage("with_ib", format!("{name} is {value}, it must be at most {limit}{why}")))
        };
        at_most("service_level", self.service_level, 15, "")?;
        at_most("timeout", self.timeout, 31, "")?;
        if self.timeout == 0 {
            return Err(Error::usage("with_ib", "timeout is 0, for ever; it must be from 1 to 31"));
        }
        at_most("retry_count", self.retry_count, 7, "")?;
        at_most("rnr_retry", self.rnr_retry, 6, ": 7 would retry for ever")?;
        at_most("min_rnr_timer", self.min_rnr_timer, 31, "")?;
        match self.mtu {
            None | Some(256 | 512 | 1024 | 2048 | 4096) => Ok(()),
            Some(mtu) => {
                let message = format!("mtu is {mtu}, it must be 256, 512, 1024, 2048 or 4096");
                Err(Error::usage("with_ib", message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_end_and_every_bad_value_is_named() {
        let good = Settings::default();
        good.check().unwrap();
        assert!(good.retry_count < 7 && good.rnr_retry < 7 && good.timeout > 0);
        for (name, bad) in [
            ("service_level", Settings { service_level: 16, ..good.clone() }),
            ("timeout", Settings { timeout: 32, ..good.clone() }),
            ("timeout", Settings { timeout: 0, ..good.clone() }),
            ("retry_count", Settings { retry_count: 8, ..good.clone() }),
            ("rnr_retry", Settings { rnr_retry: 7, ..good.clone() }),
            ("min_rnr_timer", Settings { min_rnr_timer: 32, ..good.clone() }),
            ("mtu", Settings { mtu: Some(1500), ..good.clone() }),
        ] {
            assert!(bad.check().unwrap_err().message().contains(name), "{name}");
        }
    }
}
