//! The description of a machine: numbers by name, one a line.

use std::collections::HashSet;

use crate::error::{Error, Result};

const OP: &str = "plan::cost::Machine";

/// Hosts of 8 NVIDIA H200 on NVLink.
const H200: &str = include_str!("h200.machine");

/// Machines that come with the library, and their GPUs for each host.
const SHIPPED: [(&str, f64); 3] = [("h200-x2", 2.0), ("h200-x4", 4.0), ("h200-x8", 8.0)];

macro_rules! machine {
    ($($(#[$doc:meta])* $key:ident,)*) => {
        /// Hosts with equal GPUs: what [`predict`](super::predict) needs to know. Microseconds and 1e9 bytes per second.
        #[derive(Clone, Debug, Default, PartialEq)]
        #[non_exhaustive]
        pub struct Machine {
            /// Name.
            pub name: String,
            $($(#[$doc])* pub $key: f64,)*
        }

        impl Machine {
            const KEYS: &[&str] = &[$(stringify!($key)),*];

            pub(super) fn number(&mut self, key: &str) -> Option<&mut f64> {
                match key {
                    $(stringify!($key) => Some(&mut self.$key),)*
                    _ => None,
                }
            }
        }
    };
}

machine! {
    /// GPUs of a host. Ranks fill hosts in order; memory channels reach GPUs of the same host.
    gpus,
    /// NICs of a host, shared evenly by its GPUs.
    nics,
    /// From the end of a call to the first instruction of the next one's first block, in the replay of a graph.
    launch_us,
    /// Each further block of a kernel begins so much later.
    launch_block_us,
    /// The same where a call has as many blocks as its message needs.
    launch_any_block_us,
    /// Each warp of a block delays its first operation by so much.
    launch_warp_us,
    /// A sync of a block.
    sync_us,
    /// A barrier of several blocks.
    barrier_us,
    /// The beginning of any other operation.
    step_us,
    /// A load from the GPU's own memory.
    local_us,
    /// Bytes loaded and stored by all blocks of a GPU in its own memory.
    local_gbps,
    /// The same by one block.
    local_block_gbps,
    /// A load from a peer's memory.
    link_us,
    /// Bytes that leave a GPU over its links.
    link_out_gbps,
    /// Bytes that come to a GPU over its links.
    link_in_gbps,
    /// Share of loaded bytes by which the other direction is busy with requests.
    link_load_reverse,
    /// Share of stored bytes by which the other direction is busy with acknowledgements.
    link_store_reverse,
    /// Bytes that one block loads from and stores to peers' memory.
    link_block_gbps,
    /// From a packet's store to its load at the peer.
    packet_us,
    /// A block takes as many packets as its threads handle at once.
    packet_turn_us,
    /// From a signal's store to the end of the wait at the peer.
    signal_us,
    /// Before a signal that is not relaxed is stored: what was stored before must have arrived.
    release_us,
    /// From a semaphore's release to the end of the acquire.
    semaphore_us,
    /// A block's request to a proxy.
    port_push_us,
    /// From the request until the proxy has seen it.
    port_poll_us,
    /// A proxy is busy with one request.
    port_busy_us,
    /// The copy engine begins a put.
    port_put_us,
    /// The stream writes a signal, and the peer's wait ends.
    port_signal_us,
    /// From completion until a block that flushes goes on.
    port_flush_us,
    /// Bytes of a put within a host.
    port_gbps,
    /// A copy of a copy engine, or the kernel of its signals and waits, begins so long behind what precedes it in the stream.
    copy_us,
    /// From a NIC to the memory at the other host.
    nic_us,
    /// Bytes that leave or come to a NIC.
    nic_gbps,
}

impl Machine {
    /// A machine that comes with the library: `h200-x2`, `h200-x4` or `h200-x8`, hosts of so many NVIDIA H200.
    ///
    /// # Errors
    /// `InvalidUsage`, with the names that there are.
    pub fn named(name: &str) -> Result<Self> {
        let Some((_, gpus)) = SHIPPED.iter().find(|(known, _)| *known == name) else {
            let names = SHIPPED.map(|(known, _)| known).join(", ");
            return Err(Error::usage(
                OP,
                format!("there is no machine {name:?}; use one of {names}, or the path of a description"),
            ));
        };
        Ok(Self { name: name.to_owned(), gpus: *gpus, ..Self::parse(name, H200)? })
    }

    /// Reads a description: lines of a key and a number. `#` begins a comment. Every key must be there once.
    ///
    /// # Errors
    /// `InvalidUsage`, with the line that is wrong or the keys that are missing.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let refuse = |line: usize, message: String| Err(Error::usage(OP, format!("line {line}: {message}")));
        let mut machine = Self { name: name.to_owned(), ..Self::default() };
        let mut seen = HashSet::new();
        for (line, content) in (1..).zip(text.lines()) {
            let words: Vec<&str> = content.split('#').next().unwrap_or("").split_whitespace().collect();
            let (key, value) = match words[..] {
                [] => continue,
                [key, value] => (key, value),
                _ => return refuse(line, "a key and a number expected".into()),
            };
            let Some(number) = machine.number(key) else {
                return refuse(line, format!("unknown key {key:?}; the keys are {}", Self::KEYS.join(", ")));
            };
            *number = match value.parse::<f64>() {
                Ok(value) if (least(key)..=MOST).contains(&value) => value,
                _ => {
                    return refuse(
                        line,
                        format!("{key} is {value:?}; a number from {} to {MOST} expected", least(key)),
                    );
                }
            };
            if !seen.insert(key) {
                return refuse(line, format!("{key} stands here a second time"));
            }
        }
        let missing: Vec<&str> = Self::KEYS.iter().copied().filter(|key| !seen.contains(key)).collect();
        match missing[..] {
            [] => Ok(machine),
            _ => Err(Error::usage(OP, format!("these keys are missing: {}", missing.join(", ")))),
        }
    }

    /// The host of a rank.
    pub(super) fn host(&self, rank: u32) -> u32 {
        rank / whole(self.gpus)
    }

    /// The NIC of a rank, among those of all hosts.
    pub(super) fn nic(&self, rank: u32) -> u32 {
        let (gpus, nics) = (whole(self.gpus), whole(self.nics));
        self.host(rank) * nics + rank % gpus * nics.min(gpus) / gpus
    }
}

/// The largest number of a description: as microseconds a quarter of an hour, which no sum of a run makes overflow.
const MOST: f64 = 1e9;

/// The smallest number for a key: there is one GPU at least, and nothing has a rate of zero.
fn least(key: &str) -> f64 {
    match key {
        "gpus" | "nics" => 1.0,
        key if key.ends_with("_gbps") => 1e-3,
        _ => 0.0,
    }
}

fn whole(number: f64) -> u32 {
    (number as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_machines_differ_in_their_gpus_only() {
        let machines: Vec<_> = SHIPPED.iter().map(|(name, _)| Machine::named(name).unwrap()).collect();
        assert_eq!(machines.iter().map(|machine| machine.gpus).collect::<Vec<_>>(), [2.0, 4.0, 8.0]);
        for machine in &machines {
            assert_eq!(
                Machine { name: String::new(), gpus: 8.0, ..machine.clone() },
                Machine { name: String::new(), ..machines[2].clone() }
            );
        }
        let error = Machine::named("h100").unwrap_err().to_string();
        assert!(error.contains("\"h100\"; use one of h200-x2, h200-x4, h200-x8"), "{error}");
    }

    #[test]
    fn wrong_descriptions_are_refused_with_their_line() {
        let error = |from: &str, to: &str| {
            let text = H200.replacen(from, to, 1);
            assert_ne!(text, H200, "{from}");
            Machine::parse("wrong", &text).unwrap_err().to_string()
        };
        for (value, message) in [
            ("nics 0", "nics is \"0\"; a number from 1 to"),
            ("nics x", "nics is \"x\""),
            ("nics NaN", "nics is \"NaN\""),
            ("nics -8", "nics is \"-8\""),
            ("nics inf", "nics is \"inf\""),
            ("nics", "a key and a number expected"),
            ("nics 8 8", "a key and a number expected"),
            ("nisc 8", "unknown key \"nisc\"; the keys are gpus, nics, "),
            ("nics 8\nnics 8", "nics stands here a second time"),
            ("", "these keys are missing: nics"),
        ] {
            let error = error("nics 8", value);
            assert!(error.contains(message), "{value}: {error}");
            assert!(value.is_empty() || error.contains("line "), "{error}");
        }
        assert!(error("link_in_gbps ", "link_in_gbps 0 #").contains("link_in_gbps is \"0\""));
    }

    #[test]
    fn ranks_fill_hosts_and_share_nics() {
        let mut machine = Machine::named("h200-x8").unwrap();
        machine.nics = 4.0;
        let places: Vec<_> = [0, 1, 7, 8, 15].map(|rank| (machine.host(rank), machine.nic(rank))).to_vec();
        assert_eq!(places, [(0, 0), (0, 0), (0, 3), (1, 4), (1, 7)]);
    }
}
