//! The RDMA NICs: which of them work, and how far each is from each GPU.

use std::path::Path;

use aqueduct::Error;
use aqueduct::comm::{Communicator, Transport};
use aqueduct::gpu::{Device, Driver};
use aqueduct::internals::env::{Env, IbEnv};
use aqueduct::internals::rdma::{self, LinkLayer, Settings, Verbs};

/// One line per NIC: its name as a transport (`Ib0`), its device, the port that is used or why none can be, and its distance
/// from each GPU.
pub(super) fn lines(driver: Option<&Driver>) -> aqueduct::Result<Vec<String>> {
    let ib = Env::get().ok().map(|env| env.ib.clone()).unwrap_or_default();
    let gpus = driver.map(Device::all).transpose()?.unwrap_or_default();
    of_library(&Verbs::load(None)?, &ib, &gpus)
}

fn of_library(verbs: &Verbs, ib: &IbEnv, gpus: &[Device]) -> aqueduct::Result<Vec<String>> {
    let nics = verbs.devices(ib.devices.as_deref())?;
    let mut lines = vec![format!("RDMA NICs: {}", nics.len())];
    for (number, nic) in nics.iter().enumerate() {
        let far = |gpu: &Device| {
            let distance = rdma::distance(Path::new("/sys"), &gpu.pci_bus_id().ok()?, nic.name());
            Some(format!(", device {}: {distance}", gpu.ordinal()))
        };
        let distances: String = gpus.iter().filter_map(far).collect();
        let port = port(nic, ib).unwrap_or_else(|error| format!("unusable: {error}"));
        lines.push(format!("  Ib{number}: {}, {port}{distances}", nic.name()));
    }
    Ok(lines)
}

/// The NIC that is nearest to the communicator's device, with its name and the port that connections use.
pub(crate) fn active(comm: &Communicator) -> aqueduct::Result<(Transport, String)> {
    let nearest = comm.nearest_nic()?;
    let Transport::Ib(number) = nearest else {
        return Err(Error::usage("nearest_nic", format!("{nearest} is no NIC")));
    };
    let ib = Env::get()?.ib.clone();
    let nics = Verbs::load(None)?.devices(ib.devices.as_deref())?;
    let Some(nic) = nics.get(usize::from(number)) else {
        return Err(Error::usage("nearest_nic", format!("{nearest} has vanished")));
    };
    Ok((nearest, format!("{}, {}", nic.name(), port(nic, &ib)?)))
}

/// The port that a connection would use.
fn port(nic: &rdma::Device, ib: &IbEnv) -> aqueduct::Result<String> {
    let port = nic.open()?.active_port(&Settings::from_env(ib))?;
    let link = match port.attributes.link {
        LinkLayer::InfiniBand => "InfiniBand",
        LinkLayer::Ethernet => "Ethernet",
        _ => "unknown link",
    };
    let gid = port.gid.map(|gid| format!(", GID {gid}")).unwrap_or_default();
    Ok(format!("port {} {link}, MTU {}{gid}", port.attributes.number, port.attributes.active_mtu))
}

#[cfg(test)]
#[path = "../../../sys/rdma-core-sys/tests/standin/mod.rs"]
mod standin;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nic_that_cannot_be_used_says_why() {
        let verbs = Verbs::from_table(standin::table(), "stand-in");
        let lines = of_library(&verbs, &IbEnv::default(), &[]).unwrap();
        let expected = [
            "RDMA NICs: 5",
            "  Ib0: bare0, unusable: ibv_query_gid: unsupported: the port's GID table has no RoCE address",
            "  Ib1: dark0, unusable: ibv_query_port: unsupported: device dark0 has no active port: port 1 is down",
            "  Ib2: null0, port 1 Ethernet, MTU 1024, GID 3 ::ffff:10.0.0.1 (RoCE v2)",
            "  Ib3: null1, port 2 InfiniBand, MTU 4096",
            "  Ib4: warp0, unusable: ibv_open_device: unsupported: device warp0 does not speak InfiniBand's",
        ];
        assert_eq!(lines.len(), expected.len());
        for (line, expected) in lines.iter().zip(expected) {
            assert!(line.starts_with(expected), "{line}");
        }
        // With the settings of a connection.
        let ib = IbEnv { devices: Some("null0".to_owned()), gid_index: Some(1), ..IbEnv::default() };
        let lines = of_library(&verbs, &ib, &[]).unwrap();
        assert!(
            lines.len() == 2 && lines[1].contains("null0, port 1 Ethernet, MTU 1024, GID 1 "),
            "{lines:?}"
        );
    }
}
